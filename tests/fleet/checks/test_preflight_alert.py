"""A start without a required preflight is one alert until the run ends."""

from collections.abc import Callable
from datetime import timedelta

import pytest

from fleet.alerts.text import AlertText, facts, headline
from fleet.checks.preflights import (
    NO_PREFLIGHT,
    set_requirement_by,
    update_preflight_alerts,
)
from fleet.models import Alert, Annotation, ConfigurationChange, Node, Preflight, Run
from telemetry.simulate.preflight import ProbeFault
from tests.helpers import NOON

pytestmark = pytest.mark.django_db
LATER = NOON + timedelta(minutes=1)


@pytest.fixture
def requiring(run: Run, steady: Node, limping: Node) -> Run:
    Run.objects.filter(pk=run.pk).update(requires_preflight=True)
    return run


def test_it_fires_once_and_states_what_was_missing(requiring: Run) -> None:
    assert [alert.rule for alert in update_preflight_alerts(now=LATER)] == ["preflight"]
    assert update_preflight_alerts(now=LATER + timedelta(seconds=15)) == []

    alert = Alert.objects.select_related("run").get()
    assert (alert.severity, alert.subject) == (Alert.Severity.WARN, f"run:{requiring.name}")
    assert alert.onset_at == requiring.started_at
    assert alert.evidence["doubt"] == NO_PREFLIGHT
    assert headline(alert) == f"{requiring.name} started without a preflight"
    assert NO_PREFLIGHT in AlertText(alert, LATER).story
    assert "run a preflight on its nodes" in AlertText(alert, LATER).story
    assert "unknown" not in AlertText(alert, LATER).story
    assert AlertText(alert, LATER).detail == ""
    assert "doubt" not in str(facts(alert)).casefold()


def test_a_run_that_had_its_pass_raises_nothing(
    requiring: Run, done: Callable[..., Preflight]
) -> None:
    done(("steady", "limping"), instance_type="trn1.32xlarge", now=NOON - timedelta(hours=2))

    assert update_preflight_alerts(now=LATER) == []


def test_a_run_that_requires_none_raises_nothing(run: Run, steady: Node) -> None:
    assert update_preflight_alerts(now=LATER) == []


def test_it_is_over_when_no_one_requires_one_any_more(requiring: Run) -> None:
    update_preflight_alerts(now=LATER)
    requiring.refresh_from_db()

    set_requirement_by(requiring, requires=False, by="ada", now=LATER)
    update_preflight_alerts(now=LATER + timedelta(seconds=15))

    assert Alert.objects.get().resolved_at == LATER + timedelta(seconds=15)


def test_it_is_over_with_its_run_whose_flag_stays(requiring: Run) -> None:
    update_preflight_alerts(now=LATER)
    Run.objects.filter(pk=requiring.pk).update(finished_at=LATER)

    update_preflight_alerts(now=LATER + timedelta(seconds=15))

    alert = Alert.objects.get()
    assert alert.resolved_at == LATER + timedelta(seconds=15)
    assert alert.events.values_list("text", flat=True).last() == "its run has ended"
    assert Run.objects.get(pk=requiring.pk).preflight_doubt == NO_PREFLIGHT


def test_a_fault_found_concurrently_updates_the_open_alert(
    requiring: Run, done: Callable[..., Preflight]
) -> None:
    update_preflight_alerts(now=LATER)
    # The files of a preflight before the start may be handed in after it.
    found = done(
        ("steady", "limping"),
        instance_type="trn1.32xlarge",
        now=NOON - timedelta(hours=1),
        faults=[ProbeFault.of_kind("chip_missing", "limping")],
    )

    update_preflight_alerts(now=LATER + timedelta(seconds=15))

    assert Run.objects.get(pk=requiring.pk).preflight_doubt == (
        f"Preflight {found.pk} did not pass limping."
    )
    assert Alert.objects.count() == 1


def test_who_required_one_is_written_down_and_twice_is_once(run: Run, steady: Node) -> None:
    for _ in range(2):
        set_requirement_by(run, requires=True, by="ada", now=LATER)
    set_requirement_by(run, requires=False, by="bob", now=LATER + timedelta(minutes=1))

    assert list(ConfigurationChange.objects.order_by("at").values_list("by", "text")) == [
        ("ada", f"set {run.name} to require a preflight before it starts"),
        ("bob", f"set {run.name} to require no preflight"),
    ]
    assert list(Annotation.objects.order_by("at").values_list("by", "run__name")) == [
        ("ada", run.name),
        ("bob", run.name),
    ]
