"""Executions that fail: a stream of errors is found, a hiccup is not."""

import json

import numpy as np
import pytest

from telemetry.blocks import FloatArray, Span
from telemetry.detect.inputs import OpenProblem
from telemetry.detect.node_errors import AGES_OPEN_S, AGES_S, GLANCE_S, exec_errors, failing
from telemetry.simulate.plan import Fault
from tests.telemetry.detect.lives import life
from tests.telemetry.detect.runs import CHARACTERS, inputs, steps_at

NODES = CHARACTERS[:3]


def errors(rate: FloatArray, *, done: float = 50.0) -> Span:
    """Return (n_moments, n_nodes) errors per second, one moment a second."""
    values = {
        "execution_errors_per_s": rate[..., None],
        "executions_failed_per_s": rate[..., None].copy(),
        "executions_completed_per_s": np.full((*rate.shape, 1), done),
    }
    return Span("s", 1_000 + np.arange(len(rate)), NODES, values)


def test_no_errors_are_no_finding() -> None:
    assert failing(errors(np.zeros((6, 3))), run="llama", now_s=1_006) == []
    assert failing(errors(np.full((6, 3), np.nan)), run="llama", now_s=1_006) == []
    assert failing(Span("s", np.arange(6), NODES, {}), run="llama", now_s=1_006) == []


def test_a_stream_of_errors_names_its_node_and_pages() -> None:
    rate = np.zeros((6, 3))
    rate[3:, 1] = 2.0
    (finding,) = failing(errors(rate), run="llama", now_s=1_006)
    assert (finding.rule, finding.cause, finding.node) == ("exec_errors",) * 2 + ("limping",)
    assert (finding.severity, finding.onset_s) == ("page", 1_003)
    assert finding.evidence["failed_ratio"] == pytest.approx(1 / 51)
    assert json.loads(json.dumps(finding.evidence, allow_nan=False)) == finding.evidence


def test_a_few_errors_among_many_executions_can_wait_for_the_morning() -> None:
    rate = np.zeros((6, 3))
    rate[::2, 1] = 0.1
    (finding,) = failing(errors(rate), run="llama", now_s=1_006)
    assert finding.severity == "warn"


def test_a_single_hiccup_is_not_found_unless_it_is_known() -> None:
    rate = np.zeros((6, 3))
    rate[4, 1] = 1.0
    assert failing(errors(rate), run="llama", now_s=1_006) == []
    (finding,) = failing(errors(rate), run="llama", now_s=1_006, known={"limping"})
    assert finding.node == "limping"


def test_a_node_that_executes_nothing_has_no_share_that_fails() -> None:
    rate = np.zeros((6, 3))
    rate[3:, 0] = 0.1
    span = errors(rate, done=0.0)
    span.values["executions_failed_per_s"][:] = 0
    (finding,) = failing(span, run="llama", now_s=1_006)
    assert finding.evidence["failed_ratio"] is None


def test_it_looks_back_further_while_it_lasts() -> None:
    asked: list[tuple[int, ...]] = []

    def hardware_at(_: object, ages_s: tuple[int, ...]) -> Span:
        asked.append(tuple(ages_s))
        return errors(np.ones((len(ages_s), 3)))

    seen = inputs(steps_at([0.1] * 9), hardware_at=hardware_at)
    assert len(exec_errors(seen)) == 3
    exec_errors(inputs(seen.steps, hardware_at=hardware_at, open_problems=(_open("exec_errors"),)))
    assert asked == [GLANCE_S, AGES_S, AGES_OPEN_S]
    assert exec_errors(inputs(seen.steps, hardware_at=hardware_at, reads_hardware=False)) == []
    assert exec_errors(inputs(seen.steps)) == []


def _open(rule: str) -> OpenProblem:
    return OpenProblem(rule, rule, "limping")


def test_executions_that_fail_on_failing_memory_are_part_of_that() -> None:
    def hardware_at(_: object, ages_s: tuple[int, ...]) -> Span:
        return errors(np.array([[0.0, 1.0, 0.0]] * len(ages_s)))

    steps = steps_at([0.1] * 9)
    assert len(exec_errors(inputs(steps, hardware_at=hardware_at))) == 1
    for rule in ("ecc_uncorrected", "device_unhealthy"):
        known = (_open(rule),)
        assert exec_errors(inputs(steps, hardware_at=hardware_at, open_problems=known)) == []


@pytest.mark.parametrize("per_minute", [6.0, 600.0])
def test_memory_errors_of_a_run_are_never_reported_twice(per_minute: float) -> None:
    sick = Fault(
        kind="ecc_uncorrected",
        node="run-03",
        device=2,
        start_s=100,
        duration_s=40,
        magnitude=per_minute,
    )
    lived = life("trn1", duration_s=160, faults=[sick])
    assert [f for second in range(60, 160) for f in exec_errors(lived.recording.at(second))] == []
