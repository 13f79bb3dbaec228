"""Small runs with known answers: steps and hardware that say exactly what a test wants."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from telemetry.blocks import METRICS, FloatArray, IntArray, Span
from telemetry.detect import DetectionInput
from telemetry.steps import PHASES, StepBatch

T0 = 1_700_000_000
CHARACTERS = ("steady", "limping", "calm", "quiet")


def no_hardware(metrics: Sequence[str], last_s: int) -> Span:
    """Answer for nodes that report no hardware."""
    return Span("none", np.arange(last_s), CHARACTERS, {})


def steps_of(
    compute_s: FloatArray | Sequence[Sequence[float]],
    *,
    transfer_s: float | FloatArray = 0.1,
    workers: Sequence[str] = CHARACTERS,
    **more: FloatArray,
) -> StepBatch:
    """Let workers compute for so long, wait for the last and transfer together.

    ``compute_s`` is (n_steps, n_workers); NaN for a worker that reports nothing.
    """
    compute = np.asarray(compute_s, dtype=float)
    own = compute + sum(np.nan_to_num(value) for value in more.values())
    wait = np.nanmax(own, axis=1, keepdims=True) - own
    transfer = np.where(np.isnan(compute), np.nan, np.asarray(transfer_s, dtype=float))
    zero = np.where(np.isnan(compute), np.nan, 0.0)
    phases = dict.fromkeys(PHASES, zero)
    phases |= {"compute_s": compute, "wait_s": wait, "transfer_s": transfer, **more}
    length = np.nanmean(np.sum(list(phases.values()), axis=0), axis=1)
    n_steps = len(compute)
    return StepBatch(
        run="llama",
        workers=tuple(workers)[: compute.shape[1]],
        step=np.arange(100, 100 + n_steps),
        ended_at_s=T0 + np.cumsum(length),
        phases=phases,
        tokens=np.full(n_steps, 4e6),
    )


def steps_at(shares: Sequence[float], *, n_workers: int = 4) -> StepBatch:
    """Return one-second steps with exactly these all-reduce shares, all of it transfer."""
    share = np.repeat(np.array(shares, dtype=float)[:, None], n_workers, axis=1)
    return steps_of(1.0 - share, transfer_s=share)


def inputs(
    steps: StepBatch, hardware: Callable[..., Span] = no_hardware, **more: Any
) -> DetectionInput:
    """Return what detection sees just after the newest step."""
    now_s = float(steps.ended_at_s[-1]) + 0.5 if len(steps) else float(T0)
    seen = DetectionInput("llama", CHARACTERS[: len(steps.workers)], steps, hardware, now_s)
    return replace(seen, **more)


@dataclass
class Machines:
    """Hardware that was steady until a moment and is what a test makes of it from then on.

    Four nodes, 8 cores on 4 accelerators, 4 EFA devices each.
    """

    until_s: float
    seed: int = 1
    n_nodes: int = 4
    marks: list[tuple[str, tuple[int | slice, int | slice], float, float]] = field(
        default_factory=list
    )

    HEALTHY: ClassVar = {
        "core_utilization_ratio": (8, 0.7),
        "hbm_bandwidth_bytes_per_s": (4, 4e11),
        "vcpu_usage_ratio": (1, 0.11),
        "execution_latency_p50_s": (1, 0.2),
        "execution_latency_p100_s": (1, 0.5),
        "efa_latency_s": (4, 16e-6),
        "efa_tx_bytes_per_s": (4, 2e9),
        "efa_rx_bytes_per_s": (4, 2e9),
        "efa_tx_packets_per_s": (4, 2.4e5),
        "efa_retransmits_per_s": (4, 0.5),
    }

    def mark(
        self, metric: str, where: tuple[int | slice, int | slice], *, times: float, since_s: float
    ) -> "Machines":
        """Multiply a metric at (node, part) from some second on."""
        self.marks.append((metric, where, times, since_s))
        return self

    def __call__(self, metrics: Sequence[str], last_s: int) -> Span:
        """Return the newest seconds."""
        return self.seconds(metrics, int(self.until_s) - np.arange(last_s)[::-1])

    def hardware_at(self, metrics: Sequence[str], ages_s: Sequence[int]) -> Span:
        """Return single seconds of so long ago."""
        return self.seconds(metrics, int(self.until_s) - np.array(ages_s))

    def seconds(self, metrics: Sequence[str], ticks: IntArray) -> Span:
        """Return some seconds."""
        values = {}
        for name in metrics:
            if name not in self.HEALTHY:
                continue
            n_parts, level = self.HEALTHY[name]
            rng = np.random.default_rng([self.seed, len(METRICS[name].help)])
            shape = (len(ticks), self.n_nodes, n_parts)
            values[name] = level * (1 + 0.01 * rng.standard_normal(shape))
            for metric, where, times, since_s in self.marks:
                if metric == name:
                    node, part = where
                    values[name][ticks > since_s, node, part] *= times
        return Span("llama/0", ticks, CHARACTERS[: self.n_nodes], values)
