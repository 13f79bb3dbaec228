"""A profiler trace: operations of workers in some steps, one row each."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from telemetry.blocks import FloatArray, IntArray


class TraceError(ValueError):
    """A trace that cannot be used: what is wrong, and the fix."""


BoolArray = NDArray[np.bool_]
Scope = Literal["worker", "pair", "replicas", "stages", "all"]


@dataclass(frozen=True, slots=True)
class OperationKind:
    """One kind of operation.

    ``scope`` is who must be present before it moves a byte: only itself, the sender or receiver
    in the next stage, the same stage of all replicas, other stages of this replica, or all.
    ``is_comm``: communication, replaced by its peers' median; work is replaced by their mean.
    """

    name: str
    scope: Scope
    is_comm: bool


_ALL = (
    OperationKind("forward-compute", "worker", is_comm=False),
    OperationKind("backward-compute", "worker", is_comm=False),
    OperationKind("forward-send", "pair", is_comm=True),
    OperationKind("forward-recv", "pair", is_comm=True),
    OperationKind("backward-send", "pair", is_comm=True),
    OperationKind("backward-recv", "pair", is_comm=True),
    OperationKind("params-all-gather", "replicas", is_comm=True),
    OperationKind("grads-reduce-scatter", "replicas", is_comm=True),
    OperationKind("separate-grads-all-reduce", "replicas", is_comm=True),
    OperationKind("layernorm-grads-all-reduce", "worker", is_comm=True),
    OperationKind("embedding-grads-all-reduce", "stages", is_comm=True),
    OperationKind("optimizer-clip-main-grad", "all", is_comm=True),
    OperationKind("optimizer", "worker", is_comm=False),
    OperationKind("gc", "worker", is_comm=False),
    # What profilers of kernels show: the work before a collective, idle time, sends, receives and
    # all-to-all that no work hides, and the part of the collective that none hides.
    OperationKind("compute", "worker", is_comm=False),
    OperationKind("idle", "worker", is_comm=False),
    OperationKind("other-communication", "replicas", is_comm=True),
    OperationKind("collective", "replicas", is_comm=True),
    # Other communication that not all replicas have: its partners are unknown.
    OperationKind("point-to-point", "worker", is_comm=True),
)
KINDS: Mapping[str, OperationKind] = {kind.name: kind for kind in _ALL}
# The pieces of a step cut at its collectives.
KERNEL_KINDS = ("compute", "idle", "other-communication", "collective", "point-to-point")
CODE: Mapping[str, int] = {name: i for i, name in enumerate(KINDS)}


@dataclass(frozen=True, slots=True)
class RankFigures:
    """What the device of one rank did: means per step, in seconds.

    ``exchange_s`` is gradient exchange without work in parallel, ``other_comm_s`` is other
    communication without either. With ``work_s`` and ``idle_s`` they add up to the step.
    ``wait_s`` is the part of communication that is known to be waiting for peers. Memory bandwidth
    and throttling are those of the whole recording. None is unknown.
    """

    rank: int
    work_s: float
    exchange_s: float
    other_comm_s: float
    idle_s: float
    wait_s: float | None = None
    hbm_bytes_per_s: float | None = None
    hbm_peak_bytes_per_s: float | None = None
    throttled_ratio: float | None = None

    @property
    def step_s(self) -> float:
        return self.work_s + self.exchange_s + self.other_comm_s + self.idle_s


@dataclass(frozen=True, slots=True)
class Trace:
    """Operations of one run, each column (n_operations,)."""

    kind: IntArray  # index into KINDS
    step: IntArray  # step number
    # dp, stage: data-parallel replica and pipeline stage of the worker, from 0
    dp: IntArray
    stage: IntArray
    rank: IntArray  # the worker's rank in the job
    seq: IntArray  # the how manieth of its kind in the step on this worker, from 0
    # Model chunk of a stage (interleaved pipelines), 0 where there is one, -1 unknown
    chunk: IntArray
    microbatch: IntArray  # which micro-batch a computation is for, -1 where that makes no sense
    # start_s, duration_s: seconds; ``start_s`` from any origin that one step's rows share
    start_s: FloatArray
    duration_s: FloatArray
    tp: int | None = None  # tensor-parallel degree, None where the trace does not say
    # Unix seconds of the first operation, None where the trace does not say
    began_at_s: float | None = None
    has_common_clock: bool = True  # whether ``start_s`` of different workers can be compared
    n_ranks_missing: int = 0  # ranks of the job that were not recorded, as far as is known
    n_dropped: int = 0  # operations that the recorder says it lost
    figures: tuple[RankFigures, ...] = ()  # of each rank, where the device's own events were read
    # Whether it is recorded what runs during communication; if not, all of it counts as exposed
    shows_overlap: bool = True
    instance: str = ""  # instance type, empty where the trace does not say

    def __len__(self) -> int:
        return len(self.kind)


def is_kind(codes: IntArray, *names: str) -> BoolArray:
    return np.isin(codes, [CODE[name] for name in names])
