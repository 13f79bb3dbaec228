"""Which node makes a run without step reports slow, and why: by executions, cores and hosts.

The runtime reports how long the executions of a node took: each micro-batch is one, the longest
of a step also exchanges the gradients (an assumption about how graphs are compiled; where each
execution exchanges, all nodes' executions take longer alike, which names no cause).
"""

from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from telemetry.blocks import FloatArray, IntArray
from telemetry.detect.findings import CauseScore
from telemetry.detect.inputs import DetectionInput, node_values, part_values
from telemetry.detect.rules import RULES
from telemetry.detect.standstill import CORES, EXECUTIONS, HOST, LINKS
from telemetry.statistics.peers import GAUSSIAN, lower_median, mean, median

TYPICAL, LONGEST = "execution_latency_p50_s", "execution_latency_p100_s"
HALF = RULES["step_slow"].limits["half_ratio"]
# Seconds before the onset that show what is usual, and the least to compare, in reports.
BEFORE_S, LEAST_REPORTS = 240, 2
# A node is as before up to this part of the slowdown, and explains it from the second part on.
SMALL, MOSTLY = 0.2, 0.7
# Where an execution of its own exchanges, the longest takes this much longer than the typical.
OWN_EXECUTION = 1.1
# A step that exchanges as many bytes for this ratio of its executions is another step.
SAME_STEP = 1.2
# Required rise of a host above its own past and above that of its peers.
HOST_RATIO = 1.08
DEVIATIONS = 6.0
# Storage is shared: one node starves, or nearly all do.
MOST = 0.9


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
    """What changed on the working nodes of a run; ``slowdown`` is how much longer steps take."""

    nodes: tuple[str, ...]
    slowdown: float
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

        def middle_of(metric: str) -> Change:
            values = node_values(span, metric)
            return Change(median(values[before].T), median(values[since].T))

        def mean_of(metric: str) -> Change:
            values = mean(part_values(span, metric).astype(float), axis=2)
            return Change(mean(values[before], axis=0), mean(values[since], axis=0))

        return cls(
            nodes,
            slowdown,
            middle_of(TYPICAL),
            # Where steps are longer than reports, few of these hold an exchange.
            mean_of(LONGEST),
            mean_of(CORES),
            middle_of(HOST),
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
        return before > 0 and since > 0 and max(before / since, since / before) > SAME_STEP


def find_slow_node(changes: Changes) -> CauseScore | None:
    """Score the cause of a slowdown; None where it is unknown."""
    return _starving(changes) or _by_latency(changes)


def _by_latency(changes: Changes) -> CauseScore | None:
    slowdown = changes.slowdown
    typical, longest = changes.typical.rise, changes.longest.rise
    known = np.isfinite(typical) & np.isfinite(longest)
    if not known.all():
        return None
    n_nodes = len(changes.nodes)
    computes, as_before = typical >= HALF * slowdown, typical <= SMALL * slowdown
    if computes.sum() == 1 and as_before.sum() == n_nodes - 1 and n_nodes > 1:
        return _score(changes, "slow_compute", changes.typical, int(np.argmax(computes)))
    if n_nodes > 1 and as_before.all() and (longest >= slowdown).all():
        return _score(changes, "network", changes.longest, None)
    ratio = float(median(changes.longest.before / changes.typical.before))
    is_even = float(np.ptp(typical)) <= SMALL * slowdown
    if ratio >= OWN_EXECUTION and is_even and (typical >= MOSTLY * slowdown).all():
        return _score(changes, "slow_compute", changes.typical, None)
    return None


def _score(changes: Changes, cause: str, change: Change, row: int | None) -> CauseScore:
    """Score one node against its peers, or all against their past."""
    if row is None:
        value, usual, n_peers = float(median(change.since)), float(median(change.before)), 0
        metric = TYPICAL if change is changes.typical else LONGEST
        strength = float(median(change.rise)) / (HALF * changes.slowdown)
        return CauseScore(cause, strength, metric, value, usual, n_peers, "s")
    peers = np.delete(change.since, row)
    strength = float(change.rise[row]) / (HALF * changes.slowdown)
    return CauseScore(
        cause,
        strength,
        TYPICAL,
        float(change.since[row]),
        float(lower_median(peers)),
        len(peers),
        "s",
        changes.nodes[row],
    )


def _starving(changes: Changes) -> CauseScore | None:
    """Score nodes whose hosts work harder while the run is slow: they read and decode data."""
    n_nodes, hosts = len(changes.nodes), changes.hosts
    change = hosts.rise + 1.0
    # Cores rest while the data is read, or wait for the node that reads.
    rests = changes.cores.rise <= -HALF * (1.0 - 1.0 / (1.0 + changes.slowdown))
    known: NDArray[np.bool_] = np.isfinite(change) & rests
    if not known.any():
        return None
    above = known & (change >= HOST_RATIO)
    is_all = n_nodes > 1 and float(above.mean()) >= MOST
    order = np.argsort(np.where(known, change, -np.inf))
    worst = int(order[-1])
    if not is_all:
        usual = float(lower_median(change)) if n_nodes > 1 else 1.0
        excess = float(change[worst]) - usual
        # A single node must stand out from all others, and beyond how much they vary.
        next_ = float(change[order[-2]]) if n_nodes > 1 else 1.0
        others = np.delete(change, worst)
        spread = GAUSSIAN * float(median(np.abs(others - usual))) if n_nodes > 2 else 0.0
        if excess < max(HOST_RATIO - 1.0, DEVIATIONS * spread) or next_ - usual > HALF * excess:
            return None
    score = CauseScore(
        "input_stall",
        float((change[worst] - 1.0) / (HOST_RATIO - 1.0)),
        HOST,
        float(hosts.since[worst]),
        float(hosts.before[worst] if is_all else lower_median(hosts.since)),
        0 if is_all else int(known.sum()) - 1,
        "ratio",
    )
    return score if is_all else replace(score, node=changes.nodes[worst])
