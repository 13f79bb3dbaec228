"""Time in communication that no work hides, against a timeline that is counted tick by tick."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from importers.traces import read_trace
from importers.traces.ranks import (
    EXCHANGE,
    OTHER,
    WORK,
    RankEvents,
    segments_of,
    trace_of_ranks,
)
from importers.traces.what_if import analyse_trace

END = 60
EVENTS = st.lists(
    st.tuples(
        st.integers(0, END - 1), st.integers(0, 25), st.sampled_from((WORK, EXCHANGE, OTHER))
    ),
    min_size=1,
    max_size=25,
)


def rank_events(events: list[tuple[int, int, int]], bounds: list[int]) -> RankEvents:
    start, length, kind = np.array(events).T
    return RankEvents(
        rank=0,
        world=1,
        start_s=start.astype("f8"),
        end_s=(start + length).astype("f8"),
        kind=kind,
        group=np.zeros(len(events), "i8"),
        groups=[()],
        steps={i: (float(bounds[i]), float(bounds[i + 1])) for i in range(len(bounds) - 1)},
    )


@settings(max_examples=60, deadline=None)
@given(EVENTS, st.sets(st.integers(1, END - 1), max_size=3))
def test_exposed_time_is_that_of_a_timeline_counted_by_ticks(
    events: list[tuple[int, int, int]], marks: set[int]
) -> None:
    events = [*events, (0, 1, OTHER)]
    bounds = [0, *sorted(marks), END]
    ticks = np.zeros((3, END), bool)
    for start, length, kind in events:
        ticks[kind, start : start + length] = True
    work, exchange, other = ticks
    counted = [work, exchange & ~work, other & ~exchange & ~work, ~(work | exchange | other)]

    trace = trace_of_ranks([rank_events(events, bounds)])

    (found,) = trace.figures
    shown = np.array([found.work_s, found.exchange_s, found.other_comm_s, found.idle_s])
    expected = np.array([each.sum() for each in counted]) / (len(bounds) - 1)
    np.testing.assert_allclose(shown, expected, atol=1e-6)
    for step, (begin, until) in enumerate(pairwise(bounds)):
        assert trace.duration_s[trace.step == step].sum() == pytest.approx(until - begin)


def test_work_before_a_collective_ends_when_the_first_of_several_streams_begins() -> None:
    exchange = np.array([2.0, 4.0]), np.array([12.0, 7.0])
    cuts = np.array([4.0, 2.0]), np.array([7.0, 12.0])
    work = np.array([0.0, 9.0]), np.array([3.0, 10.0])
    none = np.zeros(0)

    found = segments_of(exchange, work, (none, none), cuts=cuts, span=(0.0, 12.0))

    assert found.before.tolist() == [2.0, 0.0, 0.0]
    assert found.parallel.tolist() == [1.0, 1.0, 0.0]
    assert found.visible.tolist() == [4.0, 4.0, 0.0]


MS = 1000.0


def kernel(name: str, begin_ms: float, lasts_ms: float, **args: Any) -> dict[str, Any]:
    event = {"ph": "X", "cat": "kernel", "pid": 0, "name": name, "args": args}
    return event | {"ts": begin_ms * MS, "dur": lasts_ms * MS}


def write_rank(folder: Path, rank: int, events: list[dict[str, Any]], *, world: int = 2) -> None:
    marks = [
        {"ph": "X", "cat": "gpu_user_annotation", "pid": 0, "name": f"ProfilerStep#{step}"}
        | {"ts": 150 * MS * step, "dur": 150 * MS}
        for step in range(4)
    ]
    repeated = [
        event | {"ts": event["ts"] + 150 * MS * step} for step in range(4) for event in events
    ]
    info = {"backend": "nccl", "rank": rank, "world_size": world}
    document = {"distributedInfo": info, "traceEvents": [*marks, *repeated]}
    (folder / f"rank{rank}.json").write_text(json.dumps(document))


SEND_RECV = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
GEMM = "ampere_bf16_s16816gemm"


def test_a_pipeline_that_only_sends_and_receives_shows_its_communication(tmp_path: Path) -> None:
    write_rank(tmp_path, 0, [kernel(GEMM, 0, 77), kernel(SEND_RECV, 76, 74)])
    write_rank(tmp_path, 1, [kernel(SEND_RECV, 0, 72), kernel(GEMM, 72, 78)])

    trace = read_trace([tmp_path])
    analysis = analyse_trace(trace, run="pipeline")

    assert [each.other_comm_s for each in trace.figures] == pytest.approx([0.073, 0.072])
    assert analysis.grid.n_stages == 2
    assert analysis.verdict.cause == "communication"
    assert analysis.steps.other_comm_s.mean() == pytest.approx(0.0725)
    assert analysis.steps.allreduce_share_ratio.max() == 0.0


def test_a_pipeline_of_which_a_rank_was_not_recorded_is_read(tmp_path: Path) -> None:
    for rank in range(3):
        group = {"Process Group Ranks": str([rank % 2, rank % 2 + 2])}
        reduce = kernel("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", 120, 30, **group)
        write_rank(
            tmp_path, rank, [kernel(GEMM, 0, 70), kernel(SEND_RECV, 70, 50), reduce], world=4
        )

    trace = read_trace([tmp_path])
    analysis = analyse_trace(trace, run="pipeline")

    assert (analysis.grid.n_stages, analysis.grid.n_dp, trace.n_ranks_missing) == (3, 1, 1)
    assert analysis.verdict.cause == "communication"
    assert [each.other_comm_s for each in trace.figures] == pytest.approx([0.05] * 3)


@pytest.mark.parametrize(("n_sending", "cause"), [(2, "communication"), (1, "none")])
def test_sending_is_seen_also_where_not_all_ranks_do_it(
    tmp_path: Path, n_sending: int, cause: str
) -> None:
    reduce = kernel("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", 140, 10)
    write_rank(tmp_path, 0, [kernel(GEMM, 0, 67), kernel(SEND_RECV, 67, 73), reduce])
    rest = [kernel(SEND_RECV, 67, 73)] * (n_sending - 1)
    write_rank(tmp_path, 1, [kernel(GEMM, 0, 67), *rest, reduce])

    trace = read_trace([tmp_path])
    analysis = analyse_trace(trace, run="pipeline")

    assert sum(each.other_comm_s for each in trace.figures) == pytest.approx(0.073 * n_sending)
    assert analysis.steps.other_comm_s.mean() == pytest.approx(0.073 * n_sending / 2)
    assert analysis.verdict.cause == cause


@pytest.mark.parametrize(
    ("name", "described", "share_s"),
    [
        ("ncclDevKernel_AllGather_RING_LL", None, (0.05, 0.0)),
        ("ncclDevKernel_Reduce_Sum_f32_RING_LL", None, (0.05, 0.0)),
        ("ncclKernel_ReduceScatter_RING_LL_Sum_float", None, (0.05, 0.0)),
        ("ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)", "allreduce", (0.05, 0.0)),
        ("ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)", None, (0.0, 0.05)),
        ("ncclDevKernel_Generic_4", "_allgather_base", (0.05, 0.0)),
        (SEND_RECV, "all_to_allv", (0.0, 0.05)),
        (SEND_RECV, "recv 0<-1", (0.0, 0.05)),
        (SEND_RECV, "gather", (0.0, 0.05)),
        ("deep_ep::internode::dispatch", None, (0.0, 0.05)),
        ("collective-permute.12", None, (0.0, 0.05)),
        ("all-to-all.3", None, (0.0, 0.05)),
        ("reduce-scatter.7", None, (0.05, 0.0)),
        ("void at::native::reduce_kernel<512, 1>", None, (0.0, 0.0)),
        ("at::native::broadcast_add", None, (0.0, 0.0)),
    ],
)
def test_every_kind_of_communication_is_known(
    tmp_path: Path, name: str, described: str | None, share_s: tuple[float, float]
) -> None:
    args = {} if described is None else {"Collective name": described}
    send = kernel(SEND_RECV, 149, 1)
    write_rank(tmp_path, 0, [kernel(GEMM, 0, 90), kernel(name, 90, 50, **args), send], world=1)
    (found,) = read_trace([tmp_path]).figures

    assert found.exchange_s == pytest.approx(share_s[0])
    assert found.other_comm_s == pytest.approx(share_s[1] + 0.001)


def test_the_shard_for_which_its_tensor_parallel_peer_waits_is_named(tmp_path: Path) -> None:
    reduce = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"
    for rank in range(4):
        worker, shard = divmod(rank, 2)
        tensor = {"Process Group Ranks": str([2 * worker, 2 * worker + 1])}
        data = {"Process Group Ranks": str([shard, shard + 2])}
        tensor["Process Group Description"], data["Process Group Description"] = "tp", "dp"
        works_ms, present_ms = 90 if rank == 3 else 60, 90 if worker else 60
        wait = present_ms + 5 - works_ms
        events = [kernel(GEMM, 0, works_ms), kernel(reduce, works_ms, wait, **tensor)]
        events.append(kernel(reduce, present_ms + 5, 105 - present_ms - 5, **data))
        write_rank(tmp_path, rank, [*events, kernel(GEMM, 105, 40)], world=4)

    trace = read_trace([tmp_path])
    analysis = analyse_trace(trace, run="sharded")

    assert analysis.culprits == ("rank3-dp1-stage0",)
    assert [each.other_comm_s for each in trace.figures] == pytest.approx(
        [0.005] * 2 + [0.035, 0.005]
    )
    assert analysis.found.slowdown_ratio == pytest.approx(145 / 130, rel=0.01)


@pytest.mark.parametrize("words", ["TENSOR_MODEL_PARALLEL_GROUP", "mesh_tp"])
def test_groups_of_tensor_parallel_ranks_are_other_communication(
    tmp_path: Path, words: str
) -> None:
    reduce = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"
    for rank in range(2):
        tensor: dict[str, Any] = {"Process Group Ranks": "[4, 5, 6, 7]"}
        tensor["Process Group Description"] = words
        data = {"Process Group Ranks": "[0, 1]", "Process Group Description": "mesh_dp"}
        events = [kernel(GEMM, 0, 90), kernel(reduce, 90, 20, **tensor)]
        write_rank(tmp_path, rank, [*events, kernel(reduce, 110, 40, **data)])

    trace = read_trace([tmp_path])

    assert [each.exchange_s for each in trace.figures] == pytest.approx([0.04, 0.04])
    assert [each.other_comm_s for each in trace.figures] == pytest.approx([0.02, 0.02])
