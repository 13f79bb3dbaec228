"""Changes shortly before an alert: annotations, other alerts, events derived from steps."""

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

from fleet.models import Alert, Annotation, InjectedFault, Node, Run
from fleet.pages.alert_context import MOST, RecentChange, neighbours_of, until_of
from fleet.pages.alert_context import changes_of as sorted_out
from telemetry.store.hot import HotStore
from tests.helpers import NOON, NOON_S, steps

Make = Callable[..., Alert]
MINUTE = timedelta(minutes=1)


def changes_of(hot: HotStore, alert: Alert, *, now: datetime) -> Sequence[RecentChange]:
    neighbours = neighbours_of(alert, until=until_of(alert, now=now))
    return sorted_out(hot, alert, neighbours, now=now)


def reported(hot: HotStore, alert: Alert) -> list[str]:
    return [f"{c.kind}: {c.text}" for c in changes_of(hot, alert, now=NOON + 5 * MINUTE)]


def test_what_people_and_machines_reported_of_the_run_the_node_and_everything(
    hot: HotStore, make: Make, run: Run, limping: Node, steady: Node
) -> None:
    def say(text: str, minutes: int, **about: Run | Node) -> None:
        at = NOON - minutes * MINUTE
        Annotation.objects.create(at=at, kind="deploy", text=text, by="ci", **about)

    say("loader 2.4.1", 180, run=run)
    say("new kernel", 30, node=limping)
    say("switch firmware", 10)
    say("another team's node", 5, node=steady)
    say("too long ago", 60 * 25, run=run)

    assert reported(hot, make()) == [
        "deploy: switch firmware",
        "deploy: new kernel",
        "deploy: loader 2.4.1",
    ]


def test_a_drill_is_reported_with_who_started_it_but_the_demo_s_weather_is_not(
    hot: HotStore, make: Make, run: Run, limping: Node
) -> None:
    for by in ("olga", ""):
        InjectedFault.objects.create(
            run=run,
            node=limping,
            kind="slow_core",
            device=7,
            magnitude=1.5,
            starts_at=NOON - MINUTE,
            ends_at=NOON + MINUTE,
            injected_by=by,
        )
    (drill,) = changes_of(hot, make(is_drill=True), now=NOON + MINUTE)

    assert (drill.kind, drill.by) == ("drill", "olga")
    assert drill.text.endswith("on limping, core 7")
    assert drill.before_s == 60


def test_other_alerts_nearby_are_linked(hot: HotStore, make: Make) -> None:
    other = make(rule="node_silent", subject="node:limping", fired_at=NOON - 2 * MINUTE)
    make(rule="hang", fired_at=NOON - 90 * MINUTE, resolved_at=NOON - 80 * MINUTE)
    (change,) = changes_of(hot, make(), now=NOON + MINUTE)

    assert change.url == other.get_absolute_url()
    assert change.text == "limping has stopped reporting"


def test_steps_tell_of_checkpoints_pauses_and_batches(hot: HotStore, make: Make) -> None:
    def train(first: int, n_steps: int, since_s: float, *, tokens: float = 4096.0) -> None:
        hot.append_steps(
            steps(first=first, n_steps=n_steps, ended_at_s=since_s, tokens=tokens, compute_s=2.0)
        )

    train(1, 10, NOON_S - 600)
    hot.append_steps(
        steps(first=11, n_steps=1, ended_at_s=NOON_S - 540, compute_s=2.0, checkpoint_s=38.0)
    )
    train(12, 10, NOON_S - 538)
    train(22, 20, NOON_S - 400)
    train(42, 20, NOON_S - 360, tokens=8192.0)

    assert [each.replace("\u202f", " ") for each in reported(hot, make())] == [
        "batch: 4.10 k tokens per step became 8.19 k",
        "pause: no steps for 1 min",
        "checkpoint: took 38 s",
    ]


def test_steps_tell_when_workers_came_or_went(hot: HotStore, make: Make) -> None:
    hot.append_steps(steps(n_steps=200, ended_at_s=NOON_S - 780, compute_s=2.0))
    hot.append_steps(
        steps(workers=("steady",), first=201, n_steps=150, ended_at_s=NOON_S - 380, compute_s=2.0)
    )

    assert reported(hot, make()) == ["scale: 2 workers became 1"]


def test_of_many_only_the_nearest_are_reported(hot: HotStore, make: Make, run: Run) -> None:
    for minutes in range(40):
        Annotation.objects.create(
            at=NOON - minutes * MINUTE, kind="note", text=f"{minutes}", run=run
        )
    found = changes_of(hot, make(), now=NOON + MINUTE)

    assert [change.text for change in found] == [str(i) for i in range(MOST)]


def test_what_concerns_no_run_is_reported_what_concerns_everything(
    hot: HotStore, make: Make
) -> None:
    Annotation.objects.create(at=NOON, kind="note", text="power cut")
    blind = make(rule="monitoring_blind", subject="fleet", run=None, node=None)

    assert reported(hot, blind) == ["note: power cut"]
