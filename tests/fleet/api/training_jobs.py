"""A training job as its workers report it: lines of runs, steps, heartbeats and ends."""

import json
from collections.abc import Sequence
from typing import Any

URL = "/api/v1/ingest/steps"
NODES = ("trn-a", "trn-b", "trn-c", "trn-d")
ABOUT: dict[str, Any] = {
    "model": "llama2-7b",
    "instance_type": "trn1.32xlarge",
    "n_nodes": 4,
    "tp": 8,
    "seq_len": 4096,
    "global_batch": 64,
    "team": "LLM",
}


def line(kind: str, *, run: str = "real", session: str = "first", **shown: Any) -> bytes:
    """Return one line."""
    return json.dumps({"kind": kind, "run": run, "session": session} | shown).encode()


def step(number: int, worker: str, *, ended_at: float, **shown: Any) -> bytes:
    """Return one step of one worker: a second, a tenth of it in the gradient exchange."""
    usual = {"step_s": 1.0, "collective_s": 0.1, "n_workers": len(NODES)}
    return line("step", worker=worker, step=number, ended_at=ended_at, **usual | shown)


def step_lines(
    number: int, *, ended_at: float, collective_s: Sequence[float] = (0.1,) * 4, **shown: Any
) -> list[bytes]:
    """Return one step of all workers."""
    return [
        step(number, node, ended_at=ended_at, collective_s=seconds, rank=rank, **shown)
        for rank, (node, seconds) in enumerate(zip(NODES, collective_s, strict=True))
    ]
