"""Evidence is frozen once an alert is over, while it is still there by the second."""

import json
import time
from datetime import UTC, datetime, timedelta

import pytest
from redis import Redis

from fleet.freezing import freeze_what_is_due, frozen_figure
from fleet.models import Alert, FrozenChart, Node, Run
from telemetry.store.hot import HotStore
from tests.parts import block, steps

NOW_S = int(time.time())
NOW = datetime.fromtimestamp(NOW_S, UTC)


@pytest.fixture
def alert(hot: HotStore, run: Run, steady: Node, limping: Node) -> Alert:
    hot.append(block(tick=tick) for tick in range(NOW_S - 800, NOW_S))
    for began_s in range(NOW_S - 800, NOW_S, 10):
        hot.append_steps(
            steps(first=began_s, n_steps=1, ended_at_s=began_s, compute_s=0.6, wait_s=0.4)
        )
    return Alert.objects.create(
        rule="allreduce_share",
        cause="slow_core",
        severity=Alert.Severity.PAGE,
        subject="run:llama",
        run=run,
        node=limping,
        device=3,
        score=1.6,
        onset_at=NOW - timedelta(seconds=400),
        fired_at=NOW - timedelta(seconds=395),
        last_seen_at=NOW - timedelta(seconds=200),
        resolved_at=NOW - timedelta(seconds=200),
    )


def test_an_alert_that_is_over_is_frozen_once(hot: HotStore, alert: Alert) -> None:
    assert freeze_what_is_due(hot, now=NOW) == [alert]
    assert freeze_what_is_due(hot, now=NOW) == []

    names = set(FrozenChart.objects.values_list("name", flat=True))
    assert names == {"phases", "culprit", "workers", "share"}


def test_what_is_frozen_is_by_the_second_and_lasts(
    hot: HotStore, alert: Alert, redis: Redis
) -> None:
    freeze_what_is_due(hot, now=NOW)
    redis.flushdb()

    culprit = json.loads(frozen_figure(alert, "culprit") or "{}")
    assert culprit["every_s"] == 1
    assert len(culprit["t"]) > 500
    assert culprit["shade"][0][:2] == [NOW_S - 400, NOW_S - 200]


@pytest.mark.parametrize("resolved_ago_s", [None, 30, 880])
def test_what_is_open_not_settled_or_too_old_is_left(
    hot: HotStore, alert: Alert, resolved_ago_s: int | None
) -> None:
    alert.resolved_at = None if resolved_ago_s is None else NOW - timedelta(seconds=resolved_ago_s)
    alert.onset_at = NOW - timedelta(seconds=890)
    alert.save()

    assert freeze_what_is_due(hot, now=NOW) == []
    assert frozen_figure(alert, "phases") is None
