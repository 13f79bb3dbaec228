"""What is found before a long step ends, or by a single one: uneven work, input, a checkpoint."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from telemetry.blocks import FloatArray, Span
from telemetry.detect import find
from telemetry.detect.fabric import find_efa_symptoms
from telemetry.detect.stragglers import find_uneven_work
from telemetry.simulate.plan import Fault
from telemetry.steps import WorkerState
from tests.telemetry.detect.played import record
from tests.telemetry.detect.runs import CHARACTERS, inputs, steps_of


def after_calm(newest: Sequence[float], *, n_steps: int = 20) -> FloatArray:
    """Return compute times of calm steps of ten seconds, and then one like this."""
    rng = np.random.default_rng(5)
    calm = 10.0 * (1 + 0.003 * rng.standard_normal((n_steps, len(newest))))
    return np.vstack([calm, 10.0 * np.array(newest)])


def causes(compute_s: FloatArray, *, accused: Sequence[str] = ()) -> list[str]:
    names = tuple(f"node-{i}" for i in range(compute_s.shape[1]))
    steps = steps_of(compute_s, workers=names)
    seen = inputs(steps, nodes=names)
    return [problem.cause for problem in find_uneven_work(seen, steps, accused=set(accused))]


def test_one_long_step_of_few_workers_reports_uneven_work() -> None:
    assert causes(after_calm([1.3, 1.0, 1.12])) == ["seq_imbalance"]


@pytest.mark.parametrize("newest", [[1.3, 1.0, 1.0], [1.3, 1.3, 1.3], [1.02, 1.0, 0.99]])
def test_one_late_worker_or_a_lower_clock_is_no_uneven_work(newest: list[float]) -> None:
    assert causes(after_calm(newest)) == []


def test_a_worker_that_becomes_slow_within_a_step_is_no_uneven_work() -> None:
    calm = after_calm([1.0, 1.0, 1.0, 1.0])
    later = 10.0 * np.array([[1.9, 1.0, 1.0, 1.0], [2.8, 1.0, 1.0, 1.0]])
    assert causes(np.vstack([calm, later])) == []
    uneven = 10.0 * np.array([[1.9, 1.0, 1.4, 1.0], [1.0, 2.8, 1.0, 1.6]])
    assert causes(np.vstack([calm, uneven])) == ["seq_imbalance"]


def test_workers_whose_machines_are_accused_do_not_count() -> None:
    assert causes(after_calm([1.3, 1.0, 1.12]), accused=["node-0"]) == []


def test_one_long_step_of_many_workers_reports_even_a_little_unevenness() -> None:
    luck = np.random.default_rng(1).uniform(size=16)
    assert causes(after_calm((1 + 0.25 * luck**3).tolist())) == ["seq_imbalance"]


def test_half_of_the_workers_late_by_the_same_are_a_long_stage() -> None:
    assert causes(after_calm([1.0] * 8 + [1.3] * 8)) == []


def test_a_stage_twice_as_long_scatters_twice_as_much() -> None:
    scatter = 2 * (1 + 0.01 * np.linspace(-1, 1, 8))
    assert causes(after_calm([1.0] * 8 + scatter.tolist())) == []


def test_a_node_that_waits_for_its_data_is_found_before_its_step_ends() -> None:
    stall = Fault(kind="input_stall", node="run-03", start_s=130.0, duration_s=90.0, magnitude=40)
    played = record("trn1", duration_s=220, global_batch=1024, faults=[stall])
    ends = played.steps.ended_at_s - played.steps.ended_at_s[0]
    assert float(np.median(np.diff(ends))) > 10
    second, found = next((at, found) for at, found in played.watch(range(130, 220)) if found)
    assert [(each.rule, each.node) for each in found] == [("input_stall", "run-03")]
    assert float(played.at(second).steps.phases["input_s"].max()) < 1


@pytest.mark.parametrize(
    ("first", "others", "loaded_s", "node"),
    [
        ("input", "step", 10.5, "steady"),
        # Loaders wait for some seconds now and then.
        ("input", "step", 9.0, None),
        ("input", "input", 10.5, None),
        ("step", "step", 10.5, None),
    ],
)
def test_a_node_that_says_that_it_loads_is_found_before_its_step_ends(
    first: str, others: str, loaded_s: float, node: str | None
) -> None:
    steps = steps_of(after_calm([1.0, 1.0, 1.0, 1.0]))
    began_s = float(steps.ended_at_s[-1]) + 3
    said = {
        name: WorkerState(name, began_s + loaded_s, first if i == 0 else others, began_s)
        for i, name in enumerate(CHARACTERS)
    }
    seen = inputs(steps, now_s=began_s + 12, workers=lambda: said)
    found = [(each.rule, each.node) for each in find(seen)]
    assert found == ([] if node is None else [("input_stall", node)])


@pytest.mark.parametrize(("others_s", "nodes"), [(0.0, ["steady"]), (15.0, [])])
def test_the_last_of_all_that_wait_for_data_is_no_culprit(
    others_s: float, nodes: list[str]
) -> None:
    steps = steps_of(after_calm([1.0, 1.0, 1.0, 1.0]))
    ended_s = float(steps.ended_at_s[-1])
    said = {
        name: WorkerState(
            name,
            ended_s + 35,
            "step" if i else "input",
            ended_s + (others_s if i else 0.0),
        )
        for i, name in enumerate(CHARACTERS)
    }
    seen = inputs(steps, now_s=ended_s + 36, workers=lambda: said)
    assert [each.node for each in find(seen) if each.rule == "input_stall"] == nodes


@pytest.mark.parametrize(("job_s", "nodes"), [(40, ["calm"]), (9, [])])
def test_a_host_that_has_a_job_after_its_node_left_the_run_does_not_load(
    job_s: int, nodes: list[str]
) -> None:
    steps = steps_of(after_calm([1.0, 1.0, 1.0, 1.0]))
    ended_s = int(steps.ended_at_s[-1])
    now_s = ended_s + 30

    def hardware(_: object, last_s: int) -> Span:
        ticks = np.arange(now_s - last_s + 1, now_s + 1)
        cores, hosts = np.full((last_s, 4, 8), 0.95), np.full((last_s, 4, 1), 0.11)
        cores[ticks > ended_s, 2] = 0.0
        hosts[ticks > ended_s, 2] = 0.016
        hosts[(ticks > ended_s) & (ticks > now_s - job_s), 2] = 0.25
        values = {"core_utilization_ratio": cores, "vcpu_usage_ratio": hosts}
        return Span("x", ticks, CHARACTERS, values)

    seen = inputs(steps, hardware, now_s=float(now_s))
    assert [each.node for each in find(seen) if each.rule == "input_stall"] == nodes


@pytest.mark.parametrize("every_s", [1, 5])
@pytest.mark.parametrize(
    ("computed_s", "nodes"), [(0, ["limping"]), (3, ["limping"]), (8, []), (10, [])]
)
def test_a_host_that_has_a_job_while_its_node_waits_for_the_other_does_not_load(
    computed_s: int, nodes: list[str], every_s: int
) -> None:
    steps = steps_of(after_calm([1.0, 1.0]))
    ended_s = int(steps.ended_at_s[-1])
    now_s = ended_s + computed_s + 28

    def hardware(_: object, last_s: int) -> Span:
        seconds = np.arange(now_s - 200, now_s + 10)
        works = seconds[:, None] <= ended_s + np.array([60, computed_s])
        cores = np.repeat(np.where(works, 0.95, 0.0)[..., None], 8, axis=2)
        hosts = np.where(works, 0.11, 0.25)[..., None]
        # A report says what its seconds were in the mean.
        of_report = [np.flatnonzero(seconds // every_s == each // every_s) for each in seconds]
        values = {
            name: np.stack([each[rows].mean(axis=0) for rows in of_report])[-last_s - 9 : -9]
            for name, each in (("core_utilization_ratio", cores), ("vcpu_usage_ratio", hosts))
        }
        return Span("x", seconds[-last_s - 9 : -9], CHARACTERS[:2], values)

    seen = inputs(steps, hardware, now_s=float(now_s), report_every_s=every_s)
    assert [each.node for each in find(seen) if each.rule == "input_stall"] == nodes


def test_whose_checkpoint_is_slow_is_reported() -> None:
    slow = Fault(
        kind="checkpoint_slow", node="run-05", start_s=130.0, duration_s=20.0, magnitude=6
    )
    played = record("trn1", duration_s=230, faults=[slow])
    found = next(found for _, found in played.watch(range(130, 230)) if found)
    assert [(each.cause, each.node) for each in found] == [("checkpoint_slow", "run-05")]


def test_losses_on_a_quiet_link_are_counted_for_minutes() -> None:
    def hardware(metrics: Sequence[str], last_s: int) -> Span:
        ticks = np.arange(1000 - last_s + 1, 1001)
        values = {name: np.full((last_s, 3, 4), np.nan) for name in metrics}
        if "efa_tx_packets_per_s" in values:
            values["efa_tx_packets_per_s"] = np.full((last_s, 3, 4), 50.0)
            again = np.zeros((last_s, 3, 4))
            again[ticks % 12 == 0, 1, 2] = 1.0
            values["efa_retransmits_per_s"] = again
        return Span("x", ticks, ("a", "b", "c"), values)

    steps = steps_of(after_calm([1.0, 1.0, 1.0]), workers=("a", "b", "c"))
    seen = inputs(steps, hardware, nodes=("a", "b", "c"), now_s=1000.0)
    [found] = find_efa_symptoms(seen)
    assert (found.cause, found.node, found.device) == ("efa_loss", "b", 2)
    assert not [each for each in find(seen) if each.rule != "efa_degraded"]


@pytest.mark.parametrize("late", [[1.3, 1.02, 1.04, 1.0], [1.09, 1.02, 1.3, 1.0]])
def test_three_of_four_late_by_unlike_amounts_are_uneven_at_once(late: list[float]) -> None:
    compute = np.vstack([after_calm(late)[:-1] * 0.6, 6.0 * np.array([late])])
    assert causes(compute) == ["seq_imbalance"]


@pytest.mark.parametrize("late", [[1.3, 1.3, 1.3, 1.0], [1.3, 1.02, 1.0, 1.0]])
def test_three_late_alike_or_one_and_a_stumble_are_not(late: list[float]) -> None:
    compute = np.vstack([after_calm(late)[:-1] * 0.6, 6.0 * np.array([late])])
    assert causes(compute) == []


@pytest.mark.parametrize("phase", ["input_s", "other_s"])
def test_one_slow_batch_of_one_worker_accuses_no_node(phase: str) -> None:
    def found(n_late: int, step_s: float) -> set[str | None]:
        late = np.zeros((40, 4))
        late[-n_late:, 1] = 3.0 * step_s / 6.5
        rest = np.random.default_rng(1).normal(1.0, 0.003, (40, 4))
        more: dict[str, Any] = {phase: late}
        return {each.node for each in find(inputs(steps_of(step_s * rest, **more)))}

    for step_s in (0.5, 6.5, 20.0):
        assert found(1, step_s) == set()
    if phase == "input_s":
        assert found(2, 6.5) == {CHARACTERS[1]}
