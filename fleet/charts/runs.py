"""The charts of a run: what its steps consist of, how fast it trains and at what price."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from django.db.models import OuterRef, Subquery

from fleet.alerts.evidence import has_late_worker
from fleet.charts.figures import Chart, ChartLine, Mark, Place, thinned, workers_reach
from fleet.charts.markers import checkpoints
from fleet.charts.windows import Window
from fleet.costs.drift import expected_now
from fleet.formatting import figure as written
from fleet.models import Alert, Node, Run
from fleet.models.node import address
from fleet.models.run import RunQuerySet
from fleet.runs.summaries import SHARE_S, SHARE_STEPS
from telemetry.blocks import FloatArray, mean
from telemetry.steps import StepBatch, is_reported
from telemetry.store.chunks import LOSS, decode_steps
from telemetry.store.history import run_history, worker_minutes
from telemetry.store.hot import HotStore
from telemetry.store.models import RunChunk
from telemetry.store.reading import LongTerm, Source
from telemetry.units import HOUR_S, TOKENS_PER_MTOK

ROLLING_S, RECENT_S = 60.0, 900.0
# Unix seconds after every step.
LATEST_S = 1e11
SLACK_S = 2.0
PER_STEP = "seconds per step"
# Only if an alert found a late worker: some wait is always the shortest.
WHO_WAITS = f"{PER_STEP}; all others wait for the one with the shortest bar"
LAYERS = (
    ("compute_s", "compute", "compute"),
    ("transfer_s", "transfer", "transfer"),
    ("wait_s", "wait", "wait"),
    ("input_s", "input", "input"),
    ("checkpoint_s", "checkpoint", "checkpoint"),
    ("other_s", "other", "other"),
)


def with_gaps(steps: StepBatch, values: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Place values (n_steps, n) in time, with a NaN row wherever no step ran.

    Between two rows lie as many steps as their numbers differ by. They should take that many
    times the step time; half as long again, and two seconds more, is a gap.
    """
    t_s, values = thinned(steps.ended_at_s, values)
    if len(t_s) != len(steps) or len(steps) < 2:
        return t_s, values
    expected_s = np.diff(steps.step) * steps.step_s[1:]
    before = np.flatnonzero(np.diff(t_s) > 1.5 * expected_s + SLACK_S) + 1
    holes = t_s[before - 1] + SLACK_S / 2
    return np.insert(t_s, before, holes), np.insert(values, before, np.nan, axis=0)


def phases(run: Run, steps: StepBatch) -> Chart:
    layers = np.stack([mean(steps.phases[phase], 1) for phase, _, _ in LAYERS], axis=1)
    t_s, values = with_gaps(steps, layers)
    lines = [ChartLine(label, values[:, i], role) for i, (_, label, role) in enumerate(LAYERS)]
    return Chart("s", lines, t_s, has_gaps=True)


def share(run: Run, steps: StepBatch) -> Chart:
    """Draw the all-reduce share of each step, split, with the run's own limit."""
    parts = np.stack([steps.allreduce_share_ratio, steps.transfer_ratio, steps.wait_ratio], axis=1)
    t_s, values = with_gaps(steps, parts)
    lines = [
        ChartLine("all-reduce", values[:, 0]),
        ChartLine("transferring", values[:, 1], "transfer"),
        ChartLine("waiting", values[:, 2], "wait"),
    ]
    return Chart("ratio", lines, t_s, limit=run.allreduce_limit_ratio, has_gaps=True)


def tokens(run: Run, steps: StepBatch) -> Chart:
    return _line(steps, "tokens", pace(steps), "per_s")


def mfu(run: Run, steps: StepBatch) -> Chart:
    # Imported runs may have no model or instance type.
    per_token, peak = run.flops_per_token or np.nan, run.peak_flops or np.nan
    return _line(steps, "MFU", pace(steps) * per_token / peak, "ratio")


def cost(run: Run, steps: StepBatch) -> Chart:
    """Draw dollars per million tokens, averaged over a minute, at the price of that time."""
    tokens_per_s = rolling_pace(steps, over_s=ROLLING_S)
    usd_per_s = run.rates.rates_at(steps.ended_at_s)
    per_token = np.divide(
        usd_per_s, tokens_per_s, out=np.full(len(steps), np.nan), where=tokens_per_s > 0
    )
    return _line(steps, "$ per 1M tokens", per_token * TOKENS_PER_MTOK, "usd")


# The newest loss that is no number; the last finite one is not the loss of now.
NOT_FINITE = "not finite"


def loss(run: Run, steps: StepBatch) -> Chart:
    """Draw the training loss of the steps that report one."""
    kept, values = reported_loss(steps)
    # The axis of a loss does not start at zero: the curve would look flat.
    return replace(_line(kept, "loss", values, "count"), scale="close", missing=NOT_FINITE)


def reported_loss(steps: StepBatch) -> tuple[StepBatch, FloatArray]:
    """Return the steps that report a loss, and it: (n_steps,), NaN where it is not finite.

    The curve has a gap there, and ends before the end of the chart after a divergence.
    """
    kept = steps[is_reported(steps.loss)]
    return kept, np.where(np.isfinite(kept.loss), kept.loss, np.nan)


# What a loss is drawn over, and the weights of its exponential moving average.
AXES = {"time": "Time", "step": "Step", "tokens": "Tokens", "usd": "$"}
EMAS = ("0", "0.6", "0.9", "0.99")


@dataclass(frozen=True, slots=True)
class LossView:
    """How a loss is drawn: over which axis, and how much it is smoothed."""

    by: str = "time"
    ema: str = "0"

    @classmethod
    def of(cls, query: Mapping[str, str]) -> Self:
        """Read it from an address; what is unknown there is left out."""
        by, ema = query.get("by", ""), query.get("ema", "")
        return cls(by if by in AXES else "time", ema if ema in EMAS else "0")

    @property
    def help(self) -> str:
        if self.ema == "0":
            return "as the job reports it"
        return f"exponential moving average, weight {self.ema} per step; grey: as reported"


def viewed_loss(
    hot: Source, run: Run, window: Window, view: LossView, *, long_term: LongTerm | None = None
) -> Chart:
    """Draw the loss over another axis than time, or smoothed."""
    steps, stretches = run_history(
        hot, run.name, start_s=window.start, end_s=window.end, long_term=long_term
    )
    kept, values = reported_loss(steps)
    lines = [ChartLine("loss", values)]
    if view.ema != "0":
        # A row may be the mean of several steps.
        n_each = np.nan_to_num(kept.n_merged, nan=1.0)
        smooth = moving_average(values, float(view.ema) ** n_each)
        lines = [ChartLine("reported", values, "idle"), ChartLine(f"EMA {view.ema}", smooth)]
    whole = (window.start, window.end)
    chart = Chart(
        *("count", lines), scale="close", window=whole, stretches=stretches, missing=NOT_FINITE
    )
    if view.by == "time":
        t_s, values = with_gaps(kept, np.stack([line.values for line in lines], axis=1))
        drawn = [replace(line, values=values[:, i]) for i, line in enumerate(lines)]
        return replace(chart, lines=drawn, t_s=t_s, has_gaps=True, events=checkpoints(steps))
    if view.by == "step":
        x = kept.step.astype(float)
        labels = [f"step {number:,}" for number in kept.step.tolist()]
    elif view.by == "tokens":
        x = _tokens_at(hot, run, steps, window)[is_reported(steps.loss)]
        labels = [f"{written(each, 'count')} tokens" for each in x.tolist()]
    else:
        began_s = run.started_at.timestamp()
        x = np.array([run.rates.usd(began_s, each) for each in kept.ended_at_s.tolist()])
        labels = [written(each, "usd") for each in x.tolist()]
    known = np.isfinite(x)
    drawn = [replace(line, values=line.values[known]) for line in lines]
    labels = [label for label, is_known in zip(labels, known, strict=True) if is_known]
    return replace(chart, lines=drawn, t_s=x[known], labels=labels, x_unit=view.by)


def moving_average(values: FloatArray, weights: FloatArray) -> FloatArray:
    """Return the exponential moving average: each value keeps ``weights`` of the one before.

    >>> moving_average(np.array([4.0, 2.0, 2.0]), np.full(3, 0.5)).tolist()
    [4.0, 3.0, 2.5]
    """
    averages = values.astype(float)
    before = np.nan
    for i, value in enumerate(values.tolist()):
        if np.isfinite(value):
            before = value if np.isnan(before) else weights[i] * before + (1 - weights[i]) * value
            averages[i] = before
    return averages


def _tokens_at(hot: Source, run: Run, steps: StepBatch, window: Window) -> FloatArray:
    """Return the tokens trained up to each step: those of the run less those of later steps."""
    later, _ = run_history(hot, run.name, start_s=window.end, end_s=LATEST_S)
    after = float(np.nansum(later.all_tokens))
    tokens = np.nan_to_num(steps.all_tokens)
    return np.asarray(run.n_tokens - after - (tokens.sum() - np.cumsum(tokens)))


def _line(steps: StepBatch, label: str, values: FloatArray, unit: str) -> Chart:
    t_s, column = with_gaps(steps, values[:, None])
    return Chart(unit, [ChartLine(label, column[:, 0])], t_s, has_gaps=True)


def workers(run: Run, steps: StepBatch) -> Chart:
    lines = [
        ChartLine("waiting", mean(steps.phases["wait_s"].T, 1), "wait"),
        ChartLine("transferring", mean(steps.phases["transfer_s"].T, 1), "transfer"),
    ]
    return Chart("s", lines, labels=steps.workers)


def worker_places(workers: Sequence[str]) -> list[Place | None]:
    """Return the page of the node of each worker; its name begins with the node's."""
    of = [worker.partition("/")[0] for worker in workers]
    known = set(Node.objects.filter(name__in=of).values_list("name", flat=True))
    return [Place(name, address("node-detail", name)) if name in known else None for name in of]


SHARE_HELP = "of each step; the line is the limit"
UNTIMED = "No step in this time range reports its all-reduce time."


@dataclass(frozen=True, slots=True)
class RunChart:
    name: str
    title: str
    kind: str
    help: str
    draw: Callable[[Run, StepBatch], Chart]
    empty: str = ""
    # Of the address of its data; and its other views, by name: text, query, whether current.
    query: str = ""
    choices: Sequence[tuple[str, Sequence[tuple[str, str, bool]]]] = ()

    @property
    def is_whole(self) -> bool:
        return self.name in ("phases", "share", "workers", "loss")

    @property
    def is_appended(self) -> bool:
        """Whether new steps are appended, instead of all drawn again."""
        return self.kind != "bars"


_ALL = (
    RunChart("phases", "Step time by phase", "stack", "seconds per step, mean of workers", phases),
    RunChart("share", "All-reduce share", "lines", SHARE_HELP, share, UNTIMED),
    RunChart("workers", "Wait by worker", "bars", PER_STEP, workers, UNTIMED),
    RunChart("tokens", "Tokens per second", "lines", "step by step", tokens),
    RunChart("cost", "$ per 1M tokens", "lines", "rolling over a minute", cost),
    RunChart("mfu", "Model FLOPs utilization", "lines", "share of the hardware's peak", mfu),
    RunChart("loss", "Training loss", "lines", "as the job reports it", loss),
)
RUN_CHARTS: Mapping[str, RunChart] = {chart.name: chart for chart in _ALL}


def run_figure(
    hot: Source, run: Run, chart: str, window: Window, *, long_term: LongTerm | None = None
) -> Chart:
    start_s, end_s = window.start, window.end
    if chart == "workers":
        steps = worker_minutes(hot, run.name, start_s=start_s, end_s=end_s)
        stretches = workers_reach(window) if long_term else ()
    else:
        steps, stretches = run_history(
            hot, run.name, start_s=start_s, end_s=end_s, long_term=long_term
        )
    figure = RUN_CHARTS[chart].draw(run, steps)
    events = () if figure.labels else checkpoints(steps)
    return replace(
        figure,
        window=(start_s, end_s),
        stretches=stretches,
        events=events,
        places=worker_places(figure.labels) if figure.labels else (),
    )


def expected_cost_marks(source: Source, run: Run, *, now_s: float) -> Sequence[Mark]:
    """Return the expected dollars per million tokens, and above which of them is drift.

    Empty for a run without a price, and where nothing is expected of its steps.
    """
    steps = source.steps(run.name, since_s=now_s - RECENT_S)
    tokens = steps.tokens[np.isfinite(steps.tokens)]
    expected = expected_now(run, tokens=float(np.median(tokens))) if len(tokens) else None
    usd = expected and expected.cost * TOKENS_PER_MTOK * run.price[0] / HOUR_S
    if not expected or not usd:
        return []
    limit = usd * (1 + expected.limit_ratio)
    return [
        (usd, f"expected {written(usd, 'usd')}", "peers"),
        (limit, f"drift limit {written(limit, 'usd')}", "threshold"),
    ]


def run_points(hot: HotStore, run: Run, *, since_s: float) -> dict[str, Any]:
    steps = hot.recent_steps(run.name, since_s=since_s - ROLLING_S, averaged=True)
    fed = [chart for chart in RUN_CHARTS.values() if chart.is_appended]
    if steps.reported_loss is None:
        fed.remove(RUN_CHARTS["loss"])
    figures = {chart.name: chart.draw(run, steps) for chart in fed}
    return {name: figure.since(since_s) for name, figure in figures.items()}


def pace(steps: StepBatch) -> FloatArray:
    step_s = steps.step_s if len(steps) else np.zeros(0)
    empty = np.full(len(steps), np.nan)
    return np.asarray(np.divide(steps.tokens, step_s, out=empty, where=step_s > 0))


def rolling_pace(steps: StepBatch, *, over_s: float) -> FloatArray:
    """Return tokens per second over the last minute up to each step: (n_steps,).

    With cumulative sums of tokens and the moments at which rows began, the pace between two
    rows is the difference of one over that of the other: pauses between steps count as time.
    A thinned row represents the steps since the number of the row before.
    """
    if not len(steps):
        return np.zeros(0)
    usual = np.median(np.diff(steps.step)) if len(steps) > 1 else 1
    n_steps = np.diff(steps.step, prepend=steps.step[0] - usual)
    ends = steps.ended_at_s
    starts = ends - n_steps * steps.step_s
    done = np.concatenate([[0.0], np.cumsum(steps.tokens * n_steps)])
    first = np.minimum(np.searchsorted(ends, ends - over_s, side="right"), np.arange(len(steps)))
    return np.asarray((done[1:] - done[first]) / np.maximum(ends - starts[first], 1e-9))


def with_newest_steps(runs: RunQuerySet) -> RunQuerySet:
    kept = RunChunk.objects.filter(run=OuterRef("name")).order_by("-start")
    return runs.annotate(newest_steps=Subquery(kept.values("steps")[:1]))


def charts_of(hot: Source, run: Run, alerts: Iterable[Alert] = ()) -> Collection[RunChart]:
    """Return the charts of a run, with the loss only if the run reports one."""
    is_late = any(has_late_worker(alert) for alert in alerts)
    return [
        replace(chart, help=WHO_WAITS) if chart.name == "workers" and is_late else chart
        for chart in RUN_CHARTS.values()
        if chart.name != "loss" or has_loss(hot, run)
    ]


def has_loss(hot: Source, run: Run) -> bool:
    """Whether any step of a run's newest hour has a loss.

    Faster for a run that was read by ``with_newest_steps``.
    """
    kept = getattr(run, "newest_steps", None)
    if kept is not None:
        return bool(is_reported(decode_steps(bytes(kept))[:, LOSS]).any())
    return bool(is_reported(hot.steps(run.name, since_s=0.0).loss).any())


EVERY_S = 1
MOST_SHARES = 900  # of a run, on the overview: the shortest window by the second
# A step counts for this long after its end, or for three times its duration.
HOLDS_S = 15.0
HOLDS_STEPS = 3.0


def spacing_s(length_s: float) -> int:
    """Return the seconds between shares over such a window: one, or more for a long one."""
    return max(EVERY_S, -(-int(length_s) // MOST_SHARES))


def grid(start_s: float, end_s: float, *, every_s: int = EVERY_S) -> FloatArray:
    """Return the multiples of ``every_s`` Unix seconds after ``start_s`` and before ``end_s``."""
    first = np.floor(start_s / every_s) * every_s + every_s
    return np.arange(first, end_s, every_s)


def share_now(steps: StepBatch, t_s: FloatArray, *, every_s: int = EVERY_S) -> FloatArray:
    """Return a run's all-reduce share (n,) at ``t_s`` (n,), Unix seconds ``every_s`` apart.

    As a run's summary has it: the mean of the newest steps while they are current, else NaN; the
    steps since the share before, if those are more.
    """
    share = steps.allreduce_share_ratio if len(steps) else np.zeros(0)
    known = np.isfinite(share)
    if not known.any():
        return np.full(len(t_s), np.nan)
    share, ended_s, step_s = share[known], steps.ended_at_s[known], steps.step_s[known]
    before = np.searchsorted(ended_s, t_s, side="right")
    last = np.maximum(before - 1, 0)
    since = np.searchsorted(ended_s, ended_s[last] - max(every_s, SHARE_S), side="right")
    since = np.clip(since, 0, np.maximum(before - SHARE_STEPS, 0))
    total = np.concatenate([[0.0], np.cumsum(share)])
    mean = (total[before] - total[since]) / np.maximum(before - since, 1)
    holds_s = np.maximum(max(HOLDS_S, every_s), HOLDS_STEPS * step_s[last])
    return np.where((before > 0) & (t_s - ended_s[last] <= holds_s), mean, np.nan)
