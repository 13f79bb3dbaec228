"""The demo's planned compiles: announced ahead, so that they are no accident and page nobody."""

from datetime import datetime, timedelta

from fleet.announced import ANNOUNCER, announced
from fleet.demo.weather import LEAVE_IN_PEACE
from fleet.models import Alert, Annotation, InjectedFault, Run
from fleet.simulated.plans import publish_plan
from telemetry.store.hot import HotStore

# Which run, how often, and for how long: its evaluation takes longer sequences, of new graphs.
RUN, EVERY, LASTS = "search-bert", timedelta(hours=3), timedelta(seconds=150)
# Plans are handed over once a minute: what begins after that is in time for every worker.
AHEAD = timedelta(minutes=2)
# The past is played without its runs' phases: an announced compile beside a fault, where every
# second is watched, would look like an accident.
PAST, APART, TRIES = timedelta(hours=3, minutes=50), timedelta(minutes=15), 12


def announce(run: Run, *, at: datetime) -> Annotation:
    """Announce that a run will compile for an evaluation at twice its sequence length."""
    text = f"evaluation at sequence length {2 * run.seq_len:,}: its graphs compile, as planned"
    note: Annotation = Annotation.objects.create(
        run=run,
        kind=Annotation.Kind.COMPILE,
        by=ANNOUNCER,
        at=at,
        ends_at=at + LASTS,
        text=text,
    )
    return note


def announce_past(*, now: datetime) -> Annotation | None:
    """Put one into the past of the run, before that is played."""
    run = Run.objects.active().simulated().filter(name=RUN).first()
    if run is None:
        return None
    for tried in range(TRIES):
        at = now - PAST - 2 * tried * APART
        near = run.injected_faults.filter(starts_at__lt=at + LASTS + APART, ends_at__gt=at - APART)
        if at >= run.started_at + LEAVE_IN_PEACE and not near.exists():
            return announce(run, at=at)
    return None


def announce_next(hot: HotStore, *, now: datetime) -> Annotation | None:
    """Announce the next one where it is due and nothing is wrong; return it."""
    run = Run.objects.active().simulated().filter(name=RUN, phase=Run.Phase.TRAINING).first()
    if run is None or now < run.started_at + LEAVE_IN_PEACE:
        return None
    last = announced(run).last()
    if last is not None and now < last.at + EVERY:
        return None
    at = now + AHEAD
    soon = InjectedFault.objects.filter(run=run, ends_at__gt=now, starts_at__lt=at + 2 * LASTS)
    if soon.exists() or Alert.objects.open().filter(run=run).exists():
        return None
    note = announce(run, at=at)
    publish_plan(hot, run, now=now)
    return note
