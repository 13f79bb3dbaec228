"""The table of causes: what explains symptoms, what they rule out, and when a class is named."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from telemetry.detect import RULES
from telemetry.detect.causes import (
    BY_NAME,
    CAUSE_OF_PHASE,
    CAUSES,
    HARDWARE_CAUSES,
    SYMPTOMS,
    Cause,
    best_explanation,
    explanations_json,
    refine,
    separable,
)
from telemetry.detect.findings import Problem
from telemetry.detect.symptoms import MEASURES, Case
from telemetry.simulate.plan import Fault
from tests.telemetry.detect.played import Recording, record

QUIET_EFA = {"efa_latency": 0, "efa_retransmits": 0, "efa_device_bytes": 0}
ROOT = Path(__file__).parents[3]
FAULTS = ROOT / "docs" / "faults.md"
# The link between a host and its devices is slow: the host has no more work than before.
SLOW_LINK = Cause(
    "pcie_slow",
    "node",
    raises=("step_s", "input_s"),
    leaves=("host_busier", "compute_s", "transfer_s"),
    phase="input_s",
    rule="input_stall",
)


@pytest.mark.parametrize("cause", CAUSES, ids=lambda cause: cause.name)
def test_each_row_is_consistent_and_documented(cause: Cause) -> None:
    changed = {*cause.raises, *cause.lowers}
    assert changed.isdisjoint(cause.leaves)
    assert cause.name in FAULTS.read_text()
    assert cause.rule in RULES


def test_a_slow_step_alone_names_nothing() -> None:
    assert best_explanation({"step_s": 1}, scope="run") == "unknown"


def test_a_slow_transfer_without_probes_is_the_network() -> None:
    seen = {"step_s": 1, "transfer_s": 1, "wait_s": 0, "efa_retransmits": 0, "efa_device_bytes": 0}
    assert best_explanation(seen, scope="run") == "network"
    assert best_explanation(seen | {"efa_latency": 1}, scope="run") == "efa_latency"


def test_steady_slow_steps_with_a_healthy_network_are_slow_compute() -> None:
    seen = {"step_s": 1, "input_s": 0, "step_jitter": 0, "stage_longer": 0} | QUIET_EFA
    assert best_explanation(seen, scope="run") == "slow_compute"
    assert best_explanation(seen | {"step_jitter": 1}, scope="run") == "seq_imbalance"


def test_a_busy_device_is_throttled_only_if_its_memory_is_measured() -> None:
    seen = {"step_s": 1, "device_busier": 1, "core_busier": 0}
    assert separable("throttle", seen, scope="node") == "slow_compute"
    assert separable("throttle", seen | {"hbm_bandwidth": 0}, scope="node") == "throttle"


def test_the_table_says_why_a_cause_was_rejected() -> None:
    seen = {"step_s": 1, "transfer_s": 1, "efa_retransmits": 1}
    rows = {row["cause"]: row for row in explanations_json(seen, scope="node", named="efa_loss")}
    assert next(iter(rows)) == "efa_loss"
    assert rows["efa_loss"]["verdict"] == "named"
    assert rows["efa_latency"]["contradicting"] == ["efa_retransmits"]
    assert rows["hbm_slow"]["unmeasured"] == ["device_busier", "hbm_bandwidth"]


def test_each_symptom_has_one_measure_and_a_text() -> None:
    assert set(SYMPTOMS) == set(MEASURES)
    texts = (ROOT / "templates/alerts/_symptoms.html").read_text()
    assert [name for name in MEASURES if f"partialdef {name} " not in texts] == []


def test_a_class_does_not_make_a_cause_one_of_hardware() -> None:
    assert set(HARDWARE_CAUSES) == {c.name for c in CAUSES if c.is_hardware} | {"slow_compute"}
    assert CAUSE_OF_PHASE["input_s"] == "input_stall"
    assert CAUSE_OF_PHASE["compute_s"] == "slow_compute"


def test_a_cause_stays_until_another_one_explains_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BY_NAME, SLOW_LINK.name, SLOW_LINK)
    seen = {"step_s": 1, "input_s": 1}
    assert refine("input_stall", seen, scope="node") == "input_stall"
    assert refine("pcie_slow", seen, scope="node") == "pcie_slow"
    assert refine("input_stall", seen | {"host_busier": 0}, scope="node") == "pcie_slow"
    assert refine("pcie_slow", seen | {"host_busier": 1}, scope="node") == "input_stall"
    assert best_explanation(seen, scope="node") == "input_stall"
    # The input is as before: the alert is about to end.
    for sign in (0, -1):
        assert refine("pcie_slow", {"step_s": 1, "input_s": sign}, scope="node") == "pcie_slow"
    contradicted = {"step_s": 1, "input_s": 0, "compute_s": 1}
    assert refine("pcie_slow", contradicted, scope="node") == "input_stall"


def test_what_no_row_explains_has_the_default_of_its_phase() -> None:
    assert refine("input_stall", {"input_s": 0, "compute_s": 1}, scope="node") == "input_stall"
    assert refine("seq_imbalance", {"step_jitter": 0}, scope="run") == "seq_imbalance"


@pytest.fixture(scope="module", params=[0.3, 1.0])
def stalled(request: pytest.FixtureRequest) -> Recording:
    """Play late input on one node, whose host loads more; the longer one raises the share."""
    fault = Fault(
        kind="input_stall", node="run-03", start_s=120, duration_s=300, magnitude=request.param
    )
    return record("trn1", duration_s=400, faults=[fault])


def test_a_measure_returns_its_own_symptoms_only(stalled: Recording) -> None:
    seen = stalled.at(160)
    problem = Problem("input_stall", None, "input", stalled.plan.epoch_s + 120.0, 1.0)
    case = Case(seen, seen.steps, problem, [])
    for measure in set(MEASURES.values()):
        own = {name for name, each in MEASURES.items() if each is measure}
        assert set(measure(case, {})) <= own
    assert {name for measure in MEASURES.values() for name in measure(case, {})} >= {
        "step_s",
        "input_s",
        "host_busier",
        "hbm_bandwidth",
    }


def without_load(recording: Recording) -> Recording:
    """Leave the hosts as busy as in a healthy run."""
    host = "vcpu_usage_ratio"
    calm = record("trn1", duration_s=400).span.values[host]
    values = {**recording.span.values, host: calm[: len(recording.span.ticks)]}
    return replace(recording, span=replace(recording.span, values=values))


def causes_by_second(recording: Recording) -> dict[int, list[tuple[str, str, str | None]]]:
    seconds = [*range(110, 200), *range(200, 398, 6)]
    return {
        at: [(f.rule, f.cause, f.node) for f in found] for at, found in recording.watch(seconds)
    }


def test_a_new_row_names_its_cause_in_a_played_run(
    stalled: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(BY_NAME, SLOW_LINK.name, SLOW_LINK)
    found = causes_by_second(without_load(stalled))
    names = [cause for each in found.values() for _, cause, _ in each]
    assert {node for each in found.values() for *_, node in each} == {"run-03"}
    # At first the hosts are not measured; then the alert keeps its more exact name.
    first = names.index("pcie_slow")
    assert set(names[:first]) <= {"input_stall"}
    assert set(names[first:]) == {"pcie_slow"}
    assert max(found) == max(at for at, each in found.items() if each)


def test_a_new_row_takes_no_name_from_a_host_that_loads(
    stalled: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = causes_by_second(stalled)
    monkeypatch.setitem(BY_NAME, SLOW_LINK.name, SLOW_LINK)
    assert causes_by_second(stalled) == before
    assert {each[1:] for found in before.values() for each in found} == {("input_stall", "run-03")}


def test_without_the_row_a_host_that_is_not_busier_has_the_default(stalled: Recording) -> None:
    found = causes_by_second(without_load(stalled))
    assert {name[1:] for each in found.values() for name in each} == {("input_stall", "run-03")}


@pytest.mark.parametrize(
    ("magnitude", "missing"),
    [
        # Whether the device also lost packets was unknown: a class was named.
        (6.0, ("efa_tx", "efa_rx")),
        # The device was not seen before it was late: it stands out from its peers only since.
        (1.6, ("efa_",)),
    ],
)
def test_what_was_not_measured_at_the_onset_is_measured_later(
    magnitude: float, missing: tuple[str, ...]
) -> None:
    late = Fault(
        kind="efa_latency",
        node="run-03",
        device=5,
        start_s=300,
        duration_s=400,
        magnitude=magnitude,
    )
    played = record("trn1", duration_s=460, faults=[late])
    seconds = played.span.ticks - played.span.ticks[0]
    values = {name: each.copy() for name, each in played.span.values.items()}
    for name, each in values.items():
        if name.startswith(missing):
            each[(seconds >= 295) & (seconds < 420)] = np.nan
    seen = replace(played, span=replace(played.span, values=values))
    found = dict(seen.watch(range(250, 450)))

    def named(second: int) -> set[tuple[str, str | None, int | None]]:
        return {(each.cause, each.node, each.device) for each in found[second]}

    assert "efa_latency" not in {cause for cause, *_ in named(410)}
    assert named(410)
    assert named(440) == {("efa_latency", "run-03", 5)}
