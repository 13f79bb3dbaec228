"""Neuron Explorer's Parquet folders and neuron-profile's JSON: what each rank did."""

import json
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from importers.traces import read_trace
from importers.traces.neuron import without
from importers.traces.trace import Trace, TraceError
from importers.traces.what_if import analyse_trace
from tests.importers.traces.neuron_profiles import (
    BEGAN_NS,
    SystemJob,
    device_tables,
    old_json,
    write_table,
)

LATE = SystemJob(extra_ms={2: 30})


def folder_of(job: SystemJob, folder: Path) -> Trace:
    write_table(folder / "job@latest", "SystemProfileEvents", job.events())
    write_table(folder / "job@latest", "SystemProfileMetadata", [{"first_ts_ns": str(BEGAN_NS)}])
    return read_trace([folder])


@pytest.mark.parametrize("pcores", [1, 2])
def test_a_system_profile_names_the_rank_the_others_wait_for(tmp_path: Path, pcores: int) -> None:
    trace = folder_of(SystemJob(extra_ms={2: 30}, pcores=pcores), tmp_path)
    analysis = analyse_trace(trace, run="late")

    assert analysis.culprits == ("rank2-dp2-stage0",)
    assert len(analysis.steps) == 6
    assert [each.wait_s for each in trace.figures] == pytest.approx([0.03, 0.03, 0.0, 0.03])
    # Whole steps have 15 ms of transfer and 30 ms of waiting; the last one lacks its pause.
    np.testing.assert_allclose([each.exchange_s for each in trace.figures][:2], 0.045)
    assert trace.began_at_s == pytest.approx(BEGAN_NS / 1e9)
    assert not trace.shows_overlap


def test_physical_cores_of_a_logical_one_wait_for_the_same_collective(tmp_path: Path) -> None:
    single = folder_of(SystemJob(), tmp_path / "single")
    double = folder_of(SystemJob(pcores=2), tmp_path / "double")

    assert len(double) == len(single)
    assert double.figures == single.figures


def test_a_table_in_several_files_is_read_as_one(tmp_path: Path) -> None:
    whole = folder_of(LATE, tmp_path / "whole")
    for part in range(3):
        write_table(tmp_path / "split", f"SystemProfileEvents_{part}", LATE.events()[part::3])

    split = read_trace([tmp_path / "split"])

    assert split.figures == whole.figures
    assert len(split) == len(whole)


def test_the_old_json_reads_like_the_table(tmp_path: Path) -> None:
    whole = folder_of(LATE, tmp_path / "new")
    (tmp_path / "system_profile.json").write_text(json.dumps(old_json(LATE.events())))

    old = read_trace([tmp_path / "system_profile.json"])

    assert old.figures == whole.figures


def test_ranks_whose_recording_begins_later_keep_their_step_numbers(tmp_path: Path) -> None:
    rows = [
        row
        for row in LATE.events()
        if row["worker_gid"] != 1 or row["start_ts"] > BEGAN_NS + 109_000_000
    ]
    write_table(tmp_path, "SystemProfileEvents", rows)
    trace = read_trace([tmp_path])

    assert sorted(set(trace.step[trace.rank == 1].tolist())) == [1, 2, 3, 4, 5]
    assert analyse_trace(trace, run="late").culprits == ("rank2-dp2-stage0",)


def test_a_device_profile_shows_what_work_hides_and_the_real_memory_bandwidth(
    tmp_path: Path,
) -> None:
    for rank in range(2):
        for name, rows in device_tables().items():
            write_table(tmp_path / f"model_vnc_{rank}@latest", name, rows)
    trace = read_trace([tmp_path])
    found = trace.figures[0]

    assert [each.rank for each in trace.figures] == [0, 1]
    assert found.work_s == pytest.approx(0.040)
    # The gathering is hidden; 4 ms until the reduction begins, 6 ms that it takes.
    assert found.exchange_s == pytest.approx(0.010)
    assert found.wait_s == pytest.approx(0.004)
    assert found.other_comm_s == pytest.approx(0.008)
    assert found.hbm_bytes_per_s == pytest.approx(4e11)
    assert found.hbm_peak_bytes_per_s == pytest.approx(8e11)
    assert found.throttled_ratio == pytest.approx(17 / 68)
    assert trace.shows_overlap


def test_a_device_profile_as_json_reads_like_the_tables(tmp_path: Path) -> None:
    tables = device_tables()
    for name, rows in tables.items():
        write_table(tmp_path / "new", name, rows)
    collectives = [
        {key: row[key] for key in row if key not in ("start_ts", "end_ts", "duration_ns")}
        | {"timestamp": row["start_ts"], "duration": row["duration_ns"]}
        for row in tables["CcOp"]
    ]
    document = {
        "cc_ops": collectives,
        "active_time": tables["ActiveTime"],
        "hbm_usage": tables["HbmUsage"],
        "throttle": tables["Throttle"],
        "summary": [{"total_time": 0.068}],
    }
    (tmp_path / "device_profile_model_7.json").write_text(json.dumps(document))

    old = read_trace([tmp_path / "device_profile_model_7.json"])

    assert old.figures == read_trace([tmp_path / "new"]).figures


@pytest.mark.parametrize(
    ("names", "ranks"),
    [
        (("model_1_vnc_0", "model_1_vnc_4", "model_2_vnc_4"), [0, 4]),
        (("a_instid_0_vnc_1", "a_instid_1_vnc_1"), [0, 1]),
        (("first", "second"), [0, 1]),
    ],
)
def test_device_profiles_are_matched_with_cores_by_their_names(
    tmp_path: Path, names: tuple[str, ...], ranks: list[int]
) -> None:
    for name in names:
        for table, rows in device_tables().items():
            if table != "Metadata":
                write_table(tmp_path / f"{name}@latest", table, rows)

    assert [each.rank for each in read_trace([tmp_path]).figures] == ranks


def test_device_profiles_without_names_are_matched_by_their_metadata(tmp_path: Path) -> None:
    for name, device in (("a", 3), ("b", 1)):
        tables = device_tables(wait_ms=device)
        tables["Metadata"][0] |= {"neuron_device_idx": device, "neuroncore_idx": 0}
        for table, rows in tables.items():
            write_table(tmp_path / name, table, rows)
    trace = read_trace([tmp_path])

    assert [each.rank for each in trace.figures] == [0, 1]
    assert [each.wait_s for each in trace.figures] == pytest.approx([0.001, 0.003])
    assert trace.instance == "trn2.48xlarge"


def test_figures_of_a_device_profile_go_to_the_rank_in_its_name(tmp_path: Path) -> None:
    folder_of(LATE, tmp_path)
    for name, rows in device_tables().items():
        write_table(tmp_path / "model_vnc_3@latest", name, rows)
    figures = read_trace([tmp_path]).figures

    assert figures[3].hbm_bytes_per_s == pytest.approx(4e11)
    assert figures[0].hbm_bytes_per_s is None
    assert figures[3].wait_s == pytest.approx(0.03)


def test_a_profile_without_hardware_events_is_refused(tmp_path: Path) -> None:
    rows = [row | {"name": "nrt_execute"} for row in LATE.events()]
    write_table(tmp_path, "SystemProfileEvents", rows)

    with pytest.raises(TraceError, match="hardware events included"):
        read_trace([tmp_path])


def test_a_table_that_lacks_a_column_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"name": ["cc_running"]}), tmp_path / "SystemProfileEvents.parquet")

    with pytest.raises(TraceError, match=r"SystemProfileEvents.parquet: has no column start_ts"):
        read_trace([tmp_path])


def test_profiles_and_chrome_traces_are_not_mixed(tmp_path: Path) -> None:
    folder_of(LATE, tmp_path / "profile")
    kernel = {"ph": "X", "cat": "kernel", "name": "all-reduce.1", "ts": 1, "dur": 1}
    (tmp_path / "rank0.json").write_text(json.dumps({"traceEvents": [kernel]}))

    with pytest.raises(TraceError, match="apart"):
        read_trace([tmp_path / "profile", tmp_path / "rank0.json"])


JUNK: st.SearchStrategy[object] = st.sampled_from(
    [None, "", "x", -1, 1e300, True, [], {}, [1], "[[0]]"]
)
TABLES = st.sampled_from(["trace_events", "cc_ops", "active_time", "hbm_usage", "throttle"])


@settings(max_examples=60, deadline=None)
@given(TABLES, st.integers(0, 40), st.integers(0, 12), JUNK, st.booleans())
def test_a_profile_with_a_wrong_value_is_read_or_refused(
    table: str, row: int, column: int, value: object, is_absent: object
) -> None:
    tables = device_tables()
    system = table == "trace_events"
    document: dict[str, Any] = (
        old_json(SystemJob(ranks=2).events())
        if system
        else {
            "cc_ops": tables["CcOp"],
            "active_time": tables["ActiveTime"],
            "hbm_usage": tables["HbmUsage"],
            "throttle": tables["Throttle"],
        }
    )
    rows = document[table]
    entry = rows[row % len(rows)]
    name = sorted(entry)[column % len(entry)]
    entry[name] = value
    if is_absent:
        for each in rows:
            del each[name]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "profile.json"
        path.write_text(json.dumps(document))
        with suppress(TraceError):
            trace = read_trace([path])
            assert np.isfinite(trace.duration_s).all()
            assert (trace.duration_s >= 0).all()


SPANS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 12)), max_size=12)


@given(SPANS, SPANS)
def test_intervals_without_others_are_the_ticks_that_only_they_have(
    one: list[tuple[int, int]], other: list[tuple[int, int]]
) -> None:
    ticks = np.zeros((2, 60), bool)
    intervals = []
    for row, spans in zip(ticks, (one, other), strict=True):
        for start, length in spans:
            row[start : start + length] = True
        starts = np.array([start for start, _ in spans], "f8")
        intervals.append((starts, starts + np.array([length for _, length in spans], "f8")))

    begins, ends = without(intervals[0], intervals[1])

    shown = np.zeros(60, bool)
    for begin, end in zip(begins.astype(int), ends.astype(int), strict=True):
        shown[begin:end] = True
    np.testing.assert_array_equal(shown, ticks[0] & ~ticks[1])
