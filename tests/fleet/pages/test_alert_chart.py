"""Alert charts: time range, fault shaded, culprit highlighted."""

from collections.abc import Callable
from datetime import timedelta

import pytest
import zstandard
from django.test import Client

from fleet.charts.alerts import alert_window
from fleet.charts.frozen import freeze
from fleet.models import Alert, Annotation, FrozenChart
from telemetry.store.hot import HotStore
from tests.helpers import just_now

Fire = Callable[..., Alert]


def test_the_culprit_is_marked_among_its_muted_peers(client: Client, alert: Alert) -> None:
    figure = client.get(f"/alerts/{alert.pk}/charts/culprit").json()
    roles = {line["label"]: line["role"] for line in figure["series"]}

    assert roles["core 7"] == "bad"
    assert roles["core 6"] == "muted"


def test_the_broken_stretch_is_shaded_and_named(client: Client, alert: Alert) -> None:
    [[start, _, label]] = client.get(f"/alerts/{alert.pk}/charts/share").json()["shade"]

    assert start == pytest.approx(alert.onset_at.timestamp())
    assert label.replace("\u202f", " ") == "all-reduce above 25 %"


def test_it_shows_some_time_before_and_after(client: Client, fired: Fire) -> None:
    alert = fired(ago=timedelta(minutes=20), resolved_at=just_now() - timedelta(minutes=15))
    start, end = client.get(f"/alerts/{alert.pk}/charts/phases").json()["window"]

    assert start < alert.onset_at.timestamp() - 60
    assert alert.resolved_at is not None
    assert end > alert.resolved_at.timestamp() + 60


def test_who_waits_is_the_same_as_when_it_fired(client: Client, alert: Alert) -> None:
    figure = client.get(f"/alerts/{alert.pk}/charts/workers").json()

    assert figure["labels"] == ["steady", "limping"]
    assert figure["series"][0]["values"] == [0.82, 0.01]


def test_an_alert_that_names_no_one_has_no_culprit_to_draw(client: Client, fired: Fire) -> None:
    alert = fired(cause="unknown", node=None, device=None, evidence={})

    assert client.get(f"/alerts/{alert.pk}/charts/culprit").status_code == 404
    assert client.get(f"/alerts/{alert.pk}/charts/phases").status_code == 200


def test_a_throttled_device_is_all_of_its_cores(client: Client, fired: Fire) -> None:
    alert = fired(cause="throttle", device=3, evidence={})
    figure = client.get(f"/alerts/{alert.pk}/charts/culprit").json()

    assert [s["label"] for s in figure["series"] if s["role"] == "bad"] == ["core 6", "core 7"]


def test_a_bad_window_is_refused(client: Client, alert: Alert) -> None:
    response = client.get(f"/alerts/{alert.pk}/charts/phases?from=x&to=y")

    assert response.status_code == 400


def test_an_unknown_name_is_not_found(client: Client, alert: Alert) -> None:
    assert client.get("/alerts/999/charts/phases").status_code == 404
    assert client.get(f"/alerts/{alert.pk}/charts/weather").status_code == 404


def test_what_was_frozen_is_shown_to_anyone_who_asks_for_the_same_stretch(
    client: Client, hot: HotStore, fired: Fire
) -> None:
    alert = fired(ago=timedelta(minutes=8), resolved_at=just_now() - timedelta(minutes=5))
    freeze(hot, alert, now=just_now())
    FrozenChart.objects.update(figure=zstandard.compress(b'{"frozen": true}'))
    own = alert_window(alert, now=just_now())

    for query in ("", f"?{own.query}"):
        figure = client.get(f"/alerts/{alert.pk}/charts/phases{query}").json()
        assert figure == {"frozen": True}


def test_what_was_noted_of_its_run_or_its_node_is_marked(client: Client, alert: Alert) -> None:
    at = alert.onset_at
    for text, about in (("loader", {"run": alert.run}), ("cable", {"node": alert.node})):
        Annotation.objects.create(at=at, kind="note", text=text, **about)

    for chart in ("share", "culprit", "phases"):
        events = client.get(f"/alerts/{alert.pk}/charts/{chart}").json()["events"]
        assert [event[1] for event in events] == ["note: loader", "note: cable"]


def test_a_frozen_chart_is_marked_with_what_was_noted_since(
    client: Client, fired: Fire, hot: HotStore
) -> None:
    alert = fired(ago=timedelta(minutes=20), resolved_at=just_now() - timedelta(minutes=15))
    freeze(hot, alert, now=just_now())
    before = client.get(f"/alerts/{alert.pk}/charts/phases").json()
    Annotation.objects.create(at=alert.onset_at, kind="note", text="loader", run=alert.run)

    after = client.get(f"/alerts/{alert.pk}/charts/phases").json()
    assert [event[1] for event in after["events"]] == ["note: loader"]
    assert after | {"events": []} == before | {"events": []}


def test_as_of_a_time_no_later_event_is_marked(client: Client, alert: Alert) -> None:
    at = alert.fired_at + timedelta(seconds=60)
    Annotation.objects.create(at=at, kind="note", text="later", run=alert.run)
    address = f"/alerts/{alert.pk}/charts/phases?at={int(alert.fired_at.timestamp()) + 10}"

    assert client.get(address).json()["events"] == []
