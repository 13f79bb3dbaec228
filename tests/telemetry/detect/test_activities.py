"""A run that ends no step: what its workers say that they do tells why."""

from dataclasses import replace

import numpy as np
import pytest

from telemetry.detect import find
from telemetry.detect.inputs import DetectionInput, OpenProblem
from telemetry.detect.stopped import missing_workers
from telemetry.steps import WorkerState
from tests.telemetry.detect.runs import CHARACTERS, inputs, steps_at


def stopped(
    *activities: str, overdue_s: float = 60.0, silent_s: float = 0.0, since_s: float = 0.0
) -> DetectionInput:
    """A run of one-second steps that ended one so long ago; its first worker may be silent."""
    steps = steps_at([0.1] * 30, n_workers=len(activities))
    ended_s = float(steps.ended_at_s[-1])
    now_s = float(np.ceil(ended_s + overdue_s))
    states = {
        name: WorkerState(name, now_s - (silent_s if i == 0 else 5.0), activity, ended_s + since_s)
        for i, (name, activity) in enumerate(zip(CHARACTERS, activities, strict=False))
    }
    return inputs(steps, now_s=now_s, workers=lambda: states)


def with_state(data: DetectionInput, state: WorkerState) -> DetectionInput:
    """Return the same with what one worker says."""
    assert data.workers is not None
    states = dict(data.workers()) | {state.node: state}
    return replace(data, workers=lambda: states)


def found(data: DetectionInput) -> list[tuple[str, str, str | None]]:
    return [(each.rule, each.cause, each.node) for each in find(data)]


def test_a_worker_without_heartbeats_has_crashed() -> None:
    data = stopped("step", "step", "step", overdue_s=35, silent_s=36)
    assert found(data) == [("hang", "node_crash", "steady")]


def test_after_a_silence_of_all_workers_none_is_dead_before_it_had_time_to_be_back() -> None:
    data = stopped("step", "step", "step", overdue_s=35, silent_s=36)
    assert data.workers is not None
    states = dict(data.workers())

    def returned(ago_s: float) -> DetectionInput:
        back = {
            name: replace(state, back_s=data.now_s - ago_s)
            for name, state in states.items()
            if name != "steady"
        }
        return replace(data, workers=lambda: {"steady": states["steady"], **back})

    assert found(returned(39.0)) == []
    assert found(returned(41.0)) == [("hang", "node_crash", "steady")]


def test_a_worker_that_is_not_in_the_step_of_the_others_is_named() -> None:
    data = stopped("input", "step", "step", "step")
    assert found(data) == [("hang", "hang", "steady")]


def test_a_worker_that_is_the_first_to_leave_a_long_step_is_not_late() -> None:
    data = stopped("step", "step", "step", "step")
    left = WorkerState("steady", data.now_s, "input", data.now_s)
    assert found(with_state(data, left)) == [("hang", "hang", None)]


def test_a_worker_whose_activity_keeps_changing_is_not_in_the_step_of_the_others() -> None:
    data = stopped("step", "step", "step", "step", overdue_s=120)
    tries = WorkerState("steady", data.now_s - 1, "input", data.now_s - 8)
    assert found(with_state(data, tries)) == [("hang", "hang", "steady")]


def test_workers_that_all_wait_within_their_step_hang_without_a_culprit() -> None:
    assert found(stopped("step", "step", "step", "step")) == [("hang", "hang", None)]
    assert found(stopped("step", "step", "step", "step", overdue_s=20)) == []


@pytest.mark.parametrize("activity", ["checkpoint", "other", "input"])
def test_what_the_workers_do_together_is_no_hang(activity: str) -> None:
    assert found(stopped(*[activity] * 4)) == []


@pytest.mark.parametrize("activity", ["checkpoint", "other"])
def test_what_one_worker_does_for_all_is_no_hang(activity: str) -> None:
    """The first rank alone saves or evaluates, and the others wait for it in a collective."""
    assert found(stopped(activity, "step", "step", "step", overdue_s=590)) == []


def test_an_evaluation_of_one_worker_that_does_not_end_is_a_hang() -> None:
    data = stopped("other", "step", "step", "step", overdue_s=700)
    assert found(data) == [("hang", "hang", "steady")]


def test_an_endless_evaluation_is_a_hang() -> None:
    assert found(stopped(*["other"] * 4, overdue_s=700)) == [("hang", "unknown", None)]


def test_an_endless_checkpoint_is_a_slow_one_with_who_says_so() -> None:
    """Nothing is known of earlier ones, nor of the model."""
    assert found(stopped(*["checkpoint"] * 4, overdue_s=590)) == []
    (slow,) = find(stopped(*["checkpoint"] * 3, "step", overdue_s=700))
    assert (slow.rule, slow.cause, slow.node) == ("checkpoint_slow", "checkpoint_slow", None)
    assert slow.evidence["said_by"] == list(CHARACTERS[:3])
    assert slow.evidence["baseline_phase_s"] is None


@pytest.mark.parametrize(("overdue_s", "rules"), [(85, []), (92, ["checkpoint_slow"])])
def test_a_said_checkpoint_is_slow_at_three_times_its_expected_time(
    overdue_s: float, rules: list[str]
) -> None:
    data = replace(stopped(*["checkpoint"] * 4, overdue_s=overdue_s), checkpoint_s=30.0)
    findings = find(data)
    assert [each.rule for each in findings] == rules
    # There was none before it.
    assert all(each.evidence["is_expected"] for each in findings)


@pytest.mark.parametrize(("overdue_s", "rules"), [(355, []), (365, ["checkpoint_slow"])])
def test_one_worker_that_saves_for_all_writes_as_much_as_all(
    overdue_s: float, rules: list[str]
) -> None:
    data = stopped("checkpoint", "step", "step", "step", overdue_s=overdue_s)
    assert [each.rule for each in find(replace(data, checkpoint_s=30.0))] == rules


@pytest.mark.parametrize("n_nodes_say_so", [1, 3, 4])
@pytest.mark.parametrize(("overdue_s", "n_found"), [(55, 0), (62, 1)])
def test_a_said_checkpoint_is_slow_at_three_times_those_of_its_run(
    overdue_s: float, n_found: int, n_nodes_say_so: int
) -> None:
    """Whatever its size should take: the model is large, and its storage fast."""
    said = ["checkpoint"] * n_nodes_say_so + ["step"] * (4 - n_nodes_say_so)
    data = stopped(*said, overdue_s=overdue_s)
    phases = dict(data.steps.phases)
    phases["checkpoint_s"] = phases["checkpoint_s"].copy()
    phases["checkpoint_s"][[5, 12, 19]] = [[20.0], [22.0], [21.0]]
    data = replace(data, steps=replace(data.steps, phases=phases), checkpoint_s=300.0)
    slow = [each for each in find(data) if each.rule == "checkpoint_slow"]
    assert len(slow) == n_found
    for each in slow:
        assert each.evidence["baseline_phase_s"] == 20.0
        assert not each.evidence["is_expected"]
        assert each.evidence["said_by"] == list(CHARACTERS[:n_nodes_say_so])


def test_a_run_that_says_what_it_writes_is_not_silent_when_few_hosts_do() -> None:
    data = stopped(*["checkpoint"] * 4, overdue_s=700)
    data = replace(data, hardware_at=lambda metrics, ages_s: data.hardware(metrics, len(ages_s)))
    assert [each.rule for each in find(data)] == ["checkpoint_slow"]


def test_an_endless_checkpoint_with_an_alert_is_no_second_one() -> None:
    data = stopped(*["checkpoint"] * 4, overdue_s=700)
    slow = OpenProblem("checkpoint_slow", "checkpoint_slow", evidence={"onset_s": data.now_s})
    found_rules = [each.rule for each in find(replace(data, open_problems=(slow,)))]
    assert "hang" not in found_rules


def test_a_step_after_an_evaluation_has_its_own_time() -> None:
    assert found(stopped("step", "step", "step", "step", overdue_s=100, since_s=80)) == []


@pytest.mark.parametrize("n_compile", [1, 4])
def test_workers_that_compile_without_notice_are_a_recompile(n_compile: int) -> None:
    """One compiles for all where the others wait for its lock."""
    data = stopped(*["compile"] * n_compile, *["step"] * (4 - n_compile), overdue_s=45)
    data = replace(data, hardware_at=lambda metrics, ages_s: data.hardware(metrics, len(ages_s)))
    assert found(data) == [("recompile", "recompile", None)]


def test_workers_of_an_older_reporter_say_nothing() -> None:
    assert found(stopped("", "", "", "", overdue_s=25)) == []
    assert found(stopped("", "", "", "")) == [("hang", "unknown", None)]


def ended(
    *, heard_s: tuple[float, ...] = (0, 0, 0, 0), overdue_s: float = 35, since_s: float = 1.0
) -> DetectionInput:
    """A run whose workers were heard last so many seconds after its last step."""
    data = stopped("step", "step", "step", "step", overdue_s=overdue_s)
    last_s = float(data.steps.ended_at_s[-1])
    states = {
        name: WorkerState(name, last_s + each, "", since_s)
        for name, each in zip(CHARACTERS, heard_s, strict=True)
    }
    return replace(data, workers=lambda: states)


@pytest.mark.parametrize("heard_s", [(0, 0, 0, 0), (0, 1, 0, 1), (2, 11, 7, 5)])
def test_workers_that_all_stop_at_once_warn(heard_s: tuple[float, ...]) -> None:
    (finding,) = find(ended(heard_s=heard_s))
    assert (finding.rule, finding.cause, finding.node) == ("hang", "workers_ended", None)
    assert finding.severity == "warn"


@pytest.mark.parametrize(
    ("data", "causes"),
    [
        # The next heartbeats may still come.
        (ended(overdue_s=20), []),
        # One died, and the others waited for it.
        (ended(heard_s=(0, 30, 30, 30), overdue_s=60), ["unknown"]),
        # They never sent any.
        (ended(since_s=0.0, overdue_s=60), ["unknown"]),
        # They hang, and say so.
        (stopped("step", "step", "step", "step"), ["hang"]),
        # The run stopped half a minute after the first worker had.
        (ended(heard_s=(0, 12, 12, 12), overdue_s=60), ["unknown"]),
    ],
)
def test_workers_that_did_not_stop_at_once_do_not(data: DetectionInput, causes: list[str]) -> None:
    assert [(each.cause) for each in find(data)] == causes


def test_workers_that_do_different_things_are_no_checkpoint() -> None:
    assert found(stopped("step", "step", "checkpoint", "checkpoint")) == []


def test_workers_within_their_step_may_need_as_long_as_for_the_last() -> None:
    data = stopped("step", "step", "step", overdue_s=80)
    compute_s = data.steps.phases["compute_s"].copy()
    compute_s[-1] = 60.0
    slow = replace(data.steps, phases=dict(data.steps.phases) | {"compute_s": compute_s})
    assert found(data) == [("hang", "hang", None)]
    assert found(replace(data, steps=slow)) == []
    assert found(replace(data, steps=slow, now_s=data.now_s + 20)) == [("hang", "hang", None)]


def test_a_single_worker_between_two_heartbeats_is_not_accused() -> None:
    """Its steps may take longer than the ten seconds between two heartbeats."""
    for overdue_s in range(11, 30, 3):
        assert found(replace(stopped("step", overdue_s=overdue_s), workers=dict)) == []
    data = replace(stopped("step", overdue_s=130), workers=dict)
    assert found(data) == [("hang", "hang", "steady")]


def test_a_batch_three_times_as_large_is_no_hang() -> None:
    steps = steps_at([0.1] * 30, n_workers=4)
    longer = replace(
        steps,
        ended_at_s=steps.ended_at_s[0] + 12 * np.arange(30.0),
        phases={name: 12 * value for name, value in steps.phases.items()},
    )
    for overdue_s, wanted in ((85, []), (95, [("hang", "hang", None)])):
        now_s = float(longer.ended_at_s[-1] + overdue_s)
        began_s = float(longer.ended_at_s[-1])
        states = {name: WorkerState(name, now_s - 5, "step", began_s) for name in CHARACTERS}
        assert found(inputs(longer, now_s=now_s, workers=lambda s=states: s)) == wanted


def test_a_worker_that_crashed_stays_so_when_its_last_heartbeat_is_forgotten() -> None:
    crashed = OpenProblem("hang", "node_crash", "steady")
    data = replace(stopped("step", "step", "step", overdue_s=700), open_problems=(crashed,))
    assert data.workers is not None
    states = dict(data.workers())
    assert found(data) != [("hang", "node_crash", "steady")]
    del states["steady"]
    forgotten = replace(data, workers=lambda: states)
    assert found(forgotten) == [("hang", "node_crash", "steady")]
    states.clear()
    assert found(forgotten) == [("hang", "node_crash", "steady")]


def arrived(
    ranks: tuple[int, ...], *, n_workers: int = 4, after_s: float = 301.0, phase: str = "compiling"
) -> DetectionInput:
    """A run without steps whose workers were heard last so long after the first of them."""
    states = {
        str(i): WorkerState("steady", 1000 + after_s, "other", 1000, rank, n_workers, 1000.0)
        for i, rank in enumerate(ranks)
    }
    data = replace(stopped("step", "step", "step", "step"), phase=phase)
    return replace(data, workers=lambda: states)


@pytest.mark.parametrize(
    ("ranks", "n_missing", "named"),
    [((0, 1, 2), 1, [3]), ((3, 1), 2, [0, 2]), ((0, 0, 0), 1, [])],
)
def test_workers_that_do_not_arrive_are_named(
    ranks: tuple[int, ...], n_missing: int, named: list[int]
) -> None:
    (finding,) = missing_workers(arrived(ranks))
    assert (finding.rule, finding.severity, finding.onset_s) == ("workers_missing", "warn", 1000)
    assert (finding.evidence["n_missing"], finding.evidence["n_workers"]) == (n_missing, 4)
    assert finding.evidence["missing_ranks"] == named


@pytest.mark.parametrize(
    "data",
    [
        arrived((0, 1, 2, 3)),
        arrived((0, 1, 2), after_s=300.0),
        arrived((0, 1, 2), n_workers=0),
        arrived((0, 1, 2), phase="training"),
        replace(arrived((0, 1, 2)), workers=None),
    ],
    ids=("all arrived", "may still come", "not announced", "trains", "no reports"),
)
def test_workers_are_not_missing(data: DetectionInput) -> None:
    assert missing_workers(data) == []
