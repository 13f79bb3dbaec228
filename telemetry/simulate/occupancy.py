"""What the nodes of a shard spent each tick on, and how far their steps got in it."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from telemetry.blocks import FloatArray, IntArray
from telemetry.simulate.rows import LIFE, TRAINING, Rows

TICK_S = 1.0


@dataclass(frozen=True, slots=True)
class Occupancy:
    """Shares of each tick, 0 to 1, per node: (n_ticks, n_nodes); of gaps (n_ticks, 1).

    ``life`` are the shares of the gaps there are, by name; that of "training" is the pause of
    a run that compiles by accident. ``computed`` and ``transferred`` are progress, in steps.
    Of the ``checkpoint`` a node is ``writing`` for a part: then it waits for the others.
    ``takes_part`` is 0 for nodes that the run does without, else 1.
    """

    compute: FloatArray
    wait: FloatArray
    transfer: FloatArray
    input: FloatArray
    checkpoint: FloatArray
    writing: FloatArray
    evaluation: FloatArray
    life: Mapping[str, FloatArray]
    computed: FloatArray
    transferred: FloatArray
    takes_part: FloatArray


class _Meter:
    """Measures how much of each tick falls into some part of the rows."""

    def __init__(self, rows: Rows, ticks: IntArray) -> None:
        edges = np.concatenate([ticks - TICK_S, ticks])
        self.row = np.searchsorted(rows.start_s, edges, side="right") - 1
        self.at_s = edges - rows.start_s[self.row]

    def share(self, begins_s: FloatArray, length_s: FloatArray) -> FloatArray:
        """Return how much of each tick lies in a part of the rows that begins and lasts so."""
        before = np.zeros((len(length_s) + 1, *length_s.shape[1:]))
        np.cumsum(length_s, axis=0, out=before[1:])
        into = np.clip(self._at(begins_s) - begins_s[self.row], 0, length_s[self.row])
        return self._gained(before[self.row] + into) / TICK_S

    def progress(self, begins_s: FloatArray, length_s: FloatArray) -> FloatArray:
        """Return how many of these parts each tick got through, fractions included."""
        before = np.zeros((len(length_s) + 1, *length_s.shape[1:]))
        np.cumsum(length_s > 0, axis=0, out=before[1:])
        length = length_s[self.row]
        into = np.clip(self._at(begins_s) - begins_s[self.row], 0, length)
        done = np.divide(into, length, out=np.zeros_like(into), where=length > 0)
        n = len(self.row) // 2
        whole = before[self.row]
        return np.asarray((whole[n:] - whole[:n]) + (done[n:] - done[:n]))

    def _at(self, like: FloatArray) -> FloatArray:
        return self.at_s if like.ndim == 1 else self.at_s[:, None]

    def _gained(self, total: FloatArray) -> FloatArray:
        n = len(self.row) // 2
        return total[n:] - total[:n]


def occupancy(rows: Rows, ticks: IntArray) -> Occupancy:
    """Return what the workers of these rows spent each tick on.

    Parameters
    ----------
    rows : consecutive, from before the first tick to the last
    ticks : (n_ticks,) Unix seconds; a tick stands for the second that ends with it

    Notes
    -----
    All times lie on the clock's grid, so the sums are exact: the same tick has the same
    shares whatever rows come along with it.
    """
    meter = _Meter(rows, ticks)
    pause_s, ready_s = rows.pause_s, rows.ready_s
    begins_s = pause_s[:, None] + rows.input_s
    wait_s = rows.wait_s
    transferred_s = ready_s + rows.transfer_s
    zeros = np.zeros_like(pause_s)
    gaps = {i: np.where(rows.life == i, pause_s, 0) for i in set(rows.life[pause_s > 0].tolist())}
    here = (rows.active | (rows.life != TRAINING)[:, None])[rows_at(rows, ticks)].astype(float)
    checkpoint = here * meter.share(transferred_s, rows.checkpoint_s)[:, None]
    writing = checkpoint
    if (rows.brief_s < rows.checkpoint_s).any():
        brief = here * meter.share(transferred_s, rows.brief_s)[:, None]
        writing = np.where(rows.slow_to_write[rows_at(rows, ticks)], checkpoint, brief)
    return Occupancy(
        compute=meter.share(begins_s, rows.compute_s),
        wait=meter.share(ready_s[:, None] - wait_s, wait_s),
        transfer=here * meter.share(ready_s, rows.transfer_s)[:, None],
        input=meter.share(np.broadcast_to(pause_s[:, None], begins_s.shape), rows.input_s),
        checkpoint=checkpoint,
        writing=writing,
        evaluation=here * meter.share(transferred_s + rows.checkpoint_s, rows.after_s)[:, None],
        life={LIFE[i]: meter.share(zeros, gap_s)[:, None] for i, gap_s in gaps.items()},
        computed=meter.progress(begins_s, rows.compute_s),
        transferred=here * meter.progress(ready_s, rows.transfer_s)[:, None],
        takes_part=here,
    )


def rows_at(rows: Rows, ticks: IntArray) -> IntArray:
    """Return the row under way at the end of each tick: (n_ticks,)."""
    return np.searchsorted(rows.start_s, ticks, side="left") - 1
