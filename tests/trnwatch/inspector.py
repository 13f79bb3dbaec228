"""Writes records as NCCL Inspector does, in the shapes that its documentation shows."""

import json
from pathlib import Path
from typing import Any

NOON_US = 1_800_000_000_000_000


class Inspector:
    """The plugin's file of one process; ``version`` is that of its format, 4.2 or 4.3."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.version = "v4.3"
        self.is_verbose = True
        self._numbers: dict[str, int] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab", buffering=0)

    def did(
        self,
        operation: str,
        since_s: float,
        until_s: float,
        *,
        communicator: str = "DATA_PARALLEL_GROUP",
        dropped: int = 0,
        origin_us: int = NOON_US,
    ) -> None:
        """Write one dump of one operation; times are seconds after ``origin_us``."""
        since_us, until_us = (origin_us + round(each * 1e6) for each in (since_s, until_s))
        kind = "p2p" if operation in ("Send", "Recv") else "coll"
        number = self._numbers[communicator] = self._numbers.get(communicator, 0) + 1
        performance: dict[str, Any] = {
            kind: operation,
            f"{kind}_sn": number,
            f"{kind}_msg_size_bytes": 2_147_483_648,
            f"{kind}_exec_time_us": until_us - since_us,
            f"{kind}_timing_source": "kernel_gpu",
            f"{kind}_algobw_gbs": 418.4,
            f"{kind}_busbw_gbs": 366.1,
        }
        if self.is_verbose:
            # The host enqueues the operation before its kernel begins.
            performance["event_trace_ts"] = {
                f"{kind}_start_ts": since_us - 120_000,
                f"{kind}_stop_ts": since_us - 119_000,
                "kernel_events": [
                    {"channel_id": channel, "kernel_start_ts": since_us + channel}
                    for channel in range(8)
                ],
            }
        context = {
            "header": {
                "id": f"0x{hash(communicator) & 0xFFFF:x}",
                "comm_name": communicator,
                "rank": 2,
                "n_ranks": 16,
                "nnodes": 2,
            },
            "metadata": {
                "inspector_output_format_version": self.version,
                "dump_timestamp_us": until_us + 1000,
                "hostname": "gpu-a",
                "pid": 1639453,
            },
        }
        stats = {"coll_records": 1, "coll_dropped_since_last_dump": dropped}
        record = {f"{kind}_perf": performance}
        if self.version == "v4.3":
            self.write({**context, "dump_stats": stats})
            self.write(record)
        else:
            self.write({**context, **record})

    def write(self, record: object) -> None:
        self.append(json.dumps(record).encode() + b"\n")

    def append(self, text: bytes) -> None:
        self._file.write(text)

    def replace(self) -> None:
        """Move the file away and begin a new one, as a rotation does."""
        self.path.rename(self.path.with_suffix(".1"))
        self._file.close()
        self._file = self.path.open("ab", buffering=0)

    def truncate(self) -> None:
        self._file.truncate(0)

    def close(self) -> None:
        self._file.close()
