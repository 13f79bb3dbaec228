"""The demo's planned compiles: announced, simulated, no page."""

from datetime import datetime, timedelta

import msgspec
import pytest

from fleet.models import Alert, Annotation, CompileEvent, InjectedFault, Run
from fleet.runs.annotations import announced
from fleet.simulation.compiles import store_simulated
from fleet.simulation.demo import create_fleet
from fleet.simulation.demo_history import (
    ANNOUNCING_AHEAD,
    APART,
    EVERY,
    LASTS,
    PAST,
    announce,
    announce_next,
    announce_past,
    compile_past,
    simulate_history,
)
from telemetry.simulate.plan import Plan
from telemetry.store.history import run_steps
from telemetry.store.hot import HotStore
from tests.helpers import just_now

Verdict = CompileEvent.Verdict


@pytest.fixture
def now() -> datetime:
    return just_now().replace(microsecond=0)


def settled(*, now: datetime, hours: float = 6) -> Run:
    create_fleet(now=now, longest=timedelta(hours=hours))
    Run.objects.filter(name="search-bert").update(phase=Run.Phase.TRAINING)
    return Run.objects.prefetch_related("nodes").get(name="search-bert")


def test_it_is_announced_ahead_and_handed_to_the_workers(
    hot: HotStore, db: None, now: datetime
) -> None:
    run = settled(now=now)

    note = announce_next(hot, now=now)

    assert note is not None
    assert (note.at, note.ends_at) == (now + ANNOUNCING_AHEAD, now + ANNOUNCING_AHEAD + LASTS)
    (event,) = msgspec.json.decode(hot.plans()["search-bert"], type=Plan).benign
    assert event.kind == "planned_compile"
    assert event.start_s == note.at.timestamp() - int(run.started_at.timestamp())


def test_the_next_one_is_hours_later(hot: HotStore, db: None, now: datetime) -> None:
    settled(now=now)
    announce_next(hot, now=now)

    assert announce_next(hot, now=now + EVERY - timedelta(minutes=1)) is None
    assert announce_next(hot, now=now + EVERY + ANNOUNCING_AHEAD) is not None


def test_no_one_compiles_by_plan_while_something_is_wrong(
    hot: HotStore, db: None, now: datetime
) -> None:
    run = settled(now=now)
    fault = InjectedFault.objects.create(
        run=run, kind="hang", starts_at=now, ends_at=now + timedelta(minutes=3), magnitude=1
    )

    assert announce_next(hot, now=now) is None

    fault.delete()
    assert announce_next(hot, now=now) is not None


def test_a_young_run_has_had_no_time_for_one(hot: HotStore, db: None, now: datetime) -> None:
    settled(now=now, hours=1)

    assert announce_next(hot, now=now) is None
    assert announce_past(now=now) is None


def test_one_of_the_past_is_played_kept_as_planned_and_raises_nothing(
    hot: HotStore, db: None, now: datetime
) -> None:
    create_fleet(now=now, longest=timedelta(minutes=80))
    run = Run.objects.prefetch_related("nodes").get(name="search-bert")
    started = now - timedelta(minutes=30)
    announce(run, at=started)

    simulate_history(hot, run, [], now=now)
    compile_past(hot, run, [], now=now)
    store_simulated(hot, now=now)

    (planned,) = run.compiles.filter(verdict=Verdict.PLANNED)
    assert planned.seconds == LASTS.total_seconds()
    assert not CompileEvent.objects.unannounced().exists()
    assert not Alert.objects.exists()
    assert run.phase == Run.Phase.TRAINING
    # No step ends while it compiles; the others take ten seconds.
    start_s, lasts_s = started.timestamp(), LASTS.total_seconds()
    ended = run_steps(hot, run.name, start_s=start_s - 60, end_s=start_s + 600).ended_at_s
    assert max(ended[1:] - ended[:-1]) >= lasts_s


def test_the_past_one_keeps_away_from_faults(db: None, now: datetime) -> None:
    run = settled(now=now, hours=24)
    hit = now - PAST
    InjectedFault.objects.create(
        run=run, kind="hang", starts_at=hit, ends_at=hit + timedelta(minutes=3), magnitude=1
    )

    note = announce_past(now=now)

    assert note is not None
    assert note.ends_at is not None
    assert note.ends_at + APART < hit


def test_what_people_say_of_a_run_does_nothing_to_it(db: None, now: datetime) -> None:
    run = settled(now=now)
    Annotation.objects.create(
        run=run, kind="compile", by="ada", at=now, ends_at=now + LASTS, text="compiles"
    )

    assert not announced(run).exists()
