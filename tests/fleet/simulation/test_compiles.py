"""The demo's compile cache: unplanned recompilations and the deploys that caused them."""

from datetime import datetime, timedelta

import pytest

from fleet.models import Alert, Annotation, CompileEvent, InjectedFault, Run
from fleet.simulation.demo import create_fleet
from fleet.simulation.demo_history import (
    DEPLOYS,
    compile_past,
    create_past_deploys,
    simulate_history,
)
from telemetry.store.hot import HotStore
from tests.helpers import just_now


@pytest.fixture
def now() -> datetime:
    return just_now().replace(microsecond=0)


def test_a_young_demo_has_had_no_time_for_accidents(db: None, now: datetime) -> None:
    create_fleet(now=now, longest=timedelta(hours=2))

    assert create_past_deploys(now=now) == []


def test_an_old_one_has_had_them_each_after_a_deploy(db: None, now: datetime) -> None:
    create_fleet(now=now, longest=timedelta(hours=24))

    faults = create_past_deploys(now=now)

    assert len(faults) == len(DEPLOYS)
    # All of it is watched, so that its alert ends when it does.
    assert [f.ends_at - f.starts_at for f in faults] == [
        timedelta(seconds=f.magnitude) for f in faults
    ]
    assert Annotation.objects.filter(kind="deploy").count() == len(DEPLOYS)


def test_a_long_accident_of_the_past_states_what_changed_and_so_does_its_alert(
    hot: HotStore, db: None, now: datetime
) -> None:
    create_fleet(now=now, longest=timedelta(minutes=50))
    run = Run.objects.prefetch_related("nodes").get(name="search-bert")
    started = now - timedelta(minutes=25)
    fault = InjectedFault.objects.create(
        run=run,
        kind="recompile",
        magnitude=640.0,
        starts_at=started,
        ends_at=started + timedelta(seconds=640),
    )
    simulate_history(hot, run, [fault], now=now)
    compile_past(hot, run, [fault], now=now)
    (accident,) = CompileEvent.objects.unannounced()
    (alert,) = Alert.objects.filter(rule="recompile")

    assert accident.seconds == 640.0
    assert alert.evidence["key_changes"] == ["flags: -O1 became -O2"]
    assert run.compiles.filter(outcome="hit").exists()
    # It is over soon after the compile.
    assert alert.resolved_at is not None
    assert alert.resolved_at < started + timedelta(seconds=640 + 300)
