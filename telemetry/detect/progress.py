"""A run without step reports: how fast it works, and which node makes it slow, by executions.

A training step is a fixed number of graph executions per sequence, so executions per second fall
by the factor by which steps get longer, whatever the step time is.

1. Executions of a usual node are counted in bins of 5 s, or one report.
2. Bins count since the set of working nodes last changed. Pauses, and the warm-up after a long
   one, do not.
3. Windows of three lengths are compared with earlier ones: a fall is slow if it is large beside
   how much these vary, is new, and lasts.
4. What changed on the nodes since then names the cause: hosts that read, or latencies.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from telemetry.blocks import FloatArray, IntArray, Span
from telemetry.detect.causes import UNKNOWN, phase_of
from telemetry.detect.findings import CauseScore, Problem, score_of_alert
from telemetry.detect.inputs import DetectionInput, OpenProblem, node_values, part_values
from telemetry.detect.rules import RULES
from telemetry.detect.standstill import (
    CORES,
    EXECUTIONS,
    HOST,
    KEEPS_ALIVE_BYTES_PER_S,
    LINKS,
    OLDEST_S,
    TRAINING,
    Flags,
)
from telemetry.statistics.peers import GAUSSIAN, lower_median, mean, median, middle
from telemetry.units import MINUTE_S

# Settings of the rule: steps are longer by this, and half of a change is none any more.
LEAST_RATIO, HALF = (RULES["step_slow"].limits[key] for key in ("least_ratio", "half_ratio"))
# Lengths of the windows that are compared with earlier ones; long steps need long windows.
BIN_S, WINDOWS_S = 5, (30, 60, 120)
# How many earlier windows it takes, how many deviations of their variation, and its least: an
# execution more or less in a window.
ENOUGH_WINDOWS, DEVIATIONS, LEAST_SPREAD = 4, 6.0, 0.008
# Physics: a loader that waits costs seconds (assumed: docs/physics.md); no more is no
# slowdown.
LOST_S = 3.5
# A node works in a bin from this share of its usual executions on; a run that makes fewer than the
# second share pauses, as it has parts of a pause at both ends of a bin.
WORKS, PAUSES = 0.05, 0.15
# Between the parts of a step a node rests for at most so long. After a longer pause the processes
# may have restarted: their first steps take longer.
RESTS_S, RESTART_S, WARM_UP_S = 25, 45, 120
# How long the executions of a node took: each micro-batch is one, the longest of a step also
# exchanges the gradients (an assumption about how graphs are compiled; where each execution
# exchanges, those of all nodes take longer alike, which names no cause).
TYPICAL, LONGEST = "execution_latency_p50_s", "execution_latency_p100_s"
# A node is as before up to this part of the slowdown, and explains it from the second part on. A
# step that exchanges as many bytes for more of its executions is another one.
SMALL, MOSTLY = 0.2, 0.7
# A host that reads and decodes is busier by this, above its own past and above its peers.
HOST_RISE = 0.08


@dataclass(frozen=True, slots=True)
class Progress:
    """Executions per second of a usual node of a run, in bins, oldest first.

    ``ended_at_s`` (n_bins,) and ``rate`` (n_bins,) per second. Bins of pauses, and those before
    the set of working nodes last changed, are left out.
    """

    ended_at_s: FloatArray
    rate: FloatArray
    nodes: tuple[str, ...]

    def newest(self, n_bins: int) -> float:
        """Mean of the newest bins but the lowest, in which a pause may begin."""
        newest = np.sort(self.rate[-max(3, n_bins // 3) :])
        return float(newest[1:].mean())

    def windows(self, n_bins: int) -> FloatArray:
        """Hann-weighted means of consecutive bins, oldest first: (n - n_bins + 1,).

        They have next to no ripple of the steps in them from two steps on.
        """
        weight = np.hanning(n_bins + 2)[1:-1]
        return np.convolve(self.rate, weight / weight.sum(), mode="valid")


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


def find_slow_progress(
    inputs: DetectionInput, *, over: Sequence[tuple[float, float]] = ()
) -> list[Problem]:
    """Find that a run without step reports became slower.

    Times of problems that are ``over``, from and to, show nothing of what is usual.
    """
    if inputs.phase != TRAINING or not inputs.reads_hardware:
        return []
    held = next((a for a in inputs.open_problems if "window_bins" in a.evidence), None)
    size = max(BIN_S, inputs.report_every_s)
    progress = recent_progress(inputs, size, is_held=held is not None, over=over)
    if progress is None:
        return []
    found = _slowdown(progress, size) if held is None else _lasting(held, progress)
    if found is None:
        return []
    score = None
    if held is not None and held.cause != UNKNOWN:
        score = score_of_alert(held)
    elif (changes := Changes.read(inputs, progress, found, size)) is not None:
        score = _by_host(changes) or _by_latency(changes)
        if held is None and changes.is_other_step(is_named=score is not None):
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


def recent_progress(
    inputs: DetectionInput,
    size: int,
    *,
    is_held: bool,
    over: Sequence[tuple[float, float]] = (),
) -> Progress | None:
    """None where nodes do not count executions, or too few bins have arrived."""
    span = inputs.hardware((EXECUTIONS,), OLDEST_S)
    values = node_values(span, EXECUTIONS)
    ends, rate = _bins(span, values, size, report_every_s=inputs.report_every_s)
    known = np.isfinite(rate)
    usual = median(np.where(rate > 0, rate, np.nan).T)
    if not np.isfinite(usual).any():
        return None
    works = known & (rate > WORKS * usual)
    n_rests, n_restart = max(1, RESTS_S // size), RESTART_S // size
    lately = np.asarray(works[-1 - n_rests :].any(axis=0))
    # While an agent restarts its node works as before.
    age = np.arange(len(rate))[:, None]
    last = np.maximum.accumulate(np.where(known, age, 0), axis=0)
    carried = np.take_along_axis(works, last, axis=0) & (age - last <= n_restart)
    # The run continues with other nodes: what was before says nothing. Bins without any work, or
    # between the parts of a step, change nothing.
    smooth = np.logical_or.reduce([_later(carried, n) for n in range(1 + n_rests)])
    changed = np.flatnonzero(carried.any(axis=1) & (smooth != lately).any(axis=1))
    rows = np.arange(changed[-1] + 1 if changed.size else 0, len(rate))
    if not lately.any() or not rows.size:
        return None
    # A node that does not work, or report, says nothing: all others make the same steps.
    usual_rate = float(median(usual[lately]))
    typical = usual_rate * mean(np.where(works, rate / usual, np.nan), axis=1)
    typical = np.where(works.any(axis=1), typical, 0.0)
    # A run of which no node reports for so long has stopped; a shorter gap says nothing.
    silent = np.asarray(~known.any(axis=1))
    typical[silent & (_run_lengths(silent) <= n_restart)] = np.nan
    keep = rows[np.isfinite(typical[rows])]
    # While an alert is open its steps are long: two rests are those between their parts.
    enough = ENOUGH_WINDOWS // 2 if is_held else ENOUGH_WINDOWS
    keep = keep[~_pauses(typical[keep] / usual_rate, enough=enough, size_s=size)]
    for since_s, until_s in over:
        keep = keep[(ends[keep] <= since_s) | (ends[keep] - size >= until_s)]
    later = values[span.ticks > ends[-1]]
    if not is_held and (later == 0).any(axis=0).sum() > HALF * len(span.nodes):
        # Where that is a pause that begins, it is part of the last two bins.
        keep = keep[:-2]
    nodes = tuple(name for name, here in zip(span.nodes, lately, strict=True) if here)
    return Progress(ends[keep], typical[keep], nodes)


def _bins(
    span: Span, values: FloatArray, size: int, *, report_every_s: int
) -> tuple[FloatArray, FloatArray]:
    """Means over ``size`` seconds that have arrived whole: (n_bins,) ends, (n_bins, n_nodes)."""
    known = np.flatnonzero(np.isfinite(values).any(axis=1))
    if not known.size:
        return np.zeros(0), np.zeros((0, values.shape[1]))
    # Until all nodes have reported, a bin is that of some nodes.
    last = max(0, known[-1] + 1 - (report_every_s - 1))
    n_bins = (last - known[0]) // size
    first = last - n_bins * size
    cut = values[first:last].reshape(n_bins, size, values.shape[1])
    ends = np.asarray(span.ticks[first + size - 1 : last : size], dtype=float)
    return ends, mean(cut.astype(float), axis=1)


def _later(flags: Flags, n: int) -> Flags:
    """Shift the rows by ``n``."""
    return np.pad(flags, ((n, 0), *[(0, 0)] * (flags.ndim - 1)))[: len(flags)]


def _run_lengths(flags: Flags) -> IntArray:
    """Length of the stretch of true flags that each is part of, else 0: (n,)."""
    lengths = np.zeros(len(flags), int)
    for first, end in np.flatnonzero(np.diff(flags, prepend=False, append=False)).reshape(-1, 2):
        lengths[first:end] = end - first
    return lengths


def _pauses(rate: FloatArray, *, enough: int, size_s: int) -> Flags:
    """Bins of pauses: no work for much longer than between the parts of a step.

    ``enough`` rests show how long those are. The warm-up after a long pause belongs to it.
    """
    rests = rate < PAUSES
    if not rests.any():
        return np.zeros(len(rate), bool)
    lengths = _run_lengths(rests)
    first = rests & ~_later(rests, 1)
    usual = middle(lengths[first].astype(float)) if first.sum() >= enough else 0.0
    is_pause = lengths > (2 * usual + 1 if usual else 0)
    # A rest that lasts until now may become a pause.
    is_pause[len(rate) - lengths[-1] :] |= lengths[-1] > usual
    restarts = np.flatnonzero(is_pause & (lengths * size_s >= RESTART_S))
    for last in restarts[np.diff(restarts, append=len(rate) + 1) > 1]:
        is_pause[last : last + 1 + WARM_UP_S // size_s] = True
    # Nodes report at different seconds: two bins at both ends are partly pause.
    padded = np.pad(is_pause, 2)
    return np.asarray(np.any([padded[i : i + len(rate)] for i in range(5)], axis=0))


def _slowdown(progress: Progress, size: int) -> Slowdown | None:
    """Compare the newest window of each length with earlier ones; by how much these vary.

    Where steps are too long for a window, its variation says so.
    """
    rate = progress.rate
    for n_bins in (max(2, each // size) for each in WINDOWS_S):
        if len(rate) < (1 + ENOUGH_WINDOWS) * n_bins:
            break
        paces = progress.windows(n_bins)
        now, past = float(paces[-1]), paces[:-n_bins]
        usual = middle(past)
        spread = max(GAUSSIAN * middle(np.abs(past - usual)), LEAST_SPREAD * usual)
        half_way, lost = (usual + now) / 2, 1.0 - now / usual
        least = max(DEVIATIONS * spread / usual, LEAST_RATIO / (1 + LEAST_RATIO))
        if lost < max(least, LOST_S / (n_bins * size)) or not _lasts(progress, n_bins, half_way):
            continue
        # What has been slow for more than two windows was part of another problem.
        if now <= 0 or middle(paces[-3 * n_bins : -n_bins]) < half_way:
            return None
        after = np.flatnonzero(rate[-2 * n_bins :] < half_way)[0] - 2 * n_bins
        onset_s = float(progress.ended_at_s[after])
        return Slowdown(usual, now, n_bins, onset_s, (usual - now) / spread)
    return None


def _lasts(progress: Progress, n_bins: int, most: float) -> bool:
    """Whether both halves of the newest window are slow, and its newest bins.

    Each without its lowest bin, in which a pause may begin or end.
    """
    halves = np.array_split(progress.rate[-max(n_bins, 4) :], 2)
    is_slow = all(float(np.sort(half)[1:].mean()) <= most for half in halves)
    return is_slow and float(progress.rate[-2:].max()) <= most


def _lasting(held: OpenProblem, progress: Progress) -> Slowdown | None:
    """Return the slowdown of an open alert, until half is gone or other nodes work."""
    seen = held.evidence
    usual, was = float(seen["baseline_executions_per_s"]), float(seen["executions_per_s"])
    n_bins, onset_s = int(seen["window_bins"]), float(seen["onset_s"])
    if len(progress.rate) < n_bins or len(progress.nodes) != seen["n_working"]:
        return None
    # Up to twice the window, so that an alert does not come and go with the parts of long steps;
    # what was before the onset does not show that it is over.
    n_since = int((progress.ended_at_s > onset_s).sum())
    n_now = min(max(n_bins, n_since), 2 * n_bins, len(progress.rate))
    now = float(progress.windows(n_now)[-1])
    is_over = usual - now < (usual - was) / 2
    is_over &= progress.newest(n_bins) > (3 * usual + was) / 4
    return None if is_over or now <= 0 else Slowdown(usual, was, n_bins, onset_s, 0.0)


@dataclass(frozen=True, slots=True)
class Changes:
    """What nodes did before a slowdown by ``slowdown`` began, and since.

    ``before`` marks the ticks of the four minutes before, ``since`` lists those since then, both
    outside pauses.
    """

    span: Span
    slowdown: float
    before: Flags
    since: IntArray

    @classmethod
    def read(
        cls, inputs: DetectionInput, progress: Progress, found: Slowdown, size: int
    ) -> Self | None:
        """None where too little is known.

        Seconds after the end of a slowdown, or long after its onset, would show what differs then.
        """
        is_over = progress.newest(found.n_bins) > (found.usual + found.now) / 2
        if is_over or inputs.now_s - found.onset_s > MINUTE_S + 2 * found.n_bins * size:
            return None
        metrics = (TYPICAL, LONGEST, CORES, HOST, EXECUTIONS, LINKS)
        span = inputs.hardware(metrics, OLDEST_S).of(progress.nodes)
        works = (progress.ended_at_s[:, None] - np.arange(size)).astype(int).ravel()
        here, ago_s = np.isin(span.ticks, works), found.onset_s - span.ticks
        before = here & (ago_s >= 2 * inputs.report_every_s) & (ago_s < 4 * MINUTE_S)
        since = np.flatnonzero(here & (ago_s < 0))
        is_known = min(before.sum(), since.size) >= max(BIN_S, 2 * inputs.report_every_s)
        return cls(span, found.ratio, before, since) if is_known else None

    def means(self, metric: str) -> tuple[FloatArray, FloatArray]:
        """Mean before and since: (n_nodes,) each."""
        values = mean(part_values(self.span, metric).astype(float), axis=2)
        return mean(values[self.before], axis=0), mean(values[self.since], axis=0)

    def parts(self, metric: str, n: int) -> tuple[FloatArray, FloatArray]:
        """Mean before (n_nodes,) and in n parts of the time since (n, n_nodes).

        A process that stops for a moment, to collect garbage say, raises one of them only. Hosts
        read in bursts, and few reports hold an exchange: hence means. That of the typical latency
        is a median.
        """
        values = node_values(self.span, metric)
        typical = median if metric == TYPICAL else _mean_of_rows
        since = [typical(values[rows].T) for rows in np.array_split(self.since, n)]
        return typical(values[self.before].T), np.stack(since)

    def latency(self, metric: str) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Latency before and since, and its rise: (n_nodes,) each."""
        before, halves = self.parts(metric, 2)
        since = np.asarray(np.fmin.reduce(halves))
        return before, since, _rise(before, since)

    @property
    def rests(self) -> Flags:
        """Nodes whose cores rest for about the time by which steps are longer: (n_nodes,)."""
        return np.asarray(_rise(*self.means(CORES)) <= -HALF * (1.0 - 1.0 / (1.0 + self.slowdown)))

    def is_other_step(self, *, is_named: bool) -> bool:
        """Whether a step has, or may have, another number of executions, as of a larger batch.

        One that exchanges other bytes per execution has. Links without traffic do not tell: then
        executions that take no longer, on cores that rest no longer, are those of another step.
        Without latencies only a slowdown by half is certain: a step of three micro-batches where
        it had one executes a third less often per second.
        """
        exchanged, executed = self.means(LINKS), self.means(EXECUTIONS)
        if not median(exchanged[1]) < KEEPS_ALIVE_BYTES_PER_S:
            before, since = (
                np.nansum(links) / np.nansum(done)
                for links, done in zip(exchanged, executed, strict=True)
            )
            is_known = before > 0 and since > 0
            return bool(is_known and max(before / since, since / before) > 1 + SMALL)
        if is_named or self.rests.any():
            return False
        rises = np.fmax(self.latency(TYPICAL)[2], self.latency(LONGEST)[2])
        if np.isfinite(rises).all():
            return bool((rises < HALF * self.slowdown).all())
        return self.slowdown < HALF


def _mean_of_rows(x: FloatArray) -> FloatArray:
    return mean(x, axis=1)


def _rise(before: FloatArray, since: FloatArray) -> FloatArray:
    """Relative rise, NaN where unknown."""
    return np.asarray(since / np.where(before > 0, before, np.nan) - 1.0)


def _by_latency(changes: Changes) -> CauseScore | None:
    slowdown, nodes = changes.slowdown, changes.span.nodes
    before, since, typical = changes.latency(TYPICAL)
    longest_before, _, longest = changes.latency(LONGEST)
    if not (np.isfinite(typical) & np.isfinite(longest)).all():
        return None
    computes, as_before = typical >= MOSTLY * slowdown, typical <= SMALL * slowdown
    # Where an execution of its own exchanges, the longest takes much longer than the typical.
    exchanges_apart = float(median(longest_before / before)) >= 1 + SMALL / 2
    # Of two nodes the one with longer executions may wait in them for the other one.
    stands_out = len(nodes) > 2 or (len(nodes) == 2 and exchanges_apart)
    row = int(np.argmax(computes))
    if computes.sum() == 1 and as_before.sum() == len(nodes) - 1 and stands_out:
        peers = np.delete(since, row)
        value, usual = float(since[row]), float(lower_median(peers))
        strength = float(typical[row]) / (MOSTLY * slowdown)
        return CauseScore(
            "slow_compute", strength, TYPICAL, value, usual, len(peers), "s", nodes[row]
        )
    if len(nodes) > 1 and as_before.all() and (longest >= slowdown).all():
        return _of_all(changes, "network", LONGEST)
    if exchanges_apart and computes.all() and np.ptp(typical) <= SMALL * slowdown:
        return _of_all(changes, "slow_compute", TYPICAL)
    return None


def _of_all(changes: Changes, cause: str, metric: str) -> CauseScore:
    """Score all nodes against their past."""
    usual, value, rise = (float(median(each)) for each in changes.latency(metric))
    strength = rise / (MOSTLY * changes.slowdown)
    return CauseScore(cause, strength, metric, value, usual, 0, "s")


def _by_host(changes: Changes) -> CauseScore | None:
    """Score nodes whose hosts work harder while the run is slow: they read and decode data."""
    before, thirds = changes.parts(HOST, 3)
    # Other jobs of a host end: each third must show that it is busier, apart from what all do,
    # such as writing a checkpoint.
    apart = (thirds / np.maximum(median(thirds), 1e-9)[:, None]).min(axis=0)
    least, n_nodes = thirds.min(axis=0), len(changes.span.nodes)
    since = np.minimum(least, apart * median(least))
    rise = _rise(before, since)
    # Cores rest while the data is read, or wait for the node that reads.
    known = np.isfinite(rise) & changes.rests
    if not known.any():
        return None
    # Storage is shared: one node starves, or nearly all do.
    is_all = n_nodes > 1 and float((known & (rise >= HOST_RISE)).mean()) >= 1 - SMALL / 2
    worst = int(np.argmax(np.where(known, rise, -np.inf)))
    score = CauseScore(
        "input_stall",
        float(rise[worst] / HOST_RISE),
        HOST,
        float(since[worst]),
        float(before[worst] if is_all else lower_median(since)),
        0 if is_all else int(known.sum()) - 1,
        "ratio",
    )
    if is_all:
        return score
    # A single node must stand out from all others, and beyond how much they vary.
    others, usual = np.delete(rise, worst), float(lower_median(rise)) if n_nodes > 1 else 0.0
    next_ = float(np.max(others[np.delete(known, worst)], initial=-np.inf))
    next_ = next_ if n_nodes > 1 else 0.0
    spread = GAUSSIAN * float(median(np.abs(others - usual))) if n_nodes > 2 else 0.0
    excess = float(rise[worst]) - usual
    stands_out = excess >= max(HOST_RISE, DEVIATIONS * spread) and next_ - usual <= HALF * excess
    is_clear = stands_out and rise[worst] >= HOST_RISE and changes.since.size >= MINUTE_S
    return replace(score, node=changes.span.nodes[worst]) if is_clear else None
