"""Kineto files of a data-parallel job, with the fields and quirks of real ones."""

import gzip
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BUCKETS = 3
FORWARD_US, BACKWARD_US, OPTIMIZER_US = 30_000.0, 20_000.0, 5_000.0
MOVE_US, LAST_MOVE_US, LAUNCH_US = 8_000.0, 12_000.0, 500.0
NAMES = {
    "nccl": "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "neuron": "all-reduce.{}",
}
TOKENS = {"nccl": "ncclDevKernel_SendRecv(ncclDevKernelArgs)", "neuron": "all-to-all.{}"}


@dataclass
class Kineto:
    """A job whose ranks overlap all but the last all-reduce with the backward pass."""

    ranks: int = 4
    steps: int = 4
    slow: Callable[[int, int], float] = lambda _step, _rank: 1.0
    late_us: Callable[[int, int], float] = lambda _step, _rank: 0.0
    library: str = "nccl"
    has_groups: bool = True
    # How long experts exchange their tokens, between forward and backward pass.
    tokens_us: float = 0.0

    def files(self) -> list[dict[str, Any]]:
        """Return one document per rank; every clock has an origin of its own."""
        events: list[list[dict[str, Any]]] = [[] for _ in range(self.ranks)]
        free = [0.0] * self.ranks
        for step in range(self.steps):
            free = self._step(step, free, events)
        return [self._document(rank, own) for rank, own in enumerate(events)]

    def write(self, folder: Path, *, zipped: bool = False) -> Path:
        """Write a file per rank, as tensorboard_trace_handler names them."""
        for rank, document in enumerate(self.files()):
            text = json.dumps(document).encode()
            name = f"host_rank{rank}.1700000000.pt.trace.json{'.gz' if zipped else ''}"
            (folder / name).write_bytes(gzip.compress(text) if zipped else text)
        return folder

    def _step(
        self, step: int, free: list[float], events: list[list[dict[str, Any]]]
    ) -> list[float]:
        """Play one step: all ranks meet in each bucket's all-reduce."""
        begins = list(free)
        at = [free[rank] + self.late_us(step, rank) for rank in range(self.ranks)]
        for rank in range(self.ranks):
            at[rank] = self._work(rank, events, at[rank], FORWARD_US * self.slow(step, rank))
        if self.tokens_us:
            end = max(at) + self.tokens_us
            for rank in range(self.ranks):
                self._collective(rank, 9, events, at[rank], end, name="all_to_allv")
            at = [end] * self.ranks
        moved = [0.0] * self.ranks
        for bucket in range(BUCKETS):
            for rank in range(self.ranks):
                at[rank] = self._work(rank, events, at[rank], BACKWARD_US * self.slow(step, rank))
            ready = [max(at[rank], moved[rank]) for rank in range(self.ranks)]
            end = max(ready) + (LAST_MOVE_US if bucket == BUCKETS - 1 else MOVE_US)
            for rank in range(self.ranks):
                self._collective(rank, bucket, events, ready[rank], end)
            moved = [end] * self.ranks
        done = []
        for rank in range(self.ranks):
            end = self._work(rank, events, moved[rank] + LAUNCH_US, OPTIMIZER_US)
            name = f"ProfilerStep#{step + 10}"
            mark = {"cat": "gpu_user_annotation", "name": name, "tid": 7}
            events[rank].append(mark | {"ts": begins[rank], "dur": end - begins[rank]})
            done.append(end)
        return done

    def _work(
        self, rank: int, events: list[list[dict[str, Any]]], begin: float, lasts: float
    ) -> float:
        """Run kernels back to back, and return when the last is over."""
        for part in range(4):
            name = "void cutlass::Kernel2<cutlass_80_tensorop_bf16_gemm>"
            event = {"cat": "kernel", "name": name, "tid": 7, "args": {"device": 0, "stream": 7}}
            events[rank].append(event | {"ts": begin + part * lasts / 4, "dur": lasts / 4})
        return begin + lasts

    def _collective(
        self,
        rank: int,
        bucket: int,
        events: list[list[dict[str, Any]]],
        begin: float,
        end: float,
        *,
        name: str = "allreduce",
    ) -> None:
        args: dict[str, Any] = {"device": 0, "stream": 22, "External id": 5000 + bucket}
        if self.has_groups:
            members = str(list(range(self.ranks)))
            args |= {"Collective name": name, "dtype": "BFloat16"}
            args |= {"Process Group Name": "0", "Process Group Ranks": members}
        kernels = NAMES if name == "allreduce" else TOKENS
        kernel = kernels[self.library].format(bucket)
        event = {"cat": "kernel", "name": kernel, "tid": 22, "args": args}
        events[rank].append(event | {"ts": begin, "dur": end - begin})

    def _document(self, rank: int, own: list[dict[str, Any]]) -> dict[str, Any]:
        """Wrap a rank's events as Kineto does, on its own clock."""
        origin = 1_468_837_789_533.0 + 1e9 * rank
        timed = [{"ph": "X", "pid": 0} | event | {"ts": event["ts"] + origin} for event in own]
        host = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 77, "tid": 77}
        other = {"ph": "M", "name": "process_name", "pid": 0, "ts": 0, "args": {"name": "python"}}
        return {
            "schemaVersion": 1,
            "deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}],
            "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": self.ranks},
            "displayTimeUnit": "ms",
            "baseTimeNanoseconds": 1_700_000_000_000_000_000,
            "traceEvents": [*timed, host | {"ts": origin, "dur": 5.0}, other],
        }
