"""Profiles of a job on NeuronCores, as Neuron Explorer and neuron-profile write them."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

MS = 1_000_000
BEGAN_NS = 1_790_000_000_000_000_000
COMPUTE_MS, MOVE_MS, HOST_MS = 60, 15, 5

Row = dict[str, Any]


@dataclass(frozen=True)
class SystemJob:
    """Each step is a graph that ends in a barrier and a collective, then a small optimizer."""

    ranks: int = 4
    steps: int = 6
    extra_ms: Mapping[int, int] = frozenset()  # type: ignore[assignment]
    pcores: int = 1

    def events(self) -> list[Row]:
        rows: list[Row] = []
        slowest = max([0, *dict(self.extra_ms).values()])
        step_ms = COMPUTE_MS + slowest + MOVE_MS + HOST_MS
        for step in range(self.steps):
            begin = BEGAN_NS + step * step_ms * MS
            for rank in range(self.ranks):
                for pcore in range(self.pcores):
                    rows += self._step(rank, pcore, begin, slowest)
        return rows

    def _step(self, rank: int, pcore: int, begin: int, slowest: int) -> list[Row]:
        arrived = begin + (COMPUTE_MS + dict(self.extra_ms).get(rank, 0) - 2) * MS
        present = begin + (COMPUTE_MS + slowest - 2) * MS
        done = present + MOVE_MS * MS
        spans = [
            ("nc_exec_running", begin, done, "graph"),
            ("cc_exec_barrier", arrived, present, ""),
            ("cc_running", present, done, ""),
            ("nc_exec_running", done, done + 2 * MS, "optimizer"),
            ("nrt_execute", begin, done + 3 * MS, ""),
        ]
        return [
            {
                "id": 0,
                "name": name,
                "start_ts": since,
                "end_ts": until,
                "duration_ns": until - since,
                "trace_event_source": "neuron_hw",
                "instance_id": "i-0a1b2c3d4e5f60718",
                "process_id": 100 + rank,
                "thread_id": 1,
                "nc_idx": 0,
                "pcore_idx": pcore,
                "worker_gid": rank,
                "extra_attributes_json": json.dumps({"model_name": model}),
            }
            for name, since, until, model in spans
            if until > since
        ]


def write_table(folder: Path, name: str, rows: list[Row]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), folder / f"{name}.parquet")


def old_json(rows: list[Row]) -> Row:
    """Return what neuron-profile writes for a system profile: other names, numbers as text."""
    events = [
        {
            "name": row["name"],
            "timestamp": row["start_ts"],
            "duration": row["duration_ns"],
            "lnc_idx": str(row["nc_idx"]),
            "process_id": str(row["process_id"]),
            "instance_id": row["instance_id"],
            "model_name": json.loads(row["extra_attributes_json"])["model_name"],
        }
        for row in rows
    ]
    return {"cpu_util": [], "mem_usage": [], "trace_events": events}


def device_tables(*, wait_ms: float = 4.0) -> dict[str, list[Row]]:
    """Return one execution: work of 40 ms, and three collectives of which work hides one."""

    def collective(operation: str, begin_ms: float, lasts_ms: float, delay_ms: float) -> Row:
        start = int(begin_ms * MS)
        return {
            "start_ts": start,
            "end_ts": start + int(lasts_ms * MS),
            "duration_ns": int(lasts_ms * MS),
            "operation": operation,
            "cc_trigger_start_delay": int(delay_ms * MS),
            "replica_group": "[[0, 1], [2, 3]]",
        }

    def active(engine: str, begin_ms: int, lasts_ms: int) -> Row:
        start, end = begin_ms * MS, (begin_ms + lasts_ms) * MS
        row = {"start_ts": start, "end_ts": end, "duration_ns": end - start, "pcore_idx": 0}
        return row | {"engine": engine}

    return {
        "CcOp": [
            collective("AllGather", 5, 10, 0),
            collective("AllReduce", 30 + wait_ms, 6, wait_ms),
            collective("Permute", 60, 8, 0),
        ],
        "ActiveTime": [
            *(active("tensor", 0, 30), active("vector", 20, 10), active("gpsimd", 50, 10)),
            *(active("sync", 0, 70), active("cc_instruction", 30, 10)),
        ],
        "HbmUsage": [
            {"timestamp": at * MS, "current_throughput": rate, "pcore_idx": pcore}
            for pcore in range(2)
            for at, rate in ((0, 4e11), (20, 2e11), (40, 0.0))
        ],
        "Throttle": [{"timestamp": 10 * MS, "duration": 17 * MS, "k": 3, "n": 4}],
        "Metadata": [{"instance_type": "trn2.48xlarge", "neuroncore_idx": 0}],
        "Instruction": [{"id": 1}],
    }
