"""Chrome traces as real programs write them: lenient JSON, compilers' kernels, uneven steps."""

import gzip
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from importers.text import strict_json
from importers.traces import read_trace
from importers.traces.trace import TraceError
from importers.traces.what_if import Analysis, analyse_trace

DATA = Path(__file__).parents[1] / "data"
NCCL = "ncclDevKernel_{}_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def analysed(*paths: Path) -> Analysis:
    return analyse_trace(read_trace(paths), run="writers")


def shares(found: Analysis) -> tuple[float, float]:
    """Shares of the time of all steps: gradient exchange, other communication."""
    steps = found.steps
    exchange = np.average(steps.allreduce_share_ratio, weights=steps.step_s)
    return float(exchange), found.found.other_comm_ratio


@pytest.mark.parametrize(
    ("name", "share"),
    [
        ("60-kineto-inf.json", 0.30),
        ("62-kineto-control-characters.json", 0.30),
        ("64-kineto-bom.json", 0.30),
        ("65-triton-permute.json", 0.30),
        ("67-steps-alternate.json", 21 / 89),
    ],
)
def test_a_trace_of_a_real_writer_has_its_right_share(name: str, share: float) -> None:
    assert shares(analysed(DATA / name)) == pytest.approx((share, 0.0), abs=1e-6)


PLAIN = (DATA / "60-kineto-inf.json").read_text().replace(": inf", ": 1.5")


@pytest.mark.parametrize(
    "data",
    [
        PLAIN.replace(": 1.5", ": -Infinity").encode(),
        PLAIN.replace(": 1.5", ": nan").encode(),
        PLAIN.replace(": 1.5", ":-inf").encode(),
        PLAIN.replace(": 1.5", ": -nan(ind)").encode(),
        re.sub(r"\]\s*\}\s*$", ",\n]\n}", PLAIN).encode(),
        json.dumps(json.loads(PLAIN)["traceEvents"])[:-1].encode(),
        (json.dumps(json.loads(PLAIN)["traceEvents"])[:-1] + ",\n").encode(),
        PLAIN.replace("aten::mm", "line\r\n\tof \x01 source, inf").encode(),
        PLAIN.replace("aten::mm", "caf\u00e9 {").encode("latin-1"),
        PLAIN.replace("aten::mm", r"C:\Users\nan").encode(),
        PLAIN.replace("aten::mm", r"half \ud800 of a pair").encode(),
        PLAIN.replace(": 1.5", ": inf").encode("utf-8-sig"),
        PLAIN.encode("utf-16"),
        PLAIN.encode("utf-16-le"),
        PLAIN.encode("utf-16-be"),
        PLAIN.encode("utf-32"),
    ],
)
@pytest.mark.parametrize("zipped", [False, True])
def test_lenient_json_in_any_encoding_is_read(
    tmp_path: Path,
    data: bytes,
    zipped: bool,  # noqa: FBT001
) -> None:
    path = tmp_path / "rank0.json"
    path.write_bytes(gzip.compress(data) if zipped else data)

    assert shares(analysed(path))[0] == pytest.approx(0.30)


@pytest.mark.parametrize("event", [{"ph": "B"}, {"ts": "1000.0", "dur": "5"}])
def test_events_that_are_not_complete_are_refused_with_that_reason(
    tmp_path: Path, event: dict[str, str]
) -> None:
    document = json.loads(PLAIN)
    document["traceEvents"] = [each | event for each in document["traceEvents"]]
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps(document))

    with pytest.raises(TraceError, match="has no complete events"):
        analysed(path)


def test_only_what_is_no_json_is_changed() -> None:
    valid = rb'{"a": "x: inf, \u00e9 \ud83d\ude00 \\ \" nan", "inf": [1e5, -2.5, null], "n": "\t"}'
    assert strict_json(valid.replace(rb'"\t"', b'"\t"')) == valid.replace(rb'"\t"', rb'"\u0009"')
    assert strict_json(b'{"a": [-inf, NaN , +Infinity], "b": info}') == (
        b'{"a": [null, null , null], "b": info}'
    )


def kernel(begin_ms: float, lasts_ms: float, name: str, **args: Any) -> dict[str, Any]:
    event = {"ph": "X", "cat": "kernel", "pid": 0, "name": name, "args": args}
    return event | {"ts": begin_ms * 1000, "dur": lasts_ms * 1000}


def collective(begin_ms: float, lasts_ms: float, kind: str) -> dict[str, Any]:
    return kernel(begin_ms, lasts_ms, NCCL.format(kind), **{"Process Group Ranks": "[0, 1]"})


def write(folder: Path, rank: int, steps: list[list[dict[str, Any]]], step_ms: float) -> Path:
    events: list[dict[str, Any]] = []
    for number, own in enumerate(steps):
        mark = kernel(0.0, step_ms, f"ProfilerStep#{number}") | {"cat": "gpu_user_annotation"}
        begin_us = number * step_ms * 1000
        events += [event | {"ts": event["ts"] + begin_us} for event in (mark, *own)]
    path = folder / f"rank{rank}.json"
    info = {"rank": rank, "world_size": 2}
    path.write_text(json.dumps({"distributedInfo": info, "traceEvents": events}))
    return path


@pytest.mark.parametrize(
    ("name", "args", "expected"),
    [
        ("triton_red_fused_all_reduce_send_recv_3", {}, (0.3, 0.0)),
        ("void permute_1D_data_kernel<int, float>(float const*)", {}, (0.3, 0.0)),
        ("moe_permute_topK_kernel", {}, (0.3, 0.0)),
        ("recv_buffer_unpack", {}, (0.3, 0.0)),
        ("all_reduce_sum_rows_kernel", {}, (0.3, 0.0)),
        ("void at::native::reduce_scatter_rows<float, nccl>", {}, (0.3, 0.0)),
        ("ncclDevKernel_Generic_1(x)", {"Collective name": "allreduce"}, (0.5, 0.0)),
        ("fused_exchange", {"Collective name": "all_to_allv"}, (0.3, 0.2)),
        ("%collective-permute-start.7", {}, (0.3, 0.2)),
        ("void nvshmem_put_kernel<float>", {}, (0.3, 0.2)),
    ],
)
def test_metadata_and_libraries_make_communication_and_not_words_in_names(
    tmp_path: Path, name: str, args: dict[str, Any], expected: tuple[float, float]
) -> None:
    reduce = collective(7, 3, "AllReduce_Sum_bf16")
    if args:
        args |= {"Process Group Ranks": "[0, 1]"}
    step = [kernel(0, 5, "gemm"), kernel(5, 2, name, **args), reduce]
    path = write(tmp_path, 0, [step] * 5, 10.0)

    assert shares(analysed(path)) == pytest.approx(expected)


def test_a_copy_is_no_communication_whatever_its_name(tmp_path: Path) -> None:
    copy = kernel(5, 2, "nccl_send_recv") | {"cat": "gpu_memcpy"}
    step = [kernel(0, 5, "gemm"), copy, collective(7, 3, "AllReduce_Sum_bf16")]

    assert shares(analysed(write(tmp_path, 0, [step] * 5, 10.0))) == pytest.approx((0.3, 0.0))


FEW = [
    kernel(0, 8, "gemm"),
    collective(2, 1, "ReduceScatter_Sum_bf16"),
    collective(8, 2, "AllGather"),
]
# The second reduce-scatter is only here, and nothing hides it.
MORE = [
    kernel(0, 3, "gemm"),
    collective(1, 1, "ReduceScatter_Sum_bf16"),
    collective(3, 3, "ReduceScatter_Sum_bf16"),
    kernel(6, 2, "gemm"),
    collective(8, 2, "AllGather"),
]


@pytest.mark.parametrize(
    ("steps", "share"),
    [
        ([FEW, FEW, FEW, MORE], (2 * 4 + 3) / 40),
        ([FEW, MORE, MORE, MORE], (2 * 4 + 3 * 3) / 40),
        ([FEW, MORE, FEW, MORE, FEW], (2 * 5 + 3 * 2) / 50),
    ],
)
def test_collectives_of_uneven_steps_are_matched_by_kind_and_sequence(
    tmp_path: Path, steps: list[list[dict[str, Any]]], share: float
) -> None:
    found = analysed(write(tmp_path, 0, steps, 10.0))

    assert len(found.grid.steps) == len(steps)
    assert shares(found) == pytest.approx((share, 0.0))


def test_ranks_with_other_numbers_of_collectives_are_matched(tmp_path: Path) -> None:
    paths = [write(tmp_path, rank, [each] * 4, 10.0) for rank, each in enumerate((FEW, MORE))]
    found = analysed(*paths)

    assert shares(found)[0] == pytest.approx((2 + 5) / 20)
    assert len(found.grid.steps) == 4


def test_the_last_collective_counts_though_it_is_hidden_in_most_steps(tmp_path: Path) -> None:
    hidden = [kernel(0, 10, "gemm"), collective(6, 3, "AllReduce_Sum_bf16")]
    seen = [kernel(0, 6, "gemm"), collective(6, 4, "AllReduce_Sum_bf16")]

    found = analysed(write(tmp_path, 0, [hidden, hidden, hidden, seen], 10.0))

    assert shares(found)[0] == pytest.approx(4 / 40)
