"""Markers say what happened to the subject of a chart in its window, and nothing later."""

from datetime import datetime, timedelta

from fleet.charts.markers import checkpoints, markers_of, markers_of_fleet
from fleet.charts.windows import Window
from fleet.models import Alert, Annotation, CompileEvent, InjectedFault, Node, Run
from tests.alerts import straggling
from tests.helpers import NOON, NOON_S, steps

WINDOW = Window(NOON_S - 600, NOON_S + 600)
MINUTE = timedelta(minutes=1)


def drill(run: Run, node: Node, *, by: str = "olga") -> InjectedFault:
    return InjectedFault.objects.create(
        run=run,
        node=node,
        kind="slow_core",
        injected_by=by,
        magnitude=1.4,
        starts_at=NOON + timedelta(seconds=7, milliseconds=250),
        ends_at=NOON + 20 * MINUTE,
    )


def fired(run: Run, node: Node, *, at: datetime) -> Alert:
    alert = straggling(run, node, at=at)
    alert.events.create(at=at, kind="fired")
    return alert


def test_a_run_has_its_alerts_drills_deploys_and_recompiles_in_order(
    run: Run, limping: Node
) -> None:
    fault = drill(run, limping)
    alert = fired(run, limping, at=NOON + timedelta(seconds=30))
    Annotation.objects.create(at=NOON - MINUTE, kind="deploy", text="loader 2", run=run)
    for second in (0, 20, 40):
        CompileEvent.objects.create(
            run=run, outcome="miss", verdict="again", at=NOON + timedelta(seconds=120 + second)
        )

    found = markers_of(WINDOW, run=run.pk)

    assert [event.kind for event in found] == ["deploy", "drill", "alert", "compile"]
    assert found[1].at_s == fault.starts_at.timestamp()
    assert found[1].until_s is None
    assert found[1].url == f"/drills/{fault.pk}/"
    assert found[2].url == alert.get_absolute_url()
    assert "3\u202fgraphs" in found[3].text
    assert markers_of(WINDOW, run=run.pk, without=alert.pk)[2].kind == "compile"


def test_a_fault_of_the_demo_is_no_drill(run: Run, limping: Node) -> None:
    drill(run, limping, by="")

    assert markers_of(WINDOW, run=run.pk, node=limping.pk) == []


def test_what_begins_after_the_window_is_not_marked(run: Run, limping: Node) -> None:
    drill(run, limping)
    fired(run, limping, at=NOON)

    assert markers_of(Window(NOON_S - 600, NOON_S - 10), run=run.pk, node=limping.pk) == []


def test_the_fleet_names_whose_marker_it_is(run: Run, limping: Node) -> None:
    Annotation.objects.create(at=NOON, kind="note", text="cable", node=limping)
    drill(run, limping)

    texts = [event.text for event in markers_of_fleet(WINDOW, [run])]

    assert texts[0] == "note: limping, cable"
    assert texts[1].startswith("drill: llama, ")


def test_another_run_has_none_of_them(run: Run, limping: Node) -> None:
    drill(run, limping)
    fired(run, limping, at=NOON)

    assert markers_of(WINDOW, run=run.pk + 1) == []


def test_the_steps_that_write_a_checkpoint_are_marked() -> None:
    batch = steps(n_steps=10, compute_s=1.0, checkpoint_s=0.0)
    batch.phases["checkpoint_s"][4] = 3.0

    found = checkpoints(batch)
    assert [event.at_s for event in found] == [batch.ended_at_s[4]]
    assert found[0].text == "checkpoint: 3.00\u202fs"
    assert checkpoints(steps(n_steps=10, compute_s=1.0, checkpoint_s=1.0)) == []
