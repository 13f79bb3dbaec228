"""State of the long-term store: series, pages, health checks."""

from datetime import timedelta
from io import StringIO

import pytest
from django.core.management import CommandError, call_command
from django.test import Client
from pytest_django import Settings

from fleet.metrics.collectors import NeuronCollector, fleet_registry
from fleet.metrics.long_term import figures, history_s
from fleet.models import Node
from fleet.tasks import keep_figures_for_long_term
from telemetry.exporter.hardware import HARDWARE
from telemetry.long_term.remote_write import Delivered
from telemetry.long_term.writer import (
    FIGURES,
    MINUTES,
    SECONDS,
    FigureReader,
    Position,
    undelivered_since,
)
from telemetry.store.hot import HotStore
from tests.helpers import block, just_now

pytestmark = pytest.mark.django_db
SOMEWHERE = "http://127.0.0.1:1/api/v1/write"


@pytest.fixture(autouse=True)
def _a_store(settings: Settings) -> None:
    settings.LONG_TERM_WRITE_URL = SOMEWHERE


def stream(name: str, *, behind_s: int, dropped: int = 0) -> None:
    """Let a stream be so far behind, with samples refused a moment ago."""
    now = just_now()
    second = int(now.timestamp()) - behind_s
    Position(name).rewind(second, now=now)
    reported = Delivered(sent=1_234, dropped=dropped, retries=5, why="400 too old")
    Position(name).move(before=second, after=second, delivered=reported, now=now)


def test_probes_are_reported_and_no_one_is_turned_away(client: Client, hot: HotStore) -> None:
    stream(SECONDS, behind_s=7_200, dropped=3)

    response = client.get("/readyz")

    assert response.status_code == 200
    reported = response.json()["checks"]["long_term"]["seconds"]
    assert (reported["sent"], reported["dropped"]) == (1_234, 3)
    assert reported["lag_s"] >= 7_200


def test_prometheus_is_reported(hot: HotStore) -> None:
    stream(SECONDS, behind_s=60, dropped=3)

    found = {
        f.samples[0].name: [s.value for s in f.samples]
        for f in fleet_registry(hot, now=just_now()).collect()
        if f.name.startswith("trnwatch_long_term")
    }

    assert 59 < found.pop("trnwatch_long_term_lag_seconds")[0] < 120
    assert found == {
        "trnwatch_long_term_samples_sent_total": [1_234.0],
        "trnwatch_long_term_samples_dropped_total": [3.0],
        "trnwatch_long_term_retries_total": [5.0],
    }


@pytest.mark.parametrize(
    ("behind_s", "dropped", "phrase"),
    [
        (60, 0, None),
        (7_200, 0, "minutes are 2\u202fh 0\u202fmin behind"),
        (60, 3, "3 samples of the minutes were rejected (400 too old)"),
    ],
)
def test_every_page_states_where_it_falls_behind(
    admin_client: Client, hot: HotStore, behind_s: int, dropped: int, phrase: str | None
) -> None:
    stream(MINUTES, behind_s=behind_s, dropped=dropped)

    page = admin_client.get("/runs/").text

    assert ("The long-term store lags behind" in page) == bool(phrase)
    assert (phrase or "") in page


def test_a_store_that_is_no_longer_written_is_no_error(
    admin_client: Client, hot: HotStore, settings: Settings
) -> None:
    stream(MINUTES, behind_s=7_200, dropped=3)
    settings.LONG_TERM_WRITE_URL = ""

    assert "long-term store" not in admin_client.get("/runs/").text
    assert undelivered_since() is None


def test_everything_exported_is_sent_in_one_way_or_the_other(
    hot: HotStore, steady: Node, settings: Settings
) -> None:
    now = just_now()
    hot.append([block(tick=int(now.timestamp()))])
    families = [
        *fleet_registry(hot, now=now).collect(),
        *NeuronCollector(hot, now=now).collect(),
    ]
    exported = {each.name for each in families if each.type != "histogram"}
    reported = {family.name for family in figures(hot, now=now)}
    by_tick = {spec.family_name for spec in HARDWARE.values()}

    assert reported | by_tick == exported
    assert not reported & by_tick

    settings.LONG_TERM_OUR_NAMES_ONLY = True
    ours = {family.name for family in figures(hot, now=now)}
    assert ours == {name for name in reported if name.startswith("trnwatch_")}


def test_the_task_keeps_figures_once_a_second_and_forgets_old_ones(
    hot: HotStore, settings: Settings
) -> None:
    settings.LONG_TERM_EVERY_S = 60
    hot.execute("HSET", FIGURES, 60, b"of long ago")
    keep_figures_for_long_term()
    keep_figures_for_long_term()

    kept = sorted(int(second) for second in hot.execute("HKEYS", FIGURES))

    now = int(just_now().timestamp())
    assert 1 <= len(kept) <= 2
    assert all(second % 60 == 0 and second > now - 180 for second in kept)
    reported = [list(chunks) for chunks in FigureReader(hot).seconds(start=0, end=now + 60)]
    assert len(reported) == len(kept)
    assert any(b"trnwatch_alerts_firing" in head for one in reported[0] for head in one.heads)


def test_history_goes_back_as_far_as_it_is_kept(settings: Settings) -> None:
    settings.DURABLE_KEEP_DAYS = 3
    assert timedelta(seconds=history_s()) == timedelta(days=3)

    settings.LONG_TERM_READ_URL = "http://127.0.0.1:1"
    assert history_s() > timedelta(days=3650).total_seconds()


@pytest.mark.parametrize(
    ("name", "value", "phrase"),
    [
        ("LONG_TERM_WRITE_URL", "", "LONG_TERM_WRITE_URL is not set"),
        ("LONG_TERM_WRITE_URL", "victoria:8428", "is not a URL of a long-term store"),
        ("LONG_TERM_EVERY_S", 7, "does not divide a minute"),
    ],
)
def test_the_writer_refuses_settings_that_cannot_be(
    hot: HotStore, settings: Settings, name: str, value: object, phrase: str
) -> None:
    setattr(settings, name, value)

    with pytest.raises(CommandError, match=phrase):
        call_command("write_long_term", once=True, stdout=StringIO())


def test_the_writer_refuses_a_day_that_is_none(hot: HotStore) -> None:
    with pytest.raises(CommandError, match="--minutes-since: 'yesterday' is not a date"):
        call_command("write_long_term", minutes_since="yesterday", once=True)
