"""Evidence is stored once an alert has resolved, while second data still exists."""

import json
from collections.abc import Callable
from datetime import datetime, timedelta

import pytest
from redis import Redis

from fleet.charts.frozen import freeze_due, frozen_figure, joined, lasting_figure
from fleet.models import Alert, FrozenChart, Node, Run
from telemetry.store.hot import HotStore
from tests.alerts import straggling
from tests.helpers import block, just_now, steps

Second = Callable[[int], datetime]


@pytest.fixture
def now() -> datetime:
    return just_now().replace(microsecond=0)


@pytest.fixture
def now_s(now: datetime) -> int:
    return int(now.timestamp())


@pytest.fixture
def alert(
    hot: HotStore, run: Run, steady: Node, limping: Node, now: datetime, now_s: int
) -> Alert:
    hot.append(block(tick=tick) for tick in range(now_s - 800, now_s))
    for began_s in range(now_s - 800, now_s, 10):
        hot.append_steps(
            steps(first=began_s, n_steps=1, ended_at_s=began_s, compute_s=0.6, wait_s=0.4)
        )
    return straggling(
        run,
        limping,
        at=now - timedelta(seconds=395),
        device=3,
        score=1.6,
        onset_at=now - timedelta(seconds=400),
        last_seen_at=now - timedelta(seconds=200),
        resolved_at=now - timedelta(seconds=200),
    )


def test_an_alert_that_is_over_is_frozen_once(hot: HotStore, alert: Alert, now: datetime) -> None:
    assert freeze_due(hot, now=now) == [alert]
    assert freeze_due(hot, now=now) == []

    names = set(FrozenChart.objects.values_list("name", flat=True))
    assert names == {"phases", "culprit", "workers", "share"}


def test_what_is_frozen_is_by_the_second_and_lasts(
    hot: HotStore, alert: Alert, redis: Redis, now: datetime, now_s: int
) -> None:
    freeze_due(hot, now=now)
    redis.flushdb()

    culprit = json.loads(frozen_figure(alert, "culprit") or "{}")
    assert culprit["every_s"] == 1
    assert len(culprit["t"]) > 500
    assert culprit["shade"][0][:2] == [now_s - 400, now_s - 200]


@pytest.mark.parametrize("resolved_ago_s", [None, 30, 880])
def test_what_is_open_not_settled_or_too_old_is_left(
    hot: HotStore, alert: Alert, resolved_ago_s: int | None, now: datetime
) -> None:
    alert.resolved_at = None if resolved_ago_s is None else now - timedelta(seconds=resolved_ago_s)
    alert.onset_at = now - timedelta(seconds=890)
    alert.save()

    assert freeze_due(hot, now=now) == []
    assert frozen_figure(alert, "phases") is None


LASTS = 14 * 60


@pytest.fixture
def second(now: datetime) -> Second:
    """Give a moment some seconds from now."""
    return lambda n: now + timedelta(seconds=n)


def lived(hot: HotStore, begin: datetime, end: datetime) -> None:
    """Let the nodes report from one moment to another."""
    seconds = range(int(begin.timestamp()), int(end.timestamp()))
    hot.append(block(tick=tick) for tick in seconds)


@pytest.fixture
def lasting(hot: HotStore, alert: Alert, now: datetime) -> Alert:
    """Let the alert go on: it began 400 s ago, and its window 300 s before that."""
    Alert.objects.update(resolved_at=None, last_seen_at=now)
    alert.refresh_from_db()
    return alert


def culprit(figure: bytes | None) -> dict[str, list[float]]:
    drawn: dict[str, list[float]] = json.loads(figure or "{}")
    return drawn


def test_an_alert_that_lasts_is_kept_before_its_beginning_is_forgotten(
    hot: HotStore, lasting: Alert, redis: Redis, now: datetime, now_s: int, second: Second
) -> None:
    assert freeze_due(hot, now=now) == []
    assert not FrozenChart.objects.exists()

    lived(hot, second(0), second(100))
    freeze_due(hot, now=second(100))
    redis.flushdb()

    kept = culprit(lasting_figure(hot, lasting, "culprit", now=second(100)))
    assert kept["t"][0] <= now_s - 695
    assert kept["t"][-1] >= now_s + 90
    assert frozen_figure(lasting, "culprit") is None


def test_it_is_kept_piece_by_piece_and_whole_in_the_end(
    hot: HotStore, lasting: Alert, now_s: int, second: Second
) -> None:
    for at in range(60, LASTS, 60):
        lived(hot, second(at - 60), second(at))
        freeze_due(hot, now=second(at))
    Alert.objects.update(resolved_at=second(LASTS - 130))

    assert freeze_due(hot, now=second(LASTS)) == [lasting]
    assert freeze_due(hot, now=second(LASTS)) == []

    lasting.refresh_from_db()
    whole = culprit(frozen_figure(lasting, "culprit"))
    assert whole["t"] == list(range(now_s - 700, now_s + LASTS - 10 + 1))
    assert whole["window"] == [now_s - 700, now_s + LASTS - 10]
    assert lasting_figure(hot, lasting, "culprit", now=second(LASTS)) is None


def test_what_is_live_follows_what_is_kept(
    hot: HotStore, lasting: Alert, now_s: int, second: Second
) -> None:
    lived(hot, second(0), second(100))
    freeze_due(hot, now=second(100))
    lived(hot, second(100), second(130))

    drawn = culprit(lasting_figure(hot, lasting, "culprit", now=second(130)))
    assert drawn["t"] == list(range(now_s - 700, now_s + 130 + 1))


def test_one_that_fires_again_is_kept_on_from_there(
    hot: HotStore, alert: Alert, now: datetime, now_s: int, second: Second
) -> None:
    freeze_due(hot, now=now)
    FrozenChart.objects.update(kept_until=alert.resolved_at)
    Alert.objects.update(resolved_at=None)
    alert.refresh_from_db()
    lived(hot, second(0), second(500))
    freeze_due(hot, now=second(500))

    drawn = culprit(lasting_figure(hot, alert, "culprit", now=second(500)))
    assert drawn["t"][0] == now_s - 700
    assert drawn["t"][-1] >= now_s + 490


def test_pieces_are_joined_by_their_labels_with_gaps() -> None:
    older = {"t": [1, 2, 3], "series": [{"label": "a", "values": [1, 2, 3]}], "window": [1, 3]}
    newer = {"t": [3, 4], "series": [{"label": "b", "values": [7, 8]}], "window": [3, 4]}

    assert joined(older, newer) == {
        "t": [1, 2, 3, 4],
        "series": [
            {"label": "a", "values": [1, 2, None, None]},
            {"label": "b", "values": [None, None, 7, 8]},
        ],
        "window": [1, 4],
    }
