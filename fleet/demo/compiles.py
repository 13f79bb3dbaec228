"""The demo's accidents with the compile cache: deploys that changed a key unannounced."""

from datetime import datetime, timedelta

from fleet.annotating import Said, annotate
from fleet.compiles.simulated import live_through_compiles
from fleet.demo.weather import LEAVE_IN_PEACE
from fleet.models import InjectedFault, Run
from fleet.recompiling import explain
from telemetry.simulate.kinds import FAULTS
from telemetry.store.source import Source

RECOMPILE = "recompile"
# Which run, how long ago, for how many seconds, and what had been done just before.
DEPLOYS = (
    ("pretrain-gpt", timedelta(hours=9, minutes=20), 640.0, "NEURON_CC_FLAGS set in the launcher"),
    ("search-bert", timedelta(hours=5, minutes=10), 260.0, "launch script rolled out"),
    ("search-bert", timedelta(hours=2, minutes=40), 240.0, "container image with a new compiler"),
)
BEFORE = timedelta(seconds=40)


def brew_deploys(*, now: datetime) -> list[InjectedFault]:
    """Put the accidents into the past of the runs that were training by then."""
    runs = {run.name: run for run in Run.objects.active().simulated()}
    faults = []
    for name, ago, seconds, text in DEPLOYS:
        run, at = runs.get(name), now - ago
        if run is None or at < run.started_at + LEAVE_IN_PEACE:
            continue
        faults.append(
            InjectedFault(
                run=run,
                kind=FAULTS[RECOMPILE].name,
                magnitude=seconds,
                starts_at=at,
                # Watched to its end: an alert that nobody looks at any more would stay open.
                ends_at=at + timedelta(seconds=seconds),
            )
        )
        annotate(Said("deploy", text, at - BEFORE, run=name), by="the demo", now=now)
    return InjectedFault.objects.bulk_create(faults)


def compile_past(source: Source, run: Run, faults: list[InjectedFault], *, now: datetime) -> None:
    """Give a run the compiles of its past, and tell its alerts what changed."""
    for event in live_through_compiles(source, run, faults, now=now):
        if event.noted_at is not None:
            explain(run, now=event.noted_at)
