"""A run without step reports: how fast it works, and which node makes it slow, by executions.

A training step is a fixed number of graph executions per sequence, so executions per second fall
by the factor by which steps get longer, whatever the step time is.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Self

import numpy as np
from numpy.typing import NDArray

from telemetry.blocks import FloatArray, IntArray, Span
from telemetry.detect.causes import CAUSE_OF_PHASE, UNKNOWN, phase_of
from telemetry.detect.findings import CauseScore, Problem, score_of_alert
from telemetry.detect.inputs import DetectionInput, OpenProblem, node_values, part_values
from telemetry.detect.rules import RULES
from telemetry.detect.standstill import CORES, EXECUTIONS, HOST, LINKS, TRAINING
from telemetry.statistics.peers import GAUSSIAN, lower_median, mean, median, middle

LIMITS = RULES["step_slow"].limits
LEAST_RATIO = LIMITS["least_ratio"]
# Seconds of one bin, and of the past that is read.
BIN_S, PAST_S = 5, 840
# Lengths of the windows that are compared with earlier ones; long steps need long windows.
WINDOWS_S = (30, 60, 120)
# How many earlier windows it takes, and required deviations of their variation.
ENOUGH_WINDOWS, DEVIATIONS, LEAST_SPREAD = 4, 6.0, 0.008
# A window that lost less than so many seconds may hold some pauses of single nodes.
LOST_S = 3.5
# A node works in a bin from this share of the usual executions on; a run that makes fewer than the
# second share pauses, as it has parts of a pause at both ends of a bin.
WORKS, PAUSES = 0.05, 0.15
# A node that rests for so long while more than this share of the nodes works has left. With uneven
# work a node rests for most of a long step.
LEFT_S, LEFT_SHARE = 30, 0.25
# Between the parts of a step a node rests for at most so long, or so many reports.
RESTS_S, RESTS_REPORTS = 25, 3
# For so long, and two windows, an alert is given a cause.
NAMES_WITHIN_S = 60
# After a pause of so long the processes may have restarted: their first steps take longer.
PROCESS_RESTART_S, WARM_UP_S = 45, 120
# How long the executions of a node took: each micro-batch is one, the longest of a step also
# exchanges the gradients (an assumption about how graphs are compiled; where each execution
# exchanges, those of all nodes take longer alike, which names no cause).
TYPICAL, LONGEST = "execution_latency_p50_s", "execution_latency_p100_s"
HALF = LIMITS["half_ratio"]
# Seconds before the onset that show what is usual, and the least to compare, in reports.
BEFORE_S, LEAST_REPORTS = 240, 2
# A node is as before up to this part of the slowdown, and explains it from the second part on.
SMALL, MOSTLY = 0.2, 0.7
# Where an execution of its own exchanges, the longest takes this much longer than the typical.
OWN_EXECUTION = 1.1
# A step that exchanges as many bytes for this ratio of its executions is another step.
SAME_STEP = 1.2
# A step of three micro-batches where it had one executes a third less often per second.
OTHER_STEP_RATIO = 0.5
# Links that carry less on average exchange no gradients.
CARRIES_BYTES_PER_S = 1e5
# Required rise of a host above its own past and above that of its peers.
HOST_RISE = 1.08
HOST_DEVIATIONS = 6.0
# A host that is busier for so long reads data for the run; cron jobs of 20 s are assumed.
HOST_LASTS_S = 60
TINY = 1e-9
# Storage is shared: one node starves, or nearly all do.
MOST = 0.9


@dataclass(frozen=True, slots=True)
class Progress:
    """Executions per second of a usual node of a run, in bins, oldest first.

    ``ended_at_s`` (n_bins,) and ``rate`` (n_bins,) per second. Bins of pauses, and those before
    the set of working nodes last changed, are left out.
    """

    ended_at_s: FloatArray
    rate: FloatArray
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Change:
    """Values of nodes before the onset and since then: (n_nodes,) each."""

    before: FloatArray
    since: FloatArray

    @property
    def rise(self) -> FloatArray:
        """Relative rise, NaN where unknown."""
        known = np.where(self.before > 0, self.before, np.nan)
        return np.asarray(self.since / known - 1.0)


@dataclass(frozen=True, slots=True)
class Changes:
    """What changed on the working nodes of a run; ``slowdown`` is how much longer steps take.

    ``since_s`` is for how many seconds that is known.
    """

    nodes: tuple[str, ...]
    slowdown: float
    since_s: int
    typical: Change
    longest: Change
    cores: Change
    hosts: Change
    executions: Change
    exchanged: Change

    @classmethod
    def read(
        cls,
        inputs: DetectionInput,
        nodes: tuple[str, ...],
        *,
        onset_s: float,
        slowdown: float,
        works: IntArray,
        past_s: int,
    ) -> Self | None:
        """None where too little is known; ``works`` are the seconds outside pauses."""
        metrics = (TYPICAL, LONGEST, CORES, HOST, EXECUTIONS, LINKS)
        span = inputs.hardware(metrics, past_s).of(nodes)
        here, every_s = np.isin(span.ticks, works), inputs.report_every_s
        since = here & (span.ticks > onset_s)
        before = here & (span.ticks <= onset_s - 2 * every_s)
        before &= span.ticks > onset_s - BEFORE_S
        if min(since.sum(), before.sum()) < max(5, LEAST_REPORTS * every_s):
            return None

        def halves_of(metric: str, typical: Callable[[FloatArray], FloatArray]) -> Change:
            # A process that stops for a moment, to collect garbage say, raises one half only.
            values, halves = node_values(span, metric), np.array_split(np.flatnonzero(since), 2)
            each = [typical(values[rows].T) for rows in halves]
            return Change(typical(values[before].T), np.fmin(*each))

        def mean_of(metric: str) -> Change:
            values = mean(part_values(span, metric).astype(float), axis=2)
            return Change(mean(values[before], axis=0), mean(values[since], axis=0))

        def lasting_of(metric: str) -> Change:
            values, thirds = node_values(span, metric), np.array_split(np.flatnonzero(since), 3)
            each = np.stack([mean(values[rows], axis=0) for rows in thirds])
            # What all do, such as writing a checkpoint, makes none of them stand out.
            apart = (each / np.maximum(median(each), TINY)[:, None]).min(axis=0)
            lasting = each.min(axis=0)
            return Change(
                mean(values[before], axis=0), np.minimum(lasting, apart * median(lasting))
            )

        return cls(
            nodes,
            slowdown,
            int(since.sum()),
            halves_of(TYPICAL, median),
            # Where steps are longer than reports, few of these hold an exchange.
            halves_of(LONGEST, partial(mean, axis=1)),
            mean_of(CORES),
            # Hosts read and decode in bursts: a median of few reports is one burst more or less.
            # Other jobs of a host end: each third must show that it is busier.
            lasting_of(HOST),
            mean_of(EXECUTIONS),
            mean_of(LINKS),
        )

    @property
    def is_other_step(self) -> bool:
        """Whether a step has another number of executions than before, such as a larger batch."""
        before, since = (
            float(np.nansum(getattr(self.exchanged, name)) / np.nansum(executions))
            for name, executions in (
                ("before", self.executions.before),
                ("since", self.executions.since),
            )
        )
        is_known = not self.is_local and before > 0 and since > 0
        return is_known and max(before / since, since / before) > SAME_STEP

    @property
    def is_local(self) -> bool:
        """Whether nodes exchange no gradients by EFA. A rest of traffic says nothing of a step."""
        return float(median(self.exchanged.since)) < CARRIES_BYTES_PER_S

    @property
    def rests(self) -> NDArray[np.bool_]:
        """Nodes whose cores rest for about the time by which steps are longer: (n_nodes,)."""
        return np.asarray(self.cores.rise <= -HALF * (1.0 - 1.0 / (1.0 + self.slowdown)))

    @property
    def may_be_other_step(self) -> bool:
        """Whether nothing tells slow executions from steps with another number of them.

        Links without traffic do not tell. Then executions that take no longer, on cores that rest
        no longer, are those of another step. Without latencies only a large slowdown is certain.
        """
        if not self.is_local or self.rests.any():
            return False
        rises = np.fmax(self.typical.rise, self.longest.rise)
        if np.isfinite(rises).all():
            return bool((rises < HALF * self.slowdown).all())
        return self.slowdown < OTHER_STEP_RATIO


@dataclass(frozen=True, slots=True)
class Slowdown:
    """``usual`` and ``now``: executions per second, in windows of ``n_bins``."""

    usual: float
    now: float
    n_bins: int
    onset_s: float
    deviations: float

    @property
    def ratio(self) -> float:
        """How much longer the same work takes, less one."""
        return self.usual / self.now - 1.0


def find_slow_progress(inputs: DetectionInput) -> list[Problem]:
    """Find that a run without step reports works more slowly than it did.

    Notes
    -----
    A mean over a Hann window has next to no ripple of the steps in it from two steps on. Windows
    of three lengths are each compared with earlier ones of the same length, by their median and
    median absolute deviation: where steps are too long for a window, its variation says so.
    """
    if len(inputs.steps) or inputs.phase != TRAINING or not inputs.reads_hardware:
        return []
    progress = recent_progress(inputs)
    found = None if progress is None else _slowdown(inputs, progress)
    if progress is None or found is None:
        return []
    held, score = _held(inputs), None
    if held is not None and held.cause != UNKNOWN:
        score = score_of_alert(held)
    elif (changes := _changes(inputs, progress, found)) is not None:
        if held is None and changes.is_other_step:
            return []
        score = find_slow_node(changes)
        if held is None and score is None and changes.may_be_other_step:
            return []
    return [
        Problem(
            cause=score.cause if score else UNKNOWN,
            score=score,
            kind="input" if score and phase_of(score.cause) == "input_s" else "step",
            onset_s=found.onset_s,
            strength=found.ratio / LEAST_RATIO,
            extra={
                "phase_s": None,
                "executions_per_s": found.now,
                "baseline_executions_per_s": found.usual,
                "window_bins": found.n_bins,
                "n_working": len(progress.nodes),
                "slowdown_ratio": 1.0 + found.ratio,
                "confidence_deviations": found.deviations,
            },
        )
    ]


def _changes(inputs: DetectionInput, progress: Progress, found: Slowdown) -> Changes | None:
    """Compare the nodes with before the onset; None once an open alert is too old to be named.

    Seconds after its end would show what differs then.
    """
    size = bin_size(inputs)
    if _newest(progress, found.n_bins) > (found.usual + found.now) / 2:
        return None
    if inputs.now_s - found.onset_s > NAMES_WITHIN_S + 2 * found.n_bins * size:
        return None
    works = (progress.ended_at_s[:, None] - np.arange(size)).astype(int).ravel()
    return Changes.read(
        inputs,
        progress.nodes,
        onset_s=found.onset_s,
        slowdown=found.ratio,
        works=works,
        past_s=PAST_S,
    )


def bin_size(inputs: DetectionInput) -> int:
    """Seconds of one bin: at least one report."""
    return max(BIN_S, inputs.report_every_s)


def _held(inputs: DetectionInput) -> OpenProblem | None:
    """Return the open alert that this rule raised."""
    held = (a for a in inputs.open_problems if "baseline_executions_per_s" in a.evidence)
    return next(held, None)


def recent_progress(inputs: DetectionInput) -> Progress | None:
    """None where nodes do not count executions, or too few bins have arrived."""
    span = inputs.hardware((EXECUTIONS,), PAST_S)
    values = node_values(span, EXECUTIONS)
    ends, rate = _bins(span, values, inputs)
    known = np.isfinite(rate)
    usual = median(np.where(rate > 0, rate, np.nan).T)
    if not np.isfinite(usual).any():
        return None
    works = known & (rate > WORKS * usual)
    size = bin_size(inputs)
    n_rests = max(RESTS_S, RESTS_REPORTS * size) // size
    lately = np.asarray(works[-1 - n_rests :].any(axis=0))
    # The run continues with fewer nodes: what was before says nothing.
    lately &= ~_has_left(known, works, n_bins=LEFT_S // size)
    most = PROCESS_RESTART_S // size
    rows = _settled(_carried(works, known, n_bins=most), lately, n_rests=n_rests)
    if not lately.any() or not rows.size:
        return None
    nodes = tuple(name for name, here in zip(span.nodes, lately, strict=True) if here)
    # A node that does not work, or report, says nothing: all others make the same steps.
    usual_rate = float(median(usual[lately]))
    typical = usual_rate * mean(np.where(works, rate / usual, np.nan), axis=1)
    typical = np.where(works.any(axis=1), typical, 0.0)
    # A run of which no node reports for so long has stopped; a shorter gap says nothing.
    silent = np.asarray(~known.any(axis=1))
    typical[silent & (_run_lengths(silent) <= most)] = np.nan
    keep = rows[np.isfinite(typical[rows])]
    # While an alert is open its steps are long: two rests are those between their parts.
    enough = ENOUGH_WINDOWS if _held(inputs) is None else ENOUGH_WINDOWS // 2
    keep = keep[~_pauses(typical[keep] / usual_rate, enough=enough, size_s=size)]
    later = values[span.ticks > ends[-1]]
    if _held(inputs) is None and (later == 0).any(axis=0).sum() > HALF * len(span.nodes):
        # Where that is a pause that begins, it is part of the last two bins.
        keep = keep[:-2]
    return Progress(ends[keep], typical[keep], nodes)


def _bins(span: Span, values: FloatArray, inputs: DetectionInput) -> tuple[FloatArray, FloatArray]:
    """Means over BIN_S seconds that have arrived whole: (n_bins,) ends, (n_bins, n_nodes)."""
    known = np.flatnonzero(np.isfinite(values).any(axis=1))
    if not known.size:
        return np.zeros(0), np.zeros((0, values.shape[1]))
    # Until all nodes have reported, a bin is that of some nodes.
    last = max(0, known[-1] + 1 - (inputs.report_every_s - 1))
    size = bin_size(inputs)
    n_bins = (last - known[0]) // size
    first = last - n_bins * size
    cut = values[first:last].reshape(n_bins, size, values.shape[1])
    ends = np.asarray(span.ticks[first + size - 1 : last : size], dtype=float)
    return ends, mean(cut.astype(float), axis=1)


def _has_left(
    known: NDArray[np.bool_], works: NDArray[np.bool_], *, n_bins: int
) -> NDArray[np.bool_]:
    """Nodes that report and rest in the newest bins while others work: (n_nodes,)."""
    known, works = known[-n_bins:], works[-n_bins:]
    others = works.sum(axis=1) > LEFT_SHARE * known.sum(axis=1)
    return np.asarray(known.all(axis=0) & ~works.any(axis=0) & others.all())


def _carried(
    works: NDArray[np.bool_], known: NDArray[np.bool_], *, n_bins: int
) -> NDArray[np.bool_]:
    """Let nodes work as before while they do not report, for a few bins: agents restart."""
    carried, missed = works.copy(), np.zeros(works.shape[1], int)
    for row in range(1, len(works)):
        missed = np.where(known[row], 0, missed + 1)
        carried[row] |= carried[row - 1] & (missed > 0) & (missed <= n_bins)
    return carried


def _run_lengths(flags: NDArray[np.bool_]) -> IntArray:
    """Length of the stretch of true flags that each is part of, else 0: (n,)."""
    lengths = np.zeros(len(flags), int)
    for first, end in np.flatnonzero(np.diff(flags, prepend=False, append=False)).reshape(-1, 2):
        lengths[first:end] = end - first
    return lengths


def _settled(works: NDArray[np.bool_], lately: NDArray[np.bool_], *, n_rests: int) -> IntArray:
    """Bins since the set of working nodes last changed; bins without work change nothing.

    Nor does a node that rests for ``n_rests`` bins.
    """
    is_work = works.any(axis=1)
    smooth = works.copy()
    for n_before in range(1, 1 + n_rests):
        smooth[n_before:] |= works[:-n_before]
    is_other = is_work & (smooth != lately).any(axis=1)
    first = int(np.flatnonzero(is_other)[-1]) + 1 if is_other.any() else 0
    return np.arange(first, len(works))


def _pauses(rate: FloatArray, *, enough: int, size_s: int) -> NDArray[np.bool_]:
    """Bins of pauses: no work for much longer than between the parts of a step.

    ``enough`` rests show how long those are. The warm-up after a long pause belongs to it.
    """
    rests = rate < PAUSES
    if not rests.any():
        return np.zeros(len(rate), bool)
    lengths = _run_lengths(rests)
    stretches = lengths[np.flatnonzero(np.diff(np.concatenate([[0], lengths])) != 0)]
    stretches = stretches[stretches > 0]
    usual = middle(stretches.astype(float)) if stretches.size >= enough else 0.0
    is_pause = lengths > (2 * usual + 1 if usual else 0)
    restarts = np.flatnonzero(is_pause & (lengths * size_s >= PROCESS_RESTART_S))
    for last in restarts[np.diff(restarts, append=len(rate) + 1) > 1]:
        is_pause[last : last + 1 + WARM_UP_S // size_s] = True
    # A rest that lasts until now may become a pause.
    if rests.size and rests[-1] and lengths[-1] > usual:
        is_pause[-lengths[-1] :] = True
    # Nodes report at different seconds: two bins at both ends are partly pause.
    padded = np.pad(is_pause, 2)
    return np.asarray(np.any([padded[i : i + len(rate)] for i in range(5)], axis=0))


def _windowed(rate: FloatArray, n_bins: int) -> FloatArray:
    """Hann-weighted means of consecutive bins, oldest first: (n - n_bins + 1,)."""
    weight = np.hanning(n_bins + 2)[1:-1]
    return np.convolve(rate, weight / weight.sum(), mode="valid")


def _slowdown(inputs: DetectionInput, progress: Progress) -> Slowdown | None:
    if (held := _held(inputs)) is not None:
        return _lasting(held, progress)
    size = bin_size(inputs)
    # The newest bins must be slow for themselves: a dip just over is none.
    earlier = progress.rate[:-2]
    scatter = GAUSSIAN * middle(np.abs(earlier - middle(earlier)))
    newest = float(progress.rate[-2:].max(initial=0.0)) - 2 * scatter
    for n_bins in (max(2, each // size) for each in WINDOWS_S):
        if len(progress.rate) < (1 + ENOUGH_WINDOWS) * n_bins:
            break
        paces = _windowed(progress.rate, n_bins)
        now, past = float(paces[-1]), paces[:-n_bins]
        usual = middle(past)
        spread = max(GAUSSIAN * middle(np.abs(past - usual)), LEAST_SPREAD * usual)
        middle_way = (usual + now) / 2
        is_slow = now > 0 and usual / now - 1.0 >= LEAST_RATIO
        is_slow = is_slow and usual - now >= DEVIATIONS * spread
        is_slow = is_slow and newest <= usual / (1 + LEAST_RATIO)
        is_slow = is_slow and (1.0 - now / usual) * n_bins * size >= LOST_S
        if is_slow and _lasts(progress, n_bins, middle_way):
            # What has been slow for more than two windows was part of another problem.
            if middle(paces[-3 * n_bins : -n_bins]) < middle_way:
                return None
            after = progress.rate[-2 * n_bins :] < middle_way
            first = len(progress.rate) - len(after) + int(np.argmax(after))
            deviations = (usual - now) / spread
            return Slowdown(usual, now, n_bins, float(progress.ended_at_s[first]), deviations)
    return None


def _lasts(progress: Progress, n_bins: int, most: float) -> bool:
    """Whether both halves of the newest window are slow, each without its lowest bin.

    In a bin a pause may begin or end.
    """
    window = progress.rate[-max(n_bins, 4) :]
    halves = (window[: len(window) // 2], window[len(window) // 2 :])
    is_slow = all(float(np.sort(half)[1:].mean()) <= most for half in halves)
    return is_slow and _newest(progress, n_bins) <= most


def _newest(progress: Progress, n_bins: int) -> float:
    """Mean of the newest bins but the lowest, in which a pause may begin."""
    newest = np.sort(progress.rate[-max(3, n_bins // 3) :])
    return float(newest[1:].mean())


def _lasting(held: OpenProblem, progress: Progress) -> Slowdown | None:
    """Return the slowdown of an open alert, until half is gone or other nodes work."""
    evidence = held.evidence
    usual, was = (
        float(evidence[key]) for key in ("baseline_executions_per_s", "executions_per_s")
    )
    n_bins = int(evidence["window_bins"])
    if len(progress.rate) < n_bins or len(progress.nodes) != evidence["n_working"]:
        return None
    # Up to twice the window, so that an alert does not come and go with the parts of long steps;
    # what was before the onset does not show that it is over.
    n_since = int((progress.ended_at_s > float(evidence["onset_s"])).sum())
    n_now = min(max(n_bins, n_since), 2 * n_bins, len(progress.rate))
    now = float(_windowed(progress.rate, n_now)[-1])
    is_over = usual - now < (usual - was) / 2
    is_over &= _newest(progress, n_bins) > (3 * usual + was) / 4
    if is_over or now <= 0:
        return None
    return Slowdown(usual, was, n_bins, float(evidence["onset_s"]), 0.0)


def find_slow_node(changes: Changes) -> CauseScore | None:
    """Score the cause of a slowdown; None where it is unknown."""
    return _by_host(changes) or _by_latency(changes)


def _by_latency(changes: Changes) -> CauseScore | None:
    slowdown = changes.slowdown
    typical, longest = changes.typical.rise, changes.longest.rise
    known = np.isfinite(typical) & np.isfinite(longest)
    if not known.all():
        return None
    n_nodes = len(changes.nodes)
    computes, as_before = typical >= MOSTLY * slowdown, typical <= SMALL * slowdown
    ratio = float(median(changes.longest.before / changes.typical.before))
    # Of two nodes the one with longer executions may wait in them for the other one.
    stands_out = n_nodes > 2 or (n_nodes == 2 and ratio >= OWN_EXECUTION)
    if computes.sum() == 1 and as_before.sum() == n_nodes - 1 and stands_out:
        return _score(changes, "slow_compute", changes.typical, int(np.argmax(computes)))
    if n_nodes > 1 and as_before.all() and (longest >= slowdown).all():
        return _score(changes, "network", changes.longest, None)
    is_even = float(np.ptp(typical)) <= SMALL * slowdown
    if ratio >= OWN_EXECUTION and is_even and (typical >= MOSTLY * slowdown).all():
        return _score(changes, "slow_compute", changes.typical, None)
    return None


def _score(changes: Changes, cause: str, change: Change, row: int | None) -> CauseScore:
    """Score one node against its peers, or all against their past."""
    rise = float(median(change.rise) if row is None else change.rise[row])
    strength = rise / (MOSTLY * changes.slowdown)
    if row is None:
        value, usual = float(median(change.since)), float(median(change.before))
        metric = TYPICAL if change is changes.typical else LONGEST
        return CauseScore(cause, strength, metric, value, usual, 0, "s")
    value, peers = float(change.since[row]), np.delete(change.since, row)
    usual, node = float(lower_median(peers)), changes.nodes[row]
    return CauseScore(cause, strength, TYPICAL, value, usual, len(peers), "s", node)


def _by_host(changes: Changes) -> CauseScore | None:
    """Score nodes whose hosts work harder while the run is slow: they read and decode data."""
    n_nodes, hosts = len(changes.nodes), changes.hosts
    change = hosts.rise + 1.0
    # Cores rest while the data is read, or wait for the node that reads.
    known: NDArray[np.bool_] = np.isfinite(change) & changes.rests
    if not known.any():
        return None
    above = known & (change >= HOST_RISE)
    is_all = n_nodes > 1 and float(above.mean()) >= MOST
    order = np.argsort(np.where(known, change, -np.inf))
    worst = int(order[-1])
    if not is_all:
        if changes.since_s < HOST_LASTS_S or not above[worst]:
            return None
        usual = float(lower_median(change)) if n_nodes > 1 else 1.0
        excess = float(change[worst]) - usual
        # A single node must stand out from all others, and beyond how much they vary.
        next_ = float(change[order[-2]]) if n_nodes > 1 else 1.0
        others = np.delete(change, worst)
        spread = GAUSSIAN * float(median(np.abs(others - usual))) if n_nodes > 2 else 0.0
        if excess < max(HOST_RISE - 1, HOST_DEVIATIONS * spread) or next_ - usual > HALF * excess:
            return None
    score = CauseScore(
        CAUSE_OF_PHASE["input_s"],
        float((change[worst] - 1.0) / (HOST_RISE - 1.0)),
        HOST,
        float(hosts.since[worst]),
        float(hosts.before[worst] if is_all else lower_median(hosts.since)),
        0 if is_all else int(known.sum()) - 1,
        "ratio",
    )
    return score if is_all else replace(score, node=changes.nodes[worst])
