"""Rows of a run's life: steps and the gaps between them, each with its phases by worker."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Self

import numpy as np
from numpy.typing import NDArray

from telemetry.blocks import FloatArray, IntArray
from telemetry.simulate.clock import grains
from telemetry.simulate.conditions import Conditions
from telemetry.simulate.noise import mixed, smooth, windows
from telemetry.simulate.script import Script

# A run's phases, and "absent": it waits for its nodes, and there is nobody to report.
LIFE = ("absent", "pending", "compiling", "warming_up", "training", "finished", "failed")
TRAINING = LIFE.index("training")

SLOW_NOISE, FAST_NOISE, TRANSFER_NOISE, INPUT_NOISE = 0.003, 0.002, 0.03, 0.2
SLOW_NOISE_STEPS = 32


@dataclass(slots=True)
class Rows:
    """Stretches of a run's life, one after the other.

    Each begins with ``pause_s`` (all alike: all that a gap consists of), goes on per worker
    with input, computing, being late and waiting until all are ready, and ends for all alike
    with transfer, checkpoint and ``after_s`` (an evaluation). Of a checkpoint, who is not
    ``slow_to_write`` writes for ``brief_s`` only, and then waits for the others. Arrays are
    (n_rows,) or, where workers differ, (n_rows, n_workers); seconds are on the clock's grid.
    ``life`` indexes LIFE: "training" for a step. ``ready_s`` counts from the row's start.
    ``is_step`` is False
    for gaps, and for a step that a crash cut off.
    """

    start_s: FloatArray
    pause_s: FloatArray
    input_s: FloatArray
    compute_s: FloatArray
    late_s: FloatArray
    ready_s: FloatArray
    transfer_s: FloatArray
    checkpoint_s: FloatArray
    brief_s: FloatArray
    slow_to_write: NDArray[np.bool_]
    after_s: FloatArray
    life: IntArray
    is_step: NDArray[np.bool_]
    step: IntArray
    tokens: IntArray
    active: NDArray[np.bool_]

    def __len__(self) -> int:
        """Count the rows."""
        return len(self.start_s)

    @property
    def arrival_s(self) -> FloatArray:
        """When each worker is ready for the collective, from the row's start."""
        return self.pause_s[:, None] + self.input_s + self.compute_s + self.late_s

    @property
    def wait_s(self) -> FloatArray:
        """How long each worker waits for the last; nobody waits where there is no step."""
        return np.where(self.active, self.ready_s[:, None] - self.arrival_s, 0.0)

    @property
    def duration_s(self) -> FloatArray:
        """How long each row takes."""
        return self.ready_s + self.transfer_s + self.checkpoint_s + self.after_s

    @property
    def end_s(self) -> FloatArray:
        """When each row is over."""
        return self.start_s + self.duration_s

    def __getitem__(self, rows: slice | NDArray[np.bool_]) -> Self:
        """Keep some of the rows."""
        return type(self)(*(getattr(self, each.name)[rows] for each in fields(self)))

    def of(self, workers: slice) -> Self:
        """Keep some of the workers."""
        values = (getattr(self, each.name) for each in fields(self))
        return type(self)(*(v[:, workers] if v.ndim == 2 else v for v in values))

    def hold(self, row: int, workers: IntArray, *, until_s: float) -> None:
        """Keep some workers from joining the collective of a row before some second."""
        late_s = until_s - self.start_s[row] - self.arrival_s[row, workers]
        self.late_s[row, workers] += np.maximum(late_s, 0)
        self.ready_s[row] = self.arrival_s[row, self.active[row]].max()


def joined(pieces: Sequence[Rows]) -> Rows:
    """Put rows one after the other."""
    if len(pieces) == 1:
        return pieces[0]
    columns = ([getattr(piece, each.name) for piece in pieces] for each in fields(Rows))
    return Rows(*(np.concatenate(column) for column in columns))


def gap(script: Script, life: str, *, start_s: float, end_s: float) -> Rows:
    """Return the one row of a time without steps."""
    nothing = np.zeros((1, script.run.nodes))
    length_s, none, zero = np.array([end_s - start_s]), np.zeros(1), np.zeros(1, np.int64)
    return Rows(
        start_s=np.array([start_s]),
        pause_s=length_s,
        input_s=nothing,
        compute_s=nothing,
        late_s=nothing,
        ready_s=length_s,
        transfer_s=none,
        checkpoint_s=none,
        brief_s=none,
        slow_to_write=np.zeros((1, script.run.nodes), bool),
        after_s=none,
        life=zero + LIFE.index(life),
        is_step=np.zeros(1, bool),
        step=zero,
        tokens=zero,
        active=np.zeros((1, script.run.nodes), bool),
    )


def steps_under(
    script: Script, now: Conditions, *, first: int, n_steps: int, start_s: float
) -> Rows:
    """Return consecutive steps under unchanging conditions.

    Parameters
    ----------
    first : number of the first step
    start_s : Unix seconds at which it begins

    Notes
    -----
    Every worker computes its share with noise of two colours, slow (drifting over some thirty
    steps) and fast, and now and then stumbles. All meet in the gradient collective, which
    begins when the last has come: ``wait_s = max over workers of arrival - own arrival``.
    Step k's noise depends on the seed, the run and k alone.

    References
    ----------
    J. Lin et al., "Understanding Stragglers in Large Model Training Using What-if Analysis",
    OSDI 2025, arXiv:2505.05713: what makes workers differ.
    """
    step = np.arange(first, first + n_steps)
    compute_s = grains(now.compute_s * _pace(script, now, step))
    input_noise = windows("normal", mixed(script.key("input"), step), script.run.nodes)
    input_s = grains(now.input_s * np.maximum(1 + INPUT_NOISE * input_noise, 0))
    transfer_noise = windows("normal", mixed(script.key("transfer"), step), 1)[:, 0]
    transfer_s = grains(now.transfer_s * (1 + TRANSFER_NOISE * transfer_noise))
    ready_s = (input_s + compute_s).max(axis=1)
    end_s = start_s + np.cumsum(ready_s + transfer_s)
    none = np.zeros(n_steps)
    return Rows(
        start_s=end_s - (ready_s + transfer_s),
        pause_s=none,
        input_s=input_s,
        compute_s=compute_s,
        late_s=np.zeros_like(compute_s),
        ready_s=ready_s,
        transfer_s=transfer_s,
        checkpoint_s=none.copy(),
        brief_s=none.copy(),
        slow_to_write=np.broadcast_to(now.slow_to_write, compute_s.shape),
        after_s=none.copy(),
        life=np.full(n_steps, TRAINING),
        is_step=np.ones(n_steps, bool),
        step=step,
        tokens=np.full(n_steps, now.tokens),
        active=np.broadcast_to(now.active, compute_s.shape),
    )


def _pace(script: Script, now: Conditions, step: IntArray) -> FloatArray:
    """Return how much longer than expected each worker computes: (n_steps, n_workers)."""
    n_nodes = script.run.nodes
    pace = SLOW_NOISE * smooth(script.key("drift"), step, every=SLOW_NOISE_STEPS, width=n_nodes)
    pace += FAST_NOISE * windows("normal", mixed(script.key("pace"), step), n_nodes)
    pace += windows("hiccup", mixed(script.key("hiccup"), step), n_nodes)
    pace += 1
    if now.uneven_ratio:
        luck = windows("uniform", mixed(script.key("lengths"), step), n_nodes)
        pace *= 1 + np.float32(now.uneven_ratio) * luck * luck * luck
    return pace


def add_one_offs(
    rows: Rows, *, pause_s: float, checkpoint_s: float, brief_s: float, after_s: float
) -> Rows:
    """Let the first step stand still, write a checkpoint or evaluate; the others follow."""
    rows.pause_s = rows.pause_s.copy()
    rows.pause_s[0] += pause_s
    rows.ready_s[0] += pause_s
    rows.checkpoint_s[0] += checkpoint_s
    rows.brief_s[0] += brief_s
    rows.after_s[0] += after_s
    rows.start_s[1:] += pause_s + checkpoint_s + after_s
    return rows
