"""Which telemetry of a run reaches us: its input tier, inferred from what arrives."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fleet.runs.state import ON_REQUEST
from telemetry.blocks import FloatArray, Span
from telemetry.steps import StepBatch
from telemetry.store.reading import Source

# A few nodes show what all of a run's agents send.
N_NODES = 4
WINDOW_S = 150
WINDOW_STEPS = 100
# Values that change with nearly every report, so that equal ones in a row show its period.
CHANGING = ("efa_tx_bytes_per_s", "vcpu_usage_ratio", "core_utilization_ratio")
HBM, PROBE = "hbm_bandwidth_bytes_per_s", "efa_latency_s"
METRICS = (*CHANGING, HBM, PROBE)
SCRAPED_EVERY_S = 15


@dataclass(frozen=True, slots=True)
class RunInputs:
    """What arrives of one run; seconds are None where nothing arrives.

    ``timed_ratio`` is the share of recent steps whose gradient exchange is timed, None without
    step reports. ``trace`` is what waits come from, such as "on" with the Neuron runtime's trace,
    empty without. ``traces_on_request``: workers read it when an alert asks. ``trace_problem`` is
    why a worker has no trace although its job asks for one.
    ``other_comm_s`` is the recent mean of communication that exchanges no gradients.
    """

    agent_every_s: int | None = None
    probe_every_s: int | None = None
    has_hbm: bool = False
    timed_ratio: float | None = None
    trace: str = ""
    traces_on_request: bool = False
    trace_problem: str = ""
    other_comm_s: float | None = None

    @property
    def has_steps(self) -> bool:
        return self.timed_ratio is not None

    @property
    def tier(self) -> str:
        """The input tier that fits; empty where nothing arrives."""
        if self.agent_every_s is None:
            return "hooks_only" if self.has_steps else ""
        if not self.has_steps:
            is_scraped = self.agent_every_s >= SCRAPED_EVERY_S
            return "prometheus_15s" if is_scraped else "agent_only"
        if self.trace:
            return "agent_trace"
        if self.timed_ratio == 0:
            return "agent_hooks"
        return "full" if self.has_hbm and self.probe_every_s == 1 else "agent_collectives"


def inputs_of(
    source: Source,
    run: str,
    nodes: Sequence[tuple[str, str]],
    *,
    now_s: float,
    traces: Collection[str] = (),
) -> RunInputs:
    """Infer a run's inputs from the newest minutes.

    ``nodes`` are (name, shard) of its nodes, ``traces`` what its workers report of their traces.
    """
    end = int(now_s)
    names = tuple(name for name, _ in nodes[:N_NODES])
    shards = tuple(dict.fromkeys(shard for _, shard in nodes[:N_NODES]))
    span = source.window(shards, METRICS, start=end - WINDOW_S, end=end).of(names)
    steps = source.steps(run, since_s=now_s - 3600).last(WINDOW_STEPS)
    working = sorted(trace for trace in traces if trace == "on" or trace.startswith("on: "))
    found = observed_inputs(span, steps, trace=working[0] if working else "")
    problems = sorted(set(traces) - {*working, ON_REQUEST, ""})
    return replace(
        found,
        traces_on_request=ON_REQUEST in traces,
        trace_problem=problems[0] if problems else "",
    )


def observed_inputs(span: Span, steps: StepBatch, *, trace: str = "") -> RunInputs:
    """Infer inputs from some nodes' hardware, (n_ticks, n_nodes, n_parts) each, and steps."""
    periods = [period for name in CHANGING if (period := _period_s(span.values.get(name)))]
    hbm = span.values.get(HBM)
    timed = np.isfinite(steps.phases["wait_s"]).any(axis=1) if len(steps) else None
    other = steps.other_comm_s[np.isfinite(steps.other_comm_s)]
    return RunInputs(
        agent_every_s=min(periods, default=None),
        probe_every_s=_period_s(span.values.get(PROBE)),
        has_hbm=hbm is not None and bool(np.isfinite(hbm).any()),
        timed_ratio=None if timed is None else float(timed.mean()),
        trace=trace if timed is not None and timed.any() else "",
        other_comm_s=float(other.mean()) if len(other) else None,
    )


def _period_s(values: FloatArray | None) -> int | None:
    """Return how often a metric gets a new value, the median over nodes; None without values."""
    if values is None or not values.size:
        return None
    found = []
    for node in range(values.shape[1]):
        rows = values[:, node]
        known = rows[np.isfinite(rows).any(axis=1)]
        if not len(known):
            continue
        is_new = (known[1:] != known[:-1]) & ~(np.isnan(known[1:]) & np.isnan(known[:-1]))
        n_new = int(is_new.any(axis=1).sum())
        # Without a change, the value is at least as old as the window.
        found.append(len(known) / n_new if n_new else len(known))
    return max(1, round(float(np.median(found)))) if found else None
