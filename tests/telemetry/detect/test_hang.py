"""A run that ends no step: who did not join is named, and what only looks like it is not."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from telemetry.blocks import FloatArray, Span
from telemetry.detect.inputs import DetectionInput, OpenProblem
from telemetry.detect.standstill import STALLED, no_step_since
from telemetry.detect.stopped import crashed_nodes, hang
from telemetry.simulate.plan import Benign, Fault
from telemetry.steps import StepBatch
from tests.telemetry.detect.lives import Life, Spell, life, spells
from tests.telemetry.detect.runs import CHARACTERS, inputs, steps_at

AWAY, THERE = (0.0, 0.015), (0.04, 0.115)


def fault(kind: str, *, start_s: float = 120.4, duration_s: float = 90, **more: Any) -> Fault:
    return Fault(kind=kind, node="run-03", start_s=start_s, duration_s=duration_s, **more)


def benign(kind: str, **more: Any) -> Benign:
    return Benign(kind=kind, run="run", start_s=120, **more)


def open_problems(
    *nodes: tuple[float, float], overdue_s: float = 12, times: int = 9, **more: Any
) -> DetectionInput:
    """Return a run of one-second steps that ended one so long ago; (cores, host) by node."""
    steps = steps_at([0.1] * times, n_workers=len(nodes))
    now_s = float(np.ceil(steps.ended_at_s[-1] + overdue_s))
    names = CHARACTERS[: len(nodes)]

    def span(ticks: FloatArray) -> Span:
        cores = np.array([[each[0]] * 4 for each in nodes])
        host = np.array([[each[1]] for each in nodes])
        values = {"core_utilization_ratio": cores, "vcpu_usage_ratio": host}
        whole = {name: np.repeat(v[None], len(ticks), axis=0) for name, v in values.items()}
        return Span("llama/0", ticks.astype(int), names, whole)

    return inputs(
        steps,
        lambda _, last_s: span(now_s - np.arange(last_s)[::-1]),
        hardware_at=lambda _, ages_s: span(now_s - np.array(ages_s)),
        now_s=now_s,
        **more,
    )


EITHER_WAY = pytest.mark.parametrize("is_busy", [False, True], ids=["idle", "busy"])


@EITHER_WAY
@pytest.mark.parametrize("run", ["trn1", "trn2", "p5", "staged"])
def test_the_worker_that_did_not_join_is_named_in_time(run: str, *, is_busy: bool) -> None:
    lived = life(run, duration_s=260, faults=[fault("hang")], is_busy=is_busy)
    (spell,) = spells(lived)
    step_s = float(np.median(lived.recording.steps.step_s))
    assert (spell.rule, spell.cause, spell.node) == ("hang", "hang", "run-03")
    # Healthy runs stand still for eight steps now and then.
    assert spell.first_s - 120.4 <= STALLED.of(step_s) + 5
    assert spell.last_s <= 212 + step_s


def test_a_pair_names_the_one_that_rests_and_a_loner_itself() -> None:
    (finding,) = hang(open_problems(THERE, AWAY))
    assert (finding.node, finding.victims) == ("limping", ("steady",))
    (finding,) = hang(open_problems(AWAY))
    assert (finding.node, finding.victims) == ("steady", ())


def test_several_that_did_not_join_are_listed_and_the_idlest_named() -> None:
    (finding,) = hang(open_problems(THERE, (0.0, 0.02), THERE, AWAY))
    assert finding.node == "quiet"
    assert finding.evidence["not_joined"] == ["quiet", "limping"]
    assert finding.victims == ("steady", "calm")
    assert json.loads(json.dumps(finding.evidence, allow_nan=False)) == finding.evidence


def test_where_all_are_alike_no_one_is_blamed_and_patience_is_longer() -> None:
    assert hang(open_problems(THERE, THERE, THERE, overdue_s=25)) == []
    (finding,) = hang(open_problems(THERE, THERE, THERE, overdue_s=40))
    assert (finding.cause, finding.node, finding.evidence["culprit"]) == ("unknown", None, None)


def slow_steps() -> StepBatch:
    """Return nine steps of 30 s of four workers."""
    slow = steps_at([0.1] * 9)
    slow.ended_at_s[:] = slow.ended_at_s[0] + 30 * np.arange(9)
    return replace(slow, phases={name: 30 * value for name, value in slow.phases.items()})


def test_a_step_that_is_not_overdue_by_the_runs_own_pace_is_no_hang() -> None:
    assert hang(open_problems(THERE, THERE, AWAY, overdue_s=8)) == []
    slow = slow_steps()
    late = open_problems(THERE, THERE, THERE, AWAY)
    now_s = float(slow.ended_at_s[-1] + 40)
    assert hang(inputs(slow, late.hardware, hardware_at=late.hardware_at, now_s=now_s)) == []


@pytest.mark.parametrize(("after_s", "hangs"), [(50, False), (85, False), (115, True)])
def test_the_first_step_after_a_restart_may_take_twice_as_long(
    after_s: float, *, hangs: bool
) -> None:
    slow, late = slow_steps(), open_problems(THERE, THERE, THERE, AWAY)
    paused_s = late.now_s - after_s - 60 - slow.ended_at_s[-1]
    slow = replace(slow, ended_at_s=slow.ended_at_s + paused_s)
    seen = inputs(slow, late.hardware, hardware_at=late.hardware_at, now_s=late.now_s)
    restarted = replace(seen, phase_since_s=late.now_s - after_s)
    assert bool(hang(restarted)) == hangs


@pytest.mark.parametrize(
    "doing",
    [(0.97, 0.1), (0.28, 0.1), (0.6, 0.1), (0.02, 0.3), (0.004, 0.67)],
    ids=["computes", "transfers", "evaluates", "writes a checkpoint", "compiles"],
)
def test_who_does_something_is_late_but_does_not_hang(doing: tuple[float, float]) -> None:
    assert hang(open_problems(*[doing] * 4, overdue_s=300)) == []
    assert hang(open_problems(THERE, THERE, doing, THERE, overdue_s=300)) == []


def test_one_that_prepares_for_ever_is_named_after_all() -> None:
    (finding,) = hang(open_problems(THERE, THERE, (0.02, 0.27), THERE, overdue_s=700))
    assert finding.node == "calm"
    slow_checkpoint = with_alert("checkpoint_slow", "checkpoint_slow")
    writing = open_problems(THERE, THERE, (0.02, 0.27), THERE, overdue_s=700, **slow_checkpoint)
    assert hang(writing) == []
    # The checkpoint of a large model takes that long.
    large = open_problems(THERE, THERE, (0.02, 0.27), THERE, overdue_s=700, checkpoint_s=400.0)
    assert hang(large) == []
    # The step that a long checkpoint interrupted goes on.
    busy = [(0.98, 0.12)] * 4
    assert hang(open_problems(*busy, overdue_s=700))
    assert hang(open_problems(*busy, overdue_s=700, **slow_checkpoint)) == []


def test_work_of_a_host_ends_no_hang_whose_alert_is_open() -> None:
    with_a_job = (0.04, 0.3)
    seen = open_problems(THERE, with_a_job, AWAY, THERE, overdue_s=60)
    assert hang(seen) == []
    evidence = {"since_s": float(seen.steps.ended_at_s[-1])}
    known = OpenProblem("hang", "hang", "calm", evidence=evidence)
    assert [each.node for each in hang(replace(seen, open_problems=(known,)))] == ["calm"]
    # The agent of the one that hangs restarts, too.
    nan = (float("nan"), float("nan"))
    mute = open_problems(THERE, with_a_job, nan, THERE, overdue_s=60, open_problems=(known,))
    assert [each.rule for each in hang(mute)] == ["hang"]
    # An alert about an earlier standstill says nothing about this one.
    old = OpenProblem("hang", "hang", "calm", evidence={"since_s": evidence["since_s"] - 100})
    assert hang(replace(seen, open_problems=(old,))) == []


@EITHER_WAY
def test_agents_that_restart_while_a_run_stands_still_are_no_crash(*, is_busy: bool) -> None:
    restarts = [
        Fault(kind="node_silent", node=f"run-0{i}", start_s=150 + 7 * i, duration_s=12)
        for i in (1, 3, 5)
    ]
    found = spells(
        life("trn1", duration_s=260, faults=[fault("hang"), *restarts], is_busy=is_busy)
    )
    assert {each.rule for each in found} == {"hang"}
    assert {each.node for each in found} == {"run-03", None}


@pytest.mark.parametrize("phase", ["pending", "compiling", "warming_up"])
def test_a_run_that_need_not_train_does_not_hang(phase: str) -> None:
    seen = open_problems(THERE, THERE, AWAY, overdue_s=300)
    since_s = float(seen.steps.ended_at_s[-1]) + 5
    still = open_problems(THERE, THERE, AWAY, overdue_s=300, phase=phase, phase_since_s=since_s)
    assert hang(still) == []


def test_a_run_that_has_just_begun_to_train_is_given_its_time() -> None:
    seen = open_problems(THERE, THERE, AWAY, overdue_s=60)
    began_s = seen.now_s - 5
    assert hang(open_problems(THERE, THERE, AWAY, overdue_s=60, phase_since_s=began_s)) == []


def test_monitoring_that_lags_sees_no_hang() -> None:
    seen = open_problems(THERE, THERE, AWAY, overdue_s=5)
    late = inputs(seen.steps, seen.hardware, hardware_at=seen.hardware_at, now_s=seen.now_s + 60)
    assert hang(late) == []


def test_hosts_that_report_nothing_blame_no_one() -> None:
    nan = (float("nan"), float("nan"))
    assert [each.node for each in hang(open_problems(nan, nan, nan, overdue_s=300))] == [None]


@EITHER_WAY
@pytest.mark.parametrize("run", ["trn1", "p5"])
@pytest.mark.parametrize("duration_s", [40, 90, 200])
def test_a_crash_is_one_alert_to_its_end(run: str, duration_s: float, *, is_busy: bool) -> None:
    crash = fault("node_crash", duration_s=duration_s)
    lived = life(run, duration_s=430, faults=[crash], is_busy=is_busy)
    (spell,) = spells(lived)
    assert (spell.rule, spell.cause, spell.node) == ("node_silent", "node_crash", "run-03")
    assert spell.first_s <= 136
    # Its peers give up after 120 s; until then a node that came back is still the culprit.
    assert spell.last_s >= 120 + min(duration_s, 118)


@EITHER_WAY
def test_of_two_nodes_the_survivor_of_a_crash_is_not_blamed(*, is_busy: bool) -> None:
    crash = fault("node_crash")
    found = spells(life("trn1", duration_s=300, nodes=4, faults=[crash], is_busy=is_busy))
    assert [spell.node for spell in found] == ["run-03"]
    silent = inputs(steps_at([0.1] * 9, n_workers=2))
    assert hang(silent) == []


@pytest.mark.parametrize(
    "event",
    [
        benign("checkpoint"),
        benign("evaluation"),
        benign("planned_compile", duration_s=100),
        benign("batch_change", magnitude=4.0),
        benign("scale_change", magnitude=0.5, duration_s=100),
        benign("node_leaves", node="run-03", duration_s=100),
        benign("node_joins", node="run-03"),
    ],
    ids=lambda event: event.kind,
)
def test_what_looks_like_it_is_not_found(event: Benign) -> None:
    assert spells(life("trn1", duration_s=360, benign=[event])) == []


@pytest.mark.parametrize(
    "kind",
    [
        ("slow_core", 20.0),
        ("throttle", 10.0),
        ("hbm_slow", 20.0),
        ("efa_latency", 20.0),
        ("input_stall", 40.0),
        ("checkpoint_slow", 20.0),
    ],
    ids=lambda kind: kind[0],
)
@EITHER_WAY
def test_slow_steps_are_not_a_hang(kind: tuple[str, float], *, is_busy: bool) -> None:
    slow = fault(kind[0], duration_s=120, magnitude=kind[1])
    assert spells(life("trn1", duration_s=360, faults=[slow], is_busy=is_busy)) == []


def of(found: list[Spell], rule: str) -> list[tuple[str, str | None]]:
    return [(spell.cause, spell.node) for spell in found if spell.rule == rule]


@EITHER_WAY
@pytest.mark.parametrize("silent", ["run-05", "run-02"])
def test_a_hang_while_another_node_is_silent_is_both_and_no_third(
    silent: str, *, is_busy: bool
) -> None:
    nodes = 4 if silent == "run-02" else 8
    mute = Fault(kind="node_silent", node=silent, start_s=110, duration_s=150)
    faults = [fault("hang"), mute]
    found = spells(life("trn1", duration_s=300, nodes=nodes, faults=faults, is_busy=is_busy))
    assert of(found, "hang") == [("hang", "run-03")]
    assert of(found, "node_silent") == [("node_silent", silent)]
    assert len(found) == 2


@EITHER_WAY
def test_a_node_that_falls_silent_during_a_hang_is_not_taken_for_dead(*, is_busy: bool) -> None:
    silent = Fault(kind="node_silent", node="run-05", start_s=150, duration_s=150)
    faults = [fault("hang"), silent]
    found = spells(life("trn1", duration_s=320, faults=faults, is_busy=is_busy))
    assert of(found, "hang") == [("hang", "run-03")]
    assert of(found, "node_silent") == [("node_silent", "run-05")]


def test_who_is_dead_stays_so_while_the_alert_is_open() -> None:
    lived: Life = life("trn1", duration_s=330, faults=[fault("node_crash", duration_s=180)])
    seen = dict(lived.watch())
    vital = lived.recording.at(260, open_problems=seen[259])
    assert vital.phase == "pending"
    assert crashed_nodes(vital) == {"run-03"}


@pytest.mark.parametrize("nodes", [1, 4])
def test_a_node_that_is_mute_during_a_long_checkpoint_has_not_crashed(nodes: int) -> None:
    silent = Fault(kind="node_silent", node="run-00", start_s=125, duration_s=60)
    writing = benign("checkpoint", duration_s=80)
    lived = life("trn1", duration_s=260, nodes=nodes, faults=[silent], benign=[writing])
    (spell,) = spells(lived)
    assert (spell.rule, spell.cause, spell.node) == ("node_silent", "node_silent", "run-00")


def test_a_node_that_trains_alone_and_crashes_is_known_at_last() -> None:
    lived = life("trn1", duration_s=420, nodes=1, faults=[alone(60)])
    assert [(spell.rule, spell.cause) for spell in spells(lived)] == [
        ("node_silent", "node_silent"),
        ("node_silent", "node_crash"),
    ]


def alone(duration_s: float) -> Fault:
    return Fault(kind="node_crash", node="run-00", start_s=120.4, duration_s=duration_s)


def test_a_first_step_that_never_ends_is_a_hang_after_ninety_seconds() -> None:
    seen = open_problems(THERE, THERE, AWAY, overdue_s=200)
    for since_s, expected in ((80.0, []), (95.0, ["calm"])):
        began_s = seen.now_s - since_s
        still = replace(seen, steps=seen.steps[:0], phase_since_s=began_s)
        assert [each.node for each in hang(still)] == expected


def test_who_is_mute_in_a_run_that_never_began_is_dead() -> None:
    nan = (float("nan"), float("nan"))
    seen = open_problems(THERE, THERE, nan, overdue_s=200)
    still = replace(seen, steps=seen.steps[:0], phase_since_s=seen.now_s - 95)
    assert crashed_nodes(still) == {"calm"}
    assert hang(still) == []
    # Steps older than this are not kept: by now an agent may restart.
    assert crashed_nodes(replace(still, phase_since_s=seen.now_s - 900)) == set()


def test_a_crash_lasts_until_what_the_returned_node_measured_arrives() -> None:
    nan = (float("nan"), float("nan"))
    seen = open_problems(THERE, THERE, nan, overdue_s=200)
    assert [each.rule for each in hang(seen)] == ["hang"]
    crash = OpenProblem("node_silent", "node_crash", "calm")
    (finding,) = hang(replace(seen, open_problems=(crash,)))
    assert (finding.rule, finding.cause, finding.node) == ("node_silent", "node_crash", "calm")


def test_a_host_with_other_work_does_not_end_an_alert_about_a_crash() -> None:
    nan, with_a_job = (float("nan"), float("nan")), (0.04, 0.3)
    crash = OpenProblem("node_silent", "node_crash", "calm")
    seen = open_problems(THERE, with_a_job, nan, overdue_s=80, open_problems=(crash,))
    assert [(each.rule, each.node) for each in hang(seen)] == [("node_silent", "calm")]
    assert hang(replace(seen, open_problems=())) == []


def with_alert(rule: str, cause: str) -> dict[str, Any]:
    return {"open_problems": (OpenProblem(rule, cause, "calm"),)}


def test_a_step_that_slow_links_delay_belongs_to_their_alert() -> None:
    slow_links = with_alert("efa_degraded", "efa_loss")
    assert hang(open_problems(THERE, THERE, THERE, overdue_s=300, **slow_links)) == []
    (endless,) = hang(open_problems(THERE, THERE, THERE, overdue_s=700, **slow_links))
    assert endless.cause == "unknown"


def test_a_worker_that_leaves_the_collective_hangs_whatever_the_links_do() -> None:
    (finding,) = hang(open_problems(THERE, THERE, AWAY, **with_alert("efa_degraded", "efa_loss")))
    assert (finding.cause, finding.node) == ("hang", "calm")


def test_a_slow_core_does_not_explain_that_no_node_computes() -> None:
    slow_core = with_alert("core_slow", "slow_core")
    assert hang(open_problems(THERE, THERE, THERE, overdue_s=40, **slow_core))


def after_long_step(overdue_s: float, *nodes: tuple[float, float]) -> DetectionInput:
    """Return a run whose last step took 60 seconds where the others took one."""
    seen = open_problems(*nodes, overdue_s=overdue_s)
    compute_s = seen.steps.phases["compute_s"].copy()
    compute_s[-1] = 60.0
    steps = replace(seen.steps, phases=dict(seen.steps.phases) | {"compute_s": compute_s})
    return replace(seen, steps=steps)


def test_a_step_may_take_as_long_as_the_last_one() -> None:
    assert hang(after_long_step(80, THERE, THERE, THERE)) == []
    assert hang(after_long_step(100, THERE, THERE, THERE))
    (finding,) = hang(after_long_step(12, THERE, THERE, AWAY))
    assert finding.node == "calm"


def silent_now_and_then(
    is_heard: Callable[[FloatArray], NDArray[np.bool_]], *, every_s: int, overdue_s: int = 80
) -> DetectionInput:
    """Return a run of three nodes and steps of 10 s that has ended none for ``overdue_s``.

    ``is_heard`` maps seconds since the last step ended, (n_ticks, 1), to (n_ticks, 3).
    """
    steps = steps_at([0.1] * 9, n_workers=3)
    steps.ended_at_s[:] = steps.ended_at_s[0] + 10 * np.arange(9)
    steps = replace(steps, phases={name: 10 * value for name, value in steps.phases.items()})
    ended_s, names = float(steps.ended_at_s[-1]), CHARACTERS[:3]
    now_s = float(np.ceil(ended_s + overdue_s))

    def hardware(metrics: object, last_s: int) -> Span:
        ticks = (now_s - np.arange(last_s)[::-1]).astype(int)
        heard = is_heard(ticks[:, None] - ended_s) & (ticks % every_s == 0)[:, None]
        levels = {"core_utilization_ratio": np.zeros(4), "vcpu_usage_ratio": np.full(1, 0.1)}
        values = {name: np.where(heard[..., None], v, np.nan) for name, v in levels.items()}
        return Span("llama/0", ticks, names, values)

    return inputs(
        steps,
        hardware,
        hardware_at=lambda metrics, ages_s: hardware(metrics, 200).at([now_s - a for a in ages_s]),
        now_s=now_s,
        report_every_s=every_s,
    )


@pytest.mark.parametrize(("seen_for_s", "dead"), [(3, {"calm"}), (16, {"calm"}), (60, set())])
def test_a_node_may_crash_at_any_time_of_the_step_in_progress(
    seen_for_s: float, dead: set[str]
) -> None:
    last_s = np.array([np.inf, np.inf, seen_for_s])
    assert crashed_nodes(silent_now_and_then(lambda s: s <= last_s, every_s=5)) == dead


@pytest.mark.parametrize(
    ("away_s", "every_s", "ends_s"),
    [
        pytest.param(6, 1, 5.0, id="another node is silent"),
        pytest.param(30, 5, 66.0, id="the newest reports of another node are missing"),
    ],
)
def test_who_was_away_for_a_moment_did_not_stop_a_run(
    away_s: int, every_s: int, ends_s: float
) -> None:
    left_s = np.array([np.inf, 1.0, np.inf])

    def find_lost(last_s: float) -> list[tuple[str, str | None]]:
        ends = np.array([np.inf, np.inf, last_s])
        seen = silent_now_and_then(
            lambda s: (s <= ends) & ((s < left_s) | (s > left_s + away_s)), every_s=every_s
        )
        return [(each.rule, each.node) for each in hang(seen)]

    assert find_lost(ends_s) == []
    assert find_lost(np.inf) == [("node_silent", "limping")]


@pytest.mark.parametrize("every_s", [1, 5])
def test_a_pause_of_monitoring_in_the_last_step_is_no_crash_of_all_nodes(every_s: int) -> None:
    seen = silent_now_and_then(
        lambda s: np.repeat((s <= 3) | (s > 40), 3, axis=1), every_s=every_s, overdue_s=100
    )
    assert crashed_nodes(seen) == set()
    assert [(each.rule, each.node) for each in hang(seen)] == [("hang", None)]


@pytest.mark.parametrize("every_s", [1, 5])
def test_who_falls_silent_while_the_others_wait_did_not_stop_the_run(every_s: int) -> None:
    last_s = np.array([np.inf, 23.0, 3.0])
    assert crashed_nodes(silent_now_and_then(lambda s: s <= last_s, every_s=every_s)) == {"calm"}


def test_the_last_execution_of_a_long_pause_is_known() -> None:
    def hardware(_: object, last_s: int) -> Span:
        ticks = (1_000 - np.arange(last_s)[::-1]).astype(int)
        rate = np.where(ticks <= 400, 50.0, 0.0)[:, None, None]
        return Span("llama/0", ticks, ("calm",), {"executions_completed_per_s": rate})

    nothing = steps_at([0.1])[:0]
    seen = DetectionInput("llama", ("calm",), nothing, hardware, 1_000.0, phase_since_s=10.0)
    assert no_step_since(seen, nothing) == 400


@pytest.mark.parametrize(
    ("every_s", "pause_s", "before_s", "dead"),
    [
        (1, 0, 0, {"calm"}),
        (1, 0, -14, set()),
        (5, 0, -14, set()),
        (5, 0, 19, {"calm"}),
        (5, 0, 40, {"calm"}),
        (5, 0, 60, set()),
        (5, 40, 70, {"calm"}),
        (15, 0, 75, {"calm"}),
        (15, 0, 90, set()),
    ],
)
def test_peers_of_a_crashed_node_execute_until_they_all_wait(
    every_s: int, pause_s: int, before_s: float, dead: set[str]
) -> None:
    """Without step reports it is unknown how long they do."""
    now_s, stopped_s, names = 1_000, 940 - 3 * pause_s, CHARACTERS[:3]

    def hardware(metrics: object, last_s: int) -> Span:
        ticks = (now_s - np.arange(last_s)[::-1]).astype(int)
        executes = (ticks <= stopped_s) & ((stopped_s - ticks) % (20 + pause_s) < 20)
        levels = {
            "core_utilization_ratio": np.where(executes, 0.9, 0.0),
            "vcpu_usage_ratio": np.full(len(ticks), 0.12),
            "executions_completed_per_s": np.where(executes, 1.0, 0.0),
        }
        is_heard = np.ones((len(ticks), 3, 1), bool)
        is_heard[:, 2] = (ticks <= stopped_s - before_s)[:, None]
        is_heard &= (ticks % every_s == 0)[:, None, None]
        values = {k: np.where(is_heard, v[:, None, None], np.nan) for k, v in levels.items()}
        return Span("llama/0", ticks, names, values)

    seen = DetectionInput(
        "llama",
        names,
        steps_at([0.1])[:0],
        hardware,
        now_s,
        hardware_at=lambda metrics, ages_s: hardware(metrics, 900).at([now_s - a for a in ages_s]),
        phase_since_s=10.0,
        report_every_s=every_s,
    )
    assert crashed_nodes(seen) == dead
