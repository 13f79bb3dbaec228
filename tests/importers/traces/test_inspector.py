"""NCCL Inspector's files of several processes, read as one recorded job."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from importers.traces import read_trace
from importers.traces.trace import TraceError
from importers.traces.what_if import analyse_trace

NOON_US = 1_800_000_000_000_000
BUCKETS = (400_000_000, 250_000_000, 90_000_000)
FORWARD_MS, BACKWARD_MS, MOVE_MS, TOKENS_MS = 40, 15, 5, 8

Slow = Callable[[int, int], float]


def record(kind: str, name: str, number: int, size: int, begin_ms: float, end_ms: float) -> Any:
    begin_us = NOON_US + round(begin_ms * 1000)
    return {
        f"{kind}_perf": {
            kind: name,
            f"{kind}_sn": number,
            f"{kind}_msg_size_bytes": size,
            f"{kind}_exec_time_us": round((end_ms - begin_ms) * 1000),
            "event_trace_ts": {"kernel_events": [{"channel_id": 0, "kernel_start_ts": begin_us}]},
        }
    }


def header(communicator: str, rank: int, n_ranks: int) -> dict[str, Any]:
    known = {"id": f"0x{communicator}", "comm_name": communicator, "rank": rank}
    return {"header": known | {"n_ranks": n_ranks, "nnodes": 1}, "dump_stats": {}}


def write_job(
    folder: Path,
    *,
    ranks: int = 4,
    steps: int = 8,
    slow: Slow = lambda _step, _rank: 1.0,
    buckets: Sequence[int] = BUCKETS,
) -> Path:
    """Write a file per process: experts exchange tokens, then gradients move in three buckets."""
    lines: list[list[Any]] = [[] for _ in range(ranks)]
    free = 0.0
    for step in range(steps):
        at = [free + FORWARD_MS * slow(step, rank) for rank in range(ranks)]
        end = max(at) + TOKENS_MS
        for rank in range(ranks):
            lines[rank].append(header("EXPERT_MODEL_PARALLEL_GROUP", rank, ranks))
            lines[rank].append(record("coll", "AlltoAll", step, 1 << 20, at[rank], end))
            lines[rank].append(header("default_pg", rank, ranks))
        for bucket, size in enumerate(buckets):
            at = [end + BACKWARD_MS * slow(step, rank) for rank in range(ranks)]
            end = max(at) + MOVE_MS
            for rank in range(ranks):
                number = step * len(buckets) + bucket
                done = record("coll", "AllReduce", number, size, at[rank], end)
                lines[rank].append(done)
        free = end
    for rank, own in enumerate(lines):
        text = "".join(json.dumps(line) + "\n" for line in own)
        (folder / f"gpu-a-pid{900 - rank}.log").write_text(text)
    return folder


def test_steps_shares_and_ranks_follow_from_the_records(tmp_path: Path) -> None:
    trace = read_trace([write_job(tmp_path)])
    analysis = analyse_trace(trace, run="inspected")

    assert [each.rank for each in trace.figures] == [0, 1, 2, 3]
    # When the first of the eight steps began is not recorded.
    assert len(analysis.steps) == 7
    found = trace.figures[0]
    step_s = (FORWARD_MS + TOKENS_MS + 3 * (BACKWARD_MS + MOVE_MS)) / 1000
    assert analysis.steps.step_s == pytest.approx([step_s] * 7)
    assert found.exchange_s == pytest.approx(3 * MOVE_MS / 1000)
    assert found.other_comm_s == pytest.approx(TOKENS_MS / 1000)
    assert found.wait_s is None
    assert not trace.shows_overlap
    assert trace.began_at_s == pytest.approx(NOON_US / 1e6 + FORWARD_MS / 1000)


@pytest.mark.parametrize("n_buckets", [1, 3])
def test_buckets_of_one_size_are_told_from_steps_by_the_pauses(
    tmp_path: Path, n_buckets: int
) -> None:
    write_job(
        tmp_path, slow=lambda _step, rank: 1.5 if rank == 2 else 1.0, buckets=[7] * n_buckets
    )
    analysis = analyse_trace(read_trace([tmp_path]), run="inspected")
    step_s = (1.5 * FORWARD_MS + TOKENS_MS + n_buckets * (1.5 * BACKWARD_MS + MOVE_MS)) / 1000

    assert analysis.steps.step_s == pytest.approx([step_s] * 7)
    assert analysis.culprits == ("rank2-dp2-stage0",)


def test_the_slow_rank_is_named(tmp_path: Path) -> None:
    write_job(tmp_path, slow=lambda _step, rank: 1.5 if rank == 2 else 1.0)
    analysis = analyse_trace(read_trace([tmp_path]), run="inspected")

    assert analysis.culprits == ("rank2-dp2-stage0",)


def test_processes_that_were_not_recorded_are_counted(tmp_path: Path) -> None:
    write_job(tmp_path)
    (tmp_path / "gpu-a-pid898.log").unlink()

    assert read_trace([tmp_path]).n_ranks_missing == 1


def test_operations_that_were_dropped_are_counted(tmp_path: Path) -> None:
    write_job(tmp_path, ranks=2)
    stats = {"dump_stats": {"coll_records": 3, "coll_dropped_since_last_dump": 5}}
    with (tmp_path / "gpu-a-pid900.log").open("a") as file:
        file.write(json.dumps(stats) + "\n")

    assert read_trace([tmp_path]).n_dropped == 5


@pytest.mark.parametrize("times", [{"kernel_events": 3}, {"kernel_events": [3]}, {}])
def test_an_operation_without_a_time_is_left_out(tmp_path: Path, times: dict[str, Any]) -> None:
    path = write_job(tmp_path, ranks=1) / "gpu-a-pid900.log"
    lost = record("coll", "AllReduce", 99, 5, 0, 1)
    lost["coll_perf"]["event_trace_ts"] = times
    whole = read_trace([path]).figures
    path.write_text(path.read_text() + json.dumps(lost) + "\n")

    assert read_trace([path]).figures == whole


def test_other_logs_in_the_folder_are_left_alone(tmp_path: Path) -> None:
    write_job(tmp_path)
    (tmp_path / "training.log").write_text("step 1 loss 4.2\n")

    assert len(read_trace([tmp_path]).figures) == 4


def test_a_last_line_that_was_not_completed_is_left_out(tmp_path: Path) -> None:
    path = write_job(tmp_path, ranks=1) / "gpu-a-pid900.log"
    path.write_bytes(path.read_bytes()[:-30])

    assert read_trace([tmp_path]).figures[0].rank == 0


def test_a_broken_line_is_named(tmp_path: Path) -> None:
    path = write_job(tmp_path, ranks=1) / "gpu-a-pid900.log"
    path.write_text(path.read_text().replace("}\n{", "}\n{{", 1))

    with pytest.raises(TraceError, match="line 2 is not JSON"):
        read_trace([path])


def test_records_without_times_say_which_setting_writes_them(tmp_path: Path) -> None:
    path = tmp_path / "gpu-a-pid1.log"
    operation = {"coll": "AllReduce", "coll_sn": 1, "coll_exec_time_us": 5}
    lines = [header("default_pg", 0, 1), {"coll_perf": operation}]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))

    with pytest.raises(TraceError, match="NCCL_INSPECTOR_DUMP_VERBOSE"):
        read_trace([path])
