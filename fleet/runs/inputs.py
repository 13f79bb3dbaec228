"""Which telemetry of a run reaches us: its input tier, inferred from what arrives."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from fleet.runs.state import ON_REQUEST, is_tracing, trace_problem
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
    step reports; the ``n_traced`` of ``n_steps`` that a requested trace covered do not count.
    ``step_age_s`` is the age of the newest step. ``trace`` is what waits come from, such as "on"
    with the Neuron runtime's trace, empty without. Of ``n_workers`` in the newest session,
    ``n_on_request`` read it when an alert asks, and ``n_without`` have none although their job
    asks for one: ``trace_problem`` says why.
    ``other_comm_s`` is the recent mean of communication that exchanges no gradients.
    """

    agent_every_s: int | None = None
    probe_every_s: int | None = None
    has_hbm: bool = False
    timed_ratio: float | None = None
    n_steps: int = 0
    n_traced: int = 0
    step_age_s: float = 0.0
    trace: str = ""
    n_workers: int = 0
    n_on_request: int = 0
    n_without: int = 0
    trace_problem: str = ""
    other_comm_s: float | None = None

    @property
    def has_steps(self) -> bool:
        return self.timed_ratio is not None

    @property
    def has_old_steps(self) -> bool:
        """Whether no step ended while the hardware that is shown was measured."""
        return self.step_age_s > WINDOW_S

    @property
    def traces_on_request(self) -> bool:
        return self.n_on_request > 0

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
    traces: Sequence[str] = (),
) -> RunInputs:
    """Infer a run's inputs from the newest minutes.

    ``nodes`` are (name, shard) of its nodes, ``traces`` what each worker reports of its trace.
    """
    end = int(now_s)
    names = tuple(name for name, _ in nodes[:N_NODES])
    shards = tuple(dict.fromkeys(shard for _, shard in nodes[:N_NODES]))
    window = source.window(shards, METRICS, start=end - WINDOW_S, end=end, only=names)
    span = window.of(names)
    steps = source.steps(run, since_s=now_s - 3600).last(WINDOW_STEPS)
    working = sorted(filter(is_tracing, traces))
    problems = sorted(filter(None, map(trace_problem, traces)))
    n_on_request = sum(trace == ON_REQUEST for trace in traces)
    observed = observed_inputs(
        span,
        steps,
        trace=working[0] if working else "",
        is_traced_on_request=not working and bool(n_on_request or problems),
    )
    return replace(
        observed,
        step_age_s=now_s - float(steps.ended_at_s[-1]) if len(steps) else 0.0,
        n_workers=len(traces),
        n_on_request=n_on_request,
        n_without=len(problems),
        trace_problem=problems[0] if problems else "",
    )


def observed_inputs(
    span: Span, steps: StepBatch, *, trace: str = "", is_traced_on_request: bool = False
) -> RunInputs:
    """Infer inputs from some nodes' hardware, (n_ticks, n_nodes, n_parts) each, and steps.

    ``is_traced_on_request``: steps with waits but no transfer are those of a requested trace,
    which measures no transfer. It is over soon, so it makes no tier.
    """
    periods = [period for name in CHANGING if (period := _period_s(span.values.get(name)))]
    hbm = span.values.get(HBM)
    timed = np.isfinite(steps.phases["wait_s"]).any(axis=1) if len(steps) else None
    n_traced = 0
    if is_traced_on_request and timed is not None:
        traced = timed & ~(steps.phases["transfer_s"] > 0).any(axis=1)
        timed, n_traced = timed & ~traced, int(traced.sum())
    other = steps.other_comm_s[np.isfinite(steps.other_comm_s)]
    return RunInputs(
        agent_every_s=min(periods, default=None),
        probe_every_s=_period_s(span.values.get(PROBE)),
        has_hbm=hbm is not None and bool(np.isfinite(hbm).any()),
        timed_ratio=None if timed is None else float(timed.mean()),
        n_steps=len(steps),
        n_traced=n_traced,
        trace=trace if timed is not None and timed.any() else "",
        other_comm_s=float(other.mean()) if len(other) else None,
    )


def _period_s(values: FloatArray | None) -> int | None:
    """Return how often a metric gets a new value, the median over nodes; None without values."""
    if values is None or not values.size:
        return None
    periods = []
    for node in range(values.shape[1]):
        rows = values[:, node]
        known = rows[np.isfinite(rows).any(axis=1)]
        if not len(known):
            continue
        is_new = (known[1:] != known[:-1]) & ~(np.isnan(known[1:]) & np.isnan(known[:-1]))
        n_new = int(is_new.any(axis=1).sum())
        # Without a change, the value is at least as old as the window.
        periods.append(len(known) / n_new if n_new else len(known))
    return max(1, round(float(np.median(periods)))) if periods else None
