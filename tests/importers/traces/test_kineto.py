"""Chrome traces of kernels: clocks per rank, step marks, unusual files."""

import gzip
import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from importers.traces import read_trace
from importers.traces.trace import TraceError, is_kind
from importers.traces.what_if import Analysis, analyse_trace
from tests.importers.traces.kineto_files import LAST_MOVE_US, Kineto


def analysed(job: Kineto, folder: Path) -> Analysis:
    return analyse_trace(read_trace([job.write(folder)]), run="kernels")


def refused(path: Path, text: bytes) -> str:
    path.write_bytes(text)
    with pytest.raises(TraceError) as text_shown:
        read_trace([path])
    return str(text_shown.value)


@pytest.mark.parametrize("library", ["nccl", "neuron"])
@pytest.mark.parametrize("has_groups", [True, False])
def test_the_slow_rank_is_named(tmp_path: Path, library: str, has_groups: bool) -> None:  # noqa: FBT001
    job = Kineto(
        slow=lambda _step, rank: 1.5 if rank == 2 else 1.0,
        library=library,
        has_groups=has_groups,
    )
    analysis = analysed(job, tmp_path)

    assert analysis.verdict.cause == "one_worker"
    assert analysis.culprits == ("rank2-dp2-stage0",)
    assert analysis.found.slowdown_ratio == pytest.approx(0.1525 / 0.11875, rel=1e-3)
    assert analysis.found.m_w == pytest.approx(1.0)


def test_a_rank_that_is_late_with_its_input_is_named(tmp_path: Path) -> None:
    job = Kineto(late_us=lambda _step, rank: 60_000.0 if rank == 1 else 0.0)

    assert analysed(job, tmp_path).verdict.culprits == ((1, 0),)


def test_uneven_sequences_are_no_one_s_fault(tmp_path: Path) -> None:
    lengths = np.random.default_rng(3).lognormal(0.0, 0.4, (8, 8))
    job = Kineto(ranks=8, steps=8, slow=lambda step, rank: float(lengths[step, rank]))

    assert analysed(job, tmp_path).verdict.cause == "sequence_imbalance"


@pytest.mark.parametrize("library", ["nccl", "neuron"])
def test_tokens_that_experts_exchange_are_other_communication(
    tmp_path: Path, library: str
) -> None:
    analysis = analysed(Kineto(tokens_us=100_000.0, library=library), tmp_path)

    assert analysis.verdict.cause == "communication"
    assert analysis.found.other_comm_ratio == pytest.approx(0.1 / 0.21, rel=0.02)
    assert analysis.steps.allreduce_share_ratio.mean() < 0.1
    assert analysis.steps.other_comm_s.mean() == pytest.approx(0.1, rel=0.05)


@pytest.mark.parametrize("library", ["nccl", "neuron"])
@pytest.mark.parametrize("has_groups", [True, False])
def test_a_slow_rank_is_named_though_experts_wait_for_it(
    tmp_path: Path,
    library: str,
    has_groups: bool,  # noqa: FBT001
) -> None:
    slow: Callable[[int, int], float] = lambda _step, rank: 1.5 if rank == 2 else 1.0  # noqa: E731
    job = Kineto(slow=slow, tokens_us=10_000.0, library=library, has_groups=has_groups)
    analysis = analysed(job, tmp_path)

    assert (analysis.verdict.cause, analysis.verdict.culprits) == ("one_worker", ((2, 0),))


def test_a_healthy_job_names_no_culprit(tmp_path: Path) -> None:
    analysis = analysed(Kineto(), tmp_path)

    assert analysis.verdict.cause == "none"
    assert analysis.grid.n_workers == 4
    assert analysis.grid.steps.tolist() == [10, 11, 12, 13]


def test_only_what_is_to_be_seen_of_a_collective_counts(tmp_path: Path) -> None:
    trace = read_trace([Kineto().write(tmp_path)])
    shown = trace.duration_s[is_kind(trace.kind, "collective")]

    np.testing.assert_allclose(shown, LAST_MOVE_US * 1e-6, rtol=1e-3)
    assert len(shown) == 4 * 4


def test_no_time_is_lost_between_the_pieces(tmp_path: Path) -> None:
    trace = read_trace([Kineto(slow=lambda step, rank: 1 + 0.1 * rank * step).write(tmp_path)])
    for step in range(10, 13):
        took_s = [trace.duration_s[(trace.step == step) & (trace.rank == r)].sum() for r in (0, 3)]
        assert took_s[0] == pytest.approx(took_s[1], rel=1e-6)


def test_ranks_that_are_not_there_are_counted(tmp_path: Path) -> None:
    Kineto(ranks=4).write(tmp_path)
    next(tmp_path.glob("*rank3*")).unlink()

    assert read_trace([tmp_path]).n_ranks_missing == 1


def test_gzipped_files_and_lists_of_files_are_read_alike(tmp_path: Path) -> None:
    plain, zipped = tmp_path / "plain", tmp_path / "zipped"
    plain.mkdir()
    zipped.mkdir()
    first = read_trace(sorted(Kineto().write(plain).iterdir()))
    second = read_trace([Kineto().write(zipped, zipped=True)])

    np.testing.assert_array_equal(first.duration_s, second.duration_s)


def test_all_ranks_may_be_in_one_file(tmp_path: Path) -> None:
    files = Kineto(slow=lambda _step, rank: 1.5 if rank == 2 else 1.0).files()
    events = [
        event | {"pid": rank}
        for rank, document in enumerate(files)
        for event in document["traceEvents"]
    ]
    (tmp_path / "merged.json").write_text(json.dumps({"traceEvents": events}))
    analysis = analyse_trace(read_trace([tmp_path / "merged.json"]), run="merged")

    assert analysis.verdict.culprits == ((2, 0),)


def test_a_folder_per_rank_is_read_with_the_ranks_of_the_folders(tmp_path: Path) -> None:
    for rank, document in enumerate(Kineto().files()):
        del document["distributedInfo"]
        folder = tmp_path / "profile" / f"rank_{rank}"
        folder.mkdir(parents=True)
        (folder / "trace.json").write_text(json.dumps(document))

    assert [each.rank for each in read_trace([tmp_path]).figures] == [0, 1, 2, 3]


def test_tensor_parallel_groups_are_one_worker_and_their_collectives_work(tmp_path: Path) -> None:
    for rank, document in enumerate(Kineto(ranks=4).files()):
        pair = [rank % 2, rank % 2 + 2]
        for event in document["traceEvents"]:
            if "Process Group Ranks" in event.get("args", {}):
                event["args"]["Process Group Ranks"] = str(pair)
        (tmp_path / f"rank{rank}.json").write_text(json.dumps(document))

    trace = read_trace([tmp_path])
    assert (set(trace.dp.tolist()), set(trace.stage.tolist())) == ({0, 1}, {0})


def test_a_group_without_description_is_no_reason_to_stop(tmp_path: Path) -> None:
    document: dict[str, Any] = Kineto(ranks=1).files()[0]
    document["traceEvents"][0]["args"]["Process Group Description"] = "@"
    text = json.dumps(document).replace('"@"', "")
    (tmp_path / "rank0.json").write_text(text)

    assert len(read_trace([tmp_path / "rank0.json"])) > 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b'{"traceEvents": [{"ph": "X"', "is not complete JSON"),
        (b'{"events": []}', "is not a profiler's trace"),
        (b'{"traceEvents": 3}', "is not a profiler's trace"),
        (b'{"traceEvents": []}', "has no kernels, only nothing"),
        (
            b'{"traceEvents": [{"ph": "X", "cat": "cpu_op", "ts": 1, "dur": 1}]}',
            "has no kernels, only cpu_op",
        ),
        (
            b'[{"ph": "X", "cat": "kernel", "name": "gemm", "ts": 1, "dur": 1}]',
            "rank 0: has no communication",
        ),
        (
            b'[{"ph": "X", "cat": "kernel", "name": "nccl_AllReduce", "ts": 1, "dur": -1}]',
            "ends before it starts",
        ),
        (gzip.compress(b'{"traceEvents": []}', mtime=0)[:-9], "truncated"),
    ],
)
def test_what_is_no_trace_is_refused(tmp_path: Path, text: bytes, message: str) -> None:
    assert message in refused(tmp_path / "x.json", text)


def test_what_is_far_too_large_is_refused_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importers.traces.documents.MAX_BYTES", 1_000_000)
    path = tmp_path / "x.json"
    with path.open("wb") as file:
        file.write(b"{")
        file.truncate(50_000_000)

    tracemalloc.start()
    try:
        with pytest.raises(TraceError, match=r"x\.json: is more than"):
            read_trace([path])
        assert tracemalloc.get_traced_memory()[1] < 5_000_000
    finally:
        tracemalloc.stop()


def test_the_same_rank_twice_is_refused(tmp_path: Path) -> None:
    document = json.dumps(Kineto(ranks=2).files()[0])
    for name in ("a.json", "b.json"):
        (tmp_path / name).write_text(document)

    with pytest.raises(TraceError, match="rank 0: occurs twice"):
        read_trace([tmp_path])


def test_a_folder_without_traces_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"holds no file that ends in \.json"):
        read_trace([tmp_path])


def test_two_tables_are_refused(tmp_path: Path) -> None:
    for name in ("a.parquet", "b.parquet"):
        (tmp_path / name).write_bytes(b"PAR1")

    with pytest.raises(TraceError, match="give it alone"):
        read_trace([tmp_path])
