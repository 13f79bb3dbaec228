"""The input tier of a run, inferred from what arrives."""

import numpy as np
import pytest

from fleet.runs.inputs import METRICS, inputs_of, observed_inputs
from telemetry.blocks import FloatArray, Span
from telemetry.steps import StepBatch
from telemetry.store.hot import HotStore
from tests.helpers import NOON_S, block, just_now, steps

NODES = ("trn-a", "trn-b")


def hardware(every_s: int, *, probe_every_s: int = 0, hbm: bool = False) -> Span:
    """Return 150 s of two nodes whose agents report every ``every_s`` seconds."""
    rng = np.random.default_rng(1)
    ticks = np.arange(NOON_S - 150, NOON_S + 1)

    def held(each_s: int) -> FloatArray:
        reports = rng.random((len(ticks), len(NODES), 1))
        return reports[np.arange(len(ticks)) // each_s]

    values = {name: held(every_s) for name in METRICS[:3]}
    if hbm:
        values["hbm_bandwidth_bytes_per_s"] = held(every_s)
    if probe_every_s:
        values["efa_latency_s"] = held(probe_every_s)
    return Span("llama/0", ticks, NODES, values)


NO_HARDWARE = Span("llama/0", np.arange(3), NODES, {})
TIMED = steps(workers=NODES, n_steps=40, compute_s=1.0, wait_s=0.1, transfer_s=0.1)
UNTIMED = steps(workers=NODES, n_steps=40, compute_s=1.2, wait_s=np.nan, transfer_s=np.nan)
NO_STEPS = TIMED[:0]


@pytest.mark.parametrize(
    ("span", "reported", "trace", "tier"),
    [
        (hardware(1, probe_every_s=1, hbm=True), TIMED, "", "full"),
        (hardware(1), TIMED, "", "agent_collectives"),
        (hardware(5), TIMED, "on", "agent_trace"),
        (hardware(5), TIMED, "on: NCCL Inspector", "agent_trace"),
        (hardware(5, probe_every_s=60), UNTIMED, "", "agent_hooks"),
        (hardware(5), UNTIMED, "on", "agent_hooks"),
        (hardware(5), NO_STEPS, "", "agent_only"),
        (NO_HARDWARE, UNTIMED, "", "hooks_only"),
        (hardware(15), NO_STEPS, "", "prometheus_15s"),
        (NO_HARDWARE, NO_STEPS, "", ""),
    ],
)
def test_the_tier_follows_from_what_arrives(
    span: Span, reported: StepBatch, trace: str, tier: str
) -> None:
    assert observed_inputs(span, reported, trace=trace).tier == tier


def test_periods_and_sampled_steps_are_measured() -> None:
    sparse = steps(workers=NODES, n_steps=40, compute_s=1.0)
    for phase in ("wait_s", "transfer_s"):
        sparse.phases[phase][np.arange(40) % 20 != 0] = np.nan
    found = observed_inputs(hardware(5, probe_every_s=60), sparse)

    assert (found.agent_every_s, found.has_hbm) == (5, False)
    assert found.timed_ratio == pytest.approx(0.05)
    assert found.probe_every_s is not None
    assert 45 <= found.probe_every_s <= 80


def test_it_is_read_from_the_store(hot: HotStore) -> None:
    now = just_now().timestamp()
    hot.append(
        block("llama/0", int(now) - age, NODES, fill=0.3 + age / 100) for age in range(9, -1, -1)
    )
    found = inputs_of(hot, "llama", [(name, "llama/0") for name in NODES], now_s=now)

    assert found.agent_every_s == 1
    assert found.tier == "agent_only"


def test_the_source_of_the_trace_is_known(hot: HotStore) -> None:
    now = just_now().timestamp()
    hot.append_steps(steps(workers=NODES, n_steps=5, ended_at_s=now - 20, compute_s=1.0))
    found = inputs_of(hot, "llama", [], now_s=now, traces=["on: NCCL Inspector", ""])

    assert (found.trace, found.trace_problem) == ("on: NCCL Inspector", "")


def test_a_missing_trace_states_why_and_on_how_many_workers(hot: HotStore) -> None:
    reported = ["on", "libnrt.so.1 is not loaded", "on request", ""]
    found = inputs_of(hot, "llama", [], now_s=1.8e9, traces=reported)

    assert found.trace_problem == "libnrt.so.1 is not loaded"
    assert (found.n_workers, found.n_without, found.n_on_request) == (4, 1, 1)


def test_a_requested_trace_does_not_change_the_tier() -> None:
    traced = steps(workers=NODES, n_steps=40, compute_s=1.0, wait_s=np.nan, transfer_s=np.nan)
    traced.phases["wait_s"][30:38], traced.phases["transfer_s"][30:38] = 0.2, 0.0
    found = observed_inputs(hardware(5), traced, is_traced_on_request=True)
    assert (found.tier, found.timed_ratio, found.n_traced) == ("agent_hooks", 0.0, 8)

    # Steps that are timed by sampling stay known.
    for phase in ("wait_s", "transfer_s"):
        traced.phases[phase][[0, 20]] = 0.1
    found = observed_inputs(hardware(5), traced, is_traced_on_request=True)
    assert (found.tier, found.timed_ratio, found.n_traced) == ("agent_collectives", 0.05, 8)
    assert observed_inputs(hardware(5), traced).n_traced == 0


def test_steps_that_have_stopped_are_old(hot: HotStore) -> None:
    now = just_now().timestamp()
    hot.append_steps(steps(workers=NODES, n_steps=5, ended_at_s=now - 20, compute_s=1.0))

    found = inputs_of(hot, "llama", [], now_s=now)
    assert (found.has_steps, found.has_old_steps) == (True, False)
    assert inputs_of(hot, "llama", [], now_s=now + 200).has_old_steps
    assert not inputs_of(hot, "other", [], now_s=now).has_old_steps
