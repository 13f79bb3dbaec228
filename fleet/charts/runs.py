"""The charts of a run: what its steps consist of, how fast it trains and at what price."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from fleet.charts.figures import Figure, Line, mean_of, thinned
from fleet.models import Run
from fleet.windows import Window
from telemetry import catalog
from telemetry.blocks import FloatArray
from telemetry.steps import StepBatch
from telemetry.store.history import run_steps, worker_minutes
from telemetry.store.hot import HotStore

ROLLING_S = 60.0
SECONDS_PER_HOUR = 3600.0
TOKENS_PER_MTOK = 1e6
WHO_WAITS = "seconds per step; the culprit is the worker that waits least"
LAYERS = (
    ("compute_s", "compute", "compute"),
    ("transfer_s", "transfer", "transfer"),
    ("wait_s", "wait", "wait"),
    ("input_s", "input", "input"),
    ("checkpoint_s", "checkpoint", "checkpoint"),
    ("other_s", "other", "other"),
)


def phases(run: Run, steps: StepBatch) -> Figure:
    """Stack the phases of each step, averaged over workers."""
    layers = np.stack([mean_of(steps.phases[phase]) for phase, _, _ in LAYERS], axis=1)
    t_s, values = thinned(steps.ended_at_s, layers)
    lines = [Line(label, values[:, i], role) for i, (_, label, role) in enumerate(LAYERS)]
    # A phase that never happened is not worth a colour in the legend.
    kept = [line for line in lines if line.role == "compute" or np.nansum(line.values) > 0]
    return Figure("s", kept, t_s)


def share(run: Run, steps: StepBatch) -> Figure:
    """Draw the all-reduce share of each step, split, with the run's own limit."""
    parts = np.stack([steps.allreduce_share_ratio, steps.transfer_ratio, steps.wait_ratio], axis=1)
    t_s, values = thinned(steps.ended_at_s, parts)
    lines = [
        Line("all-reduce", values[:, 0]),
        Line("transferring", values[:, 1], "transfer"),
        Line("waiting", values[:, 2], "wait"),
    ]
    return Figure("ratio", lines, t_s, limit=run.allreduce_limit_ratio)


def tokens(run: Run, steps: StepBatch) -> Figure:
    """Draw tokens per second, step by step."""
    t_s, values = thinned(steps.ended_at_s, pace(steps))
    return Figure("per_s", [Line("tokens/s", values)], t_s)


def mfu(run: Run, steps: StepBatch) -> Figure:
    """Draw the share of the hardware's peak that training uses: model FLOPs utilization."""
    peak = run.n_nodes * catalog.instance(run.instance_type).peak_flops(run.precision)
    per_token = catalog.model(run.model).flops_per_token(run.seq_len)
    t_s, values = thinned(steps.ended_at_s, pace(steps) * per_token / peak)
    return Figure("ratio", [Line("MFU", values)], t_s)


def cost(run: Run, steps: StepBatch) -> Figure:
    """Draw dollars per million tokens, rolling over a minute."""
    tokens_per_s = rolling_pace(steps, over_s=ROLLING_S)
    usd_per_s = run.usd_per_hour / SECONDS_PER_HOUR
    per_token = np.divide(
        usd_per_s, tokens_per_s, out=np.full(len(steps), np.nan), where=tokens_per_s > 0
    )
    t_s, values = thinned(steps.ended_at_s, per_token * TOKENS_PER_MTOK)
    return Figure("usd", [Line("$ per 1M tokens", values)], t_s)


def workers(run: Run, steps: StepBatch) -> Figure:
    """Set beside each other how long each worker waits and transfers per step."""
    lines = [
        Line("waiting", mean_of(steps.phases["wait_s"].T), "wait"),
        Line("transferring", mean_of(steps.phases["transfer_s"].T), "transfer"),
    ]
    return Figure("s", lines, labels=steps.workers)


@dataclass(frozen=True, slots=True)
class RunChart:
    """One chart of the run page: what it draws from the steps."""

    name: str
    title: str
    kind: str
    help: str
    draw: Callable[[Run, StepBatch], Figure]


_ALL = (
    RunChart("phases", "Step time by phase", "stack", "seconds per step, mean of workers", phases),
    RunChart("share", "All-reduce share", "lines", "of each step; the line is the limit", share),
    RunChart("workers", "Who waits for whom", "bars", WHO_WAITS, workers),
    RunChart("tokens", "Tokens per second", "lines", "by step", tokens),
    RunChart("cost", "$ per 1M tokens", "lines", "rolling over a minute", cost),
    RunChart("mfu", "Model FLOPs utilization", "lines", "share of the hardware's peak", mfu),
)
RUN_CHARTS: Mapping[str, RunChart] = {chart.name: chart for chart in _ALL}


def run_figure(hot: HotStore, run: Run, chart: str, window: Window) -> Figure:
    """Return one chart of a run over a window; empty where it has no steps."""
    fetch = worker_minutes if chart == "workers" else run_steps
    steps = fetch(hot, run.name, start_s=window.start, end_s=window.end)
    figure = RUN_CHARTS[chart].draw(run, steps)
    return replace(figure, window=(window.start, window.end))


def pace(steps: StepBatch) -> FloatArray:
    """Return tokens per second of each step: (n_steps,)."""
    step_s = steps.step_s if len(steps) else np.zeros(0)
    empty = np.full(len(steps), np.nan)
    return np.asarray(np.divide(steps.tokens, step_s, out=empty, where=step_s > 0))


def rolling_pace(steps: StepBatch, *, over_s: float) -> FloatArray:
    """Return tokens per second over the last minute up to each step: (n_steps,).

    Notes
    -----
    With cumulative sums of tokens and of step time, the pace between two steps is the
    difference of one over the difference of the other: pauses between steps count as time.
    """
    if not len(steps):
        return np.zeros(0)
    ends = steps.ended_at_s
    starts = ends - steps.step_s
    done = np.concatenate([[0.0], np.cumsum(steps.tokens)])
    first = np.minimum(np.searchsorted(ends, ends - over_s, side="right"), np.arange(len(steps)))
    return np.asarray((done[1:] - done[first]) / np.maximum(ends - starts[first], 1e-9))
