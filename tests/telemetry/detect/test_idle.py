"""Allocated but idle: only who should work, can be heard and does nothing for long."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from telemetry.blocks import Span
from telemetry.detect.inputs import DetectionInput, OpenProblem
from telemetry.detect.node_errors import node_idle
from telemetry.simulate.plan import Benign
from tests.telemetry.detect.lives import life
from tests.telemetry.detect.played import EPOCH
from tests.telemetry.detect.runs import CHARACTERS, inputs, steps_at

# A second in which idle nodes are looked for.
DUE_S = 30


def seen(cores: dict[str, float], *, workers: int = 3, **more: Any) -> DetectionInput:
    """Return a run of four nodes, so many of them workers, with cores this busy at all times."""
    level = np.array([cores.get(node, 0.7) for node in CHARACTERS])

    def hardware_at(_: object, ages_s: tuple[int, ...]) -> Span:
        values = np.broadcast_to(level[None, :, None], (len(ages_s), 4, 8)).copy()
        ticks = -np.array(ages_s)
        return Span("s", ticks, CHARACTERS, {"core_utilization_ratio": values})

    steps = steps_at([0.1] * 9, n_workers=workers)
    now_s = float(steps.ended_at_s[-1] // DUE_S * DUE_S + DUE_S)
    given: dict[str, Any] = {
        "nodes": CHARACTERS,
        "hardware_at": hardware_at,
        "now_s": now_s,
        "phase_since_s": 0.0,
    }
    return inputs(steps, **(given | more))


def test_a_node_that_no_one_uses_is_named() -> None:
    (finding,) = node_idle(seen({"quiet": 0.0}))
    assert (finding.rule, finding.node, finding.severity) == ("node_idle", "quiet", "warn")
    assert finding.evidence["claims_steps"] is False
    assert finding.onset_s == -600
    assert json.loads(json.dumps(finding.evidence, allow_nan=False)) == finding.evidence


def test_a_run_may_have_a_time_of_its_own() -> None:
    def hardware_at(_: object, ages_s: tuple[int, ...]) -> Span:
        values = np.full((len(ages_s), 4, 8), 0.7)
        values[np.array(ages_s) <= 300, CHARACTERS.index("quiet")] = 0.0
        return Span("s", -np.array(ages_s), CHARACTERS, {"core_utilization_ratio": values})

    assert node_idle(seen({}, hardware_at=hardware_at)) == []
    own = {"node_idle.idle_s": 300.0}
    (finding,) = node_idle(seen({}, hardware_at=hardware_at, own_limits=own))
    assert finding.node == "quiet"
    assert finding.evidence["limit_s"] == 300


def test_a_node_that_is_scraped_each_quarter_of_a_minute_is_named_too() -> None:
    every_s = 15

    def hardware_at(_: object, ages_s: tuple[int, ...]) -> Span:
        values = np.full((len(ages_s), 4, 8), 0.7)
        values[:, CHARACTERS.index("quiet")] = 0.0
        # The newest scrape is up to two intervals old when it is stored.
        values[np.array(ages_s) < 2 * every_s] = np.nan
        return Span("s", -np.array(ages_s), CHARACTERS, {"core_utilization_ratio": values})

    (finding,) = node_idle(seen({}, hardware_at=hardware_at, report_every_s=every_s))

    assert (finding.rule, finding.node) == ("node_idle", "quiet")


def test_a_worker_that_computes_elsewhere_idles_as_well() -> None:
    (finding,) = node_idle(seen({"calm": 0.0}))
    assert finding.node == "calm"
    assert finding.evidence["claims_steps"] is True


@pytest.mark.parametrize("works", [True, False])
def test_a_node_that_waits_for_a_slow_one_whenever_it_is_looked_at_works(*, works: bool) -> None:
    def hardware(_: object, last_s: int) -> Span:
        values = np.zeros((last_s, 4, 8))
        values[-2:-1] = 0.9 * works
        return Span("s", np.arange(last_s), CHARACTERS, {"core_utilization_ratio": values})

    found = node_idle(seen({"quiet": 0.0}, hardware=hardware))
    assert [finding.node for finding in found] == ([] if works else ["quiet"])


def test_a_node_that_works_or_is_silent_does_not_idle() -> None:
    assert node_idle(seen({})) == []
    assert node_idle(seen({"quiet": float("nan")})) == []


def test_a_node_left_out_of_the_steps_on_purpose_does_not_idle() -> None:
    drained = seen({"quiet": 0.0}, workers=4)
    for values in drained.steps.phases.values():
        values[:, 3] = np.nan
    assert node_idle(drained) == []


@pytest.mark.parametrize(
    "more",
    [
        {"phase": "warming_up"},
        {"phase": "finished"},
        {"phase_since_s": 1_700_000_000.0},
        {"now_s": 1_700_003_600.0},
        {"reads_hardware": False},
        {"hardware_at": None},
    ],
    ids=["warms up", "is over", "has just begun", "makes no steps", "missing", "no eyes"],
)
def test_a_run_that_does_not_make_steps_has_no_idle_nodes(more: dict[str, Any]) -> None:
    assert node_idle(seen({"quiet": 0.0}, **more)) == []


def test_it_is_looked_for_now_and_then_but_always_while_it_lasts() -> None:
    due = seen({"quiet": 0.0})
    later = replace(due, now_s=due.now_s + 7)
    assert node_idle(later) == []
    known = replace(later, open_problems=(OpenProblem("node_idle", "node_idle", "quiet"),))
    assert len(node_idle(known)) == 1


def without_steps(cores: dict[str, float], *, is_heard: bool = True) -> DetectionInput:
    """Return the same run, whose job reports nothing; nodes count their memory errors."""
    given = seen(cores)
    at = given.hardware_at
    assert at is not None

    def hardware_at(names: Any, ages_s: Any) -> Span:
        span = at(names, ages_s)
        counts = (
            np.zeros((len(ages_s), 4, 4)) if is_heard else np.full((len(ages_s), 4, 4), np.nan)
        )
        return replace(span, values=dict(span.values) | {"mem_ecc_uncorrected": counts})

    return replace(given, steps=given.steps[:0], hardware_at=hardware_at)


def test_without_steps_a_node_idles_while_the_others_work() -> None:
    (finding,) = node_idle(without_steps({"quiet": 0.0}))
    assert (finding.rule, finding.node) == ("node_idle", "quiet")


def test_without_steps_a_run_that_stands_still_has_no_idle_nodes() -> None:
    assert node_idle(without_steps(dict.fromkeys(CHARACTERS[:3], 0.0))) == []


def test_a_node_whose_cores_no_process_holds_idles() -> None:
    unheld = {"quiet": float("nan")}
    (finding,) = node_idle(without_steps(unheld))
    assert finding.node == "quiet"
    assert finding.evidence["culprit"]["value"] == 0.0
    assert node_idle(without_steps(unheld, is_heard=False)) == []


@pytest.mark.parametrize("kind", ["node_leaves", "node_joins"])
def test_who_left_or_has_not_come_yet_does_not_idle(kind: str) -> None:
    event = Benign(kind=kind, run="run", node="run-05", start_s=90)
    lived = life("trn1", duration_s=780, benign=[event])
    assert [f for second in range(690, 780) for f in node_idle(lived.recording.at(second))] == []


def test_nodes_left_over_by_a_scale_down_are_one_finding_that_names_it() -> None:
    event = Benign(kind="scale_change", run="run", start_s=90, magnitude=0.5)
    lived = life("trn1", duration_s=780, benign=[event])
    found = [f for second in range(690, 780) for f in node_idle(lived.recording.at(second))]
    assert {(f.node, f.nodes, f.severity) for f in found} == {
        (None, ("run-04", "run-05", "run-06", "run-07"), "warn")
    }
    scaled = found[0].evidence["scaled_down"]
    assert (scaled["n_before"], scaled["n_after"]) == (8, 4)
    assert 85 < scaled["at_s"] - EPOCH < 100
    assert json.loads(json.dumps(found[0].evidence, allow_nan=False)) == found[0].evidence


def group(*nodes: str, since_s: float = -600.0) -> OpenProblem:
    """Return the open alert about several idle nodes."""
    evidence = {
        "nodes": list(nodes),
        "since_s": since_s,
        "scaled_down": {"at_s": since_s, "n_before": 4, "n_after": 2},
    }
    return OpenProblem("node_idle", "node_idle", None, None, evidence)


def test_nodes_that_became_idle_together_are_one_finding() -> None:
    (finding,) = node_idle(seen({"quiet": 0.0, "calm": 0.02}))
    assert (finding.node, finding.nodes) == (None, ("calm", "quiet"))
    assert finding.evidence["nodes"] == ["calm", "quiet"]
    assert finding.evidence["scaled_down"] is None


@pytest.mark.parametrize(("idle", "left"), [("quiet", 0.0), ("calm", 0.0)])
def test_the_finding_for_several_loses_its_nodes_down_to_the_last(idle: str, left: float) -> None:
    several = group("calm", "quiet", since_s=-5_000.0)
    (finding,) = node_idle(seen({idle: left}, open_problems=(several,)))
    assert (finding.node, finding.nodes) == (None, (idle,))
    assert finding.onset_s == -5_000.0
    assert finding.evidence["scaled_down"]["n_before"] == 4
    assert node_idle(seen({}, open_problems=(several,))) == []


def test_a_node_that_has_been_idle_for_longer_keeps_its_own_alert() -> None:
    old = OpenProblem("node_idle", "node_idle", "limping", None, {"since_s": -5_000.0})
    cores = {"limping": 0.0, "calm": 0.0, "quiet": 0.0}
    found = node_idle(seen(cores, open_problems=(old,)))
    assert [(f.node, f.nodes) for f in found] == [
        ("limping", ("limping",)),
        (None, ("calm", "quiet")),
    ]


def test_a_node_that_was_the_first_to_be_found_joins_the_others() -> None:
    watched = seen({"calm": 0.0, "quiet": 0.0})
    first = OpenProblem(
        "node_idle", "node_idle", "calm", None, {"since_s": watched.now_s - 600.0 - 60.0}
    )
    (finding,) = node_idle(replace(watched, open_problems=(first,)))
    assert finding.nodes == ("calm", "quiet")


def test_a_long_step_of_the_run_neither_accuses_nodes_nor_ends_an_alert() -> None:
    resting = {"quiet": 0.0, "calm": 0.0}
    watched = seen(resting)
    ends = watched.steps.ended_at_s
    far = replace(watched, now_s=watched.now_s + 90.0)
    assert float(ends[-1]) < far.now_s - 60.0
    assert node_idle(far) == []
    (finding,) = node_idle(replace(far, open_problems=(group("calm", "quiet"),)))
    assert finding.nodes == ("calm", "quiet")
