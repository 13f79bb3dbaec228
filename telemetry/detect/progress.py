"""A run without step reports: how fast it works, by the executions that its nodes complete.

A training step is a fixed number of graph executions per sequence, so executions per second fall
by the factor by which steps get longer, whatever the step time is.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from telemetry.blocks import FloatArray, IntArray, Span
from telemetry.detect.causes import UNKNOWN
from telemetry.detect.findings import CauseScore, Problem, score_of_alert
from telemetry.detect.inputs import DetectionInput, OpenProblem, node_values, part_values
from telemetry.detect.rules import RULES
from telemetry.detect.standstill import CORES, EXECUTIONS, HOST, TRAINING
from telemetry.statistics.peers import GAUSSIAN, lower_median, mean, median, middle

LIMITS = RULES["step_slow"].limits
LEAST_RATIO, HALF = LIMITS["least_ratio"], LIMITS["half_ratio"]
# Seconds of one bin, and of the past that is read.
BIN_S, PAST_S = 5, 840
# Lengths of the windows that are compared with earlier ones; long steps need long windows.
WINDOWS_S = (30, 60, 120)
# How many earlier windows it takes, and required deviations of their variation.
ENOUGH_WINDOWS, DEVIATIONS, LEAST_SPREAD = 4, 6.0, 0.008
# A node works in a bin from this share of the usual executions on.
WORKS = 0.05
# Required rise of a host above its own past and above that of its peers.
HOST_RATIO = 1.08
# Storage is shared: one node starves, or nearly all do.
MOST = 0.9


@dataclass(frozen=True, slots=True)
class Progress:
    """Executions per second of a usual node of a run, in bins, oldest first.

    ``ended_at_s`` (n_bins,) and ``rate`` (n_bins,). Bins of pauses, and those before the set of
    working nodes last changed, are left out.
    """

    ended_at_s: FloatArray
    rate: FloatArray
    nodes: tuple[str, ...]


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
    held = _held(inputs)
    if held is not None:
        score = score_of_alert(held) if held.cause != UNKNOWN else None
    else:
        score = _starving(inputs, progress, found)
    return [
        Problem(
            cause=score.cause if score else UNKNOWN,
            score=score,
            kind="input" if score else "step",
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


def _held(inputs: DetectionInput) -> OpenProblem | None:
    """Return the open alert that this rule raised."""
    held = (a for a in inputs.open_problems if "baseline_executions_per_s" in a.evidence)
    return next(held, None)


def recent_progress(inputs: DetectionInput) -> Progress | None:
    """None where nodes do not count executions, or too few bins have arrived."""
    span = inputs.hardware((EXECUTIONS,), PAST_S)
    ends, rate = _bins(span, node_values(span, EXECUTIONS), inputs)
    known = np.isfinite(rate)
    usual = median(np.where(rate > 0, rate, np.nan).T)
    if not np.isfinite(usual).any():
        return None
    works = known & (rate > WORKS * usual)
    lately = np.asarray(works[-WINDOWS_S[0] // BIN_S :].any(axis=0))
    rows = _settled(works, lately)
    if not lately.any() or not rows.size:
        return None
    nodes = tuple(name for name, here in zip(span.nodes, lately, strict=True) if here)
    # A node that does not work, or report, says nothing: all others make the same steps.
    typical = np.where(works.any(axis=1), mean(np.where(works, rate / usual, np.nan), axis=1), 0.0)
    typical[~known.any(axis=1)] = np.nan
    keep = rows[np.isfinite(typical[rows])]
    keep = keep[~_pauses(typical[keep])]
    return Progress(ends[keep], typical[keep], nodes)


def _bins(span: Span, values: FloatArray, inputs: DetectionInput) -> tuple[FloatArray, FloatArray]:
    """Means over BIN_S seconds that have arrived whole: (n_bins,) ends, (n_bins, n_nodes)."""
    known = np.flatnonzero(np.isfinite(values).any(axis=1))
    if not known.size:
        return np.zeros(0), np.zeros((0, values.shape[1]))
    # Until all nodes have reported, a bin is that of some nodes.
    last = max(0, known[-1] + 1 - (inputs.report_every_s - 1))
    size = max(BIN_S, inputs.report_every_s)
    n_bins = (last - known[0]) // size
    first = last - n_bins * size
    cut = values[first:last].reshape(n_bins, size, values.shape[1])
    ends = np.asarray(span.ticks[first + size - 1 : last : size], dtype=float)
    return ends, mean(cut.astype(float), axis=1)


def _settled(works: NDArray[np.bool_], lately: NDArray[np.bool_]) -> IntArray:
    """Bins since the set of working nodes last changed; bins without work change nothing."""
    is_work = works.any(axis=1)
    smooth = np.stack([works[max(0, i - 5) : i + 1].any(axis=0) for i in range(len(works))])
    is_other = is_work & (smooth != lately).any(axis=1)
    first = int(np.flatnonzero(is_other)[-1]) + 1 if is_other.any() else 0
    return np.arange(first, len(works))


def _pauses(rate: FloatArray) -> NDArray[np.bool_]:
    """Bins of pauses: no work for much longer than between the parts of a step."""
    rests = rate < WORKS
    lengths = np.zeros(len(rate), int)
    start = None
    for i, rest in enumerate([*rests.tolist(), False]):
        if rest and start is None:
            start = i
        elif not rest and start is not None:
            lengths[start:i] = i - start
            start = None
    stretches = lengths[np.flatnonzero(np.diff(np.concatenate([[0], lengths])) != 0)]
    stretches = stretches[stretches > 0]
    usual = middle(stretches) if stretches.size >= ENOUGH_WINDOWS else 0.0
    is_pause = lengths > 2 * usual + 1
    # A rest that lasts until now may become a pause.
    if rests.size and rests[-1] and lengths[-1] > usual:
        is_pause[-lengths[-1] :] = True
    # The bins at both ends are partly pause.
    return np.asarray(
        is_pause | np.append(is_pause[1:], False) | np.concatenate([[False], is_pause[:-1]])
    )


def _windowed(rate: FloatArray, n_bins: int) -> FloatArray:
    """Hann-weighted means of consecutive bins, oldest first: (n - n_bins + 1,)."""
    weight = np.hanning(n_bins + 2)[1:-1]
    return np.convolve(rate, weight / weight.sum(), mode="valid")


def _slowdown(inputs: DetectionInput, progress: Progress) -> Slowdown | None:
    if (held := _held(inputs)) is not None:
        return _lasting(held, progress)
    size = max(BIN_S, inputs.report_every_s)
    for n_bins in (max(2, each // size) for each in WINDOWS_S):
        if len(progress.rate) < (1 + ENOUGH_WINDOWS) * n_bins:
            break
        paces = _windowed(progress.rate, n_bins)
        now, past = float(paces[-1]), paces[:-n_bins]
        usual = middle(past)
        spread = max(GAUSSIAN * middle(np.abs(past - usual)), LEAST_SPREAD * usual)
        least = DEVIATIONS * spread
        middle_way = (usual + now) / 2
        if _lasts(progress, n_bins, middle_way) and _is_enough(usual, now, least):
            after = progress.rate[-2 * n_bins :] < middle_way
            first = len(progress.rate) - len(after) + int(np.argmax(after))
            deviations = (usual - now) / spread
            return Slowdown(usual, now, n_bins, float(progress.ended_at_s[first]), deviations)
    return None


def _is_enough(usual: float, now: float, least: float) -> bool:
    return now > 0 and usual / now - 1.0 >= LEAST_RATIO and usual - now >= least


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
    now = float(_windowed(progress.rate, n_bins)[-1])
    is_over = usual - now < (usual - was) / 2
    is_over &= _newest(progress, n_bins) > (3 * usual + was) / 4
    if is_over or now <= 0:
        return None
    return Slowdown(usual, was, n_bins, float(evidence["onset_s"]), 0.0)


def _starving(inputs: DetectionInput, progress: Progress, found: Slowdown) -> CauseScore | None:
    """Score nodes whose hosts work harder while the run is slow: they read and decode data."""
    span = inputs.hardware((HOST, CORES), PAST_S).of(progress.nodes)
    hosts = node_values(span, HOST)
    # Pauses, such as checkpoints, are left out.
    works = np.isin((span.ticks - 1) // BIN_S, (progress.ended_at_s - 1) // BIN_S)
    since = works & (span.ticks > found.onset_s)
    before = works & ~since & (span.ticks > found.onset_s - 2 * WINDOWS_S[-1])
    if since.sum() < BIN_S or before.sum() < BIN_S:
        return None
    was, now = median(hosts[before].T), median(hosts[since].T)
    change = now / was
    known = np.isfinite(change)
    if not known.any():
        return None
    cores = part_values(span, CORES)
    busy = mean(mean(cores[since], axis=0), axis=1) / mean(mean(cores[before], axis=0), axis=1)
    # Cores rest while the data is read, or wait for the node that reads.
    known &= busy <= 1.0 - HALF * (1.0 - found.now / found.usual)
    above = known & (change >= HOST_RATIO)
    n_nodes = len(progress.nodes)
    is_all = n_nodes > 1 and float(above.mean()) >= MOST
    order = np.argsort(np.where(known, change, -np.inf))
    worst = int(order[-1])
    usual = float(lower_median(change)) if n_nodes > 1 else 1.0
    if not is_all:
        # A single node must stand out from all others, not only from most.
        next_ = float(change[order[-2]]) if n_nodes > 1 else 1.0
        if not above[worst] or next_ - usual > HALF * (change[worst] - usual):
            return None
    return CauseScore(
        "input_stall",
        float((change[worst] - 1.0) / (HOST_RATIO - 1.0)),
        HOST,
        float(now[worst]),
        float(was[worst] if is_all else lower_median(now)),
        0 if is_all else int(known.sum()) - 1,
        "ratio",
        None if is_all else progress.nodes[worst],
    )
