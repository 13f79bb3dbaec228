"""Traces of one row per operation: read completely, or refused by column and row."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from importers.traces import read_trace
from importers.traces.trace import Trace, TraceError
from tests.importers.made_traces import COLUMNS, Job
from tests.importers.recorded import write_parquet


@pytest.fixture(scope="module")
def small() -> Trace:
    return Job(dp=2, pp=2, micro=2, steps=2).trace()


def refused(path: Path) -> str:
    with pytest.raises(TraceError) as reported:
        read_trace([path])
    return str(reported.value)


def test_a_trace_comes_back_unchanged(small: Trace, tmp_path: Path) -> None:
    read = read_trace([write_parquet(small, tmp_path / "x.parquet")])

    for name in COLUMNS:
        np.testing.assert_array_equal(getattr(read, name), getattr(small, name))


def test_the_layout_next_to_it_reports_the_tensor_parallel_degree(
    small: Trace, tmp_path: Path
) -> None:
    path = write_parquet(small, tmp_path / "x.parquet")
    (tmp_path / "x.yaml").write_text("trial_name: x\ntp_size: 4\nworld_size: 16\n")

    assert read_trace([path]).tp == 4


def test_unix_seconds_tell_when_it_was_recorded(small: Trace, tmp_path: Path) -> None:
    later = pa.array(small.start_s + 1.7e9)
    path = write_parquet(small, tmp_path / "x.parquet", start_ts=later)

    assert read_trace([path]).began_at_s == pytest.approx(1.7e9)


def test_what_is_of_use_but_absent_is_made_up_for(small: Trace, tmp_path: Path) -> None:
    bare = dict.fromkeys(("rank", "mc", "mb_id"))
    read = read_trace([write_parquet(small, tmp_path / "x.parquet", **bare)])

    assert set(read.rank.tolist()) == {0, 1, 2, 3}
    assert set(read.chunk.tolist()) == {0}
    assert set(read.microbatch.tolist()) == {-1}


def test_further_columns_are_left_alone(small: Trace, tmp_path: Path) -> None:
    path = write_parquet(small, tmp_path / "x.parquet", note=pa.array(["?"] * len(small)))

    assert len(read_trace([path])) == len(small)


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("duration", -1.0, "duration: row 3 is negative"),
        ("duration", 1e6, "duration: row 3 is more than a day; times must be in seconds"),
        ("duration", np.nan, "duration: row 3 is not a number"),
        ("start_ts", np.inf, "start_ts: row 3 is not a number"),
        ("dp_rank", -1, "dp_rank: row 3 must be a whole number, 0 or more"),
        ("stage", 0.5, "stage: row 3 must be a whole number"),
        ("seq_id", 10**9, "seq_id: row 3 must be a whole number"),
    ],
)
def test_a_value_that_cannot_be_is_named(
    small: Trace, tmp_path: Path, column: str, value: float, message: str
) -> None:
    good = pq.read_table(write_parquet(small, tmp_path / "x.parquet"))[column].to_numpy()
    bad = good.astype("f8")
    bad[3] = value

    assert message in refused(
        write_parquet(small, tmp_path / "x.parquet", **{column: pa.array(bad)})
    )


def test_a_missing_column_is_named_with_all_that_are_needed(small: Trace, tmp_path: Path) -> None:
    reported = refused(write_parquet(small, tmp_path / "x.parquet", optype=None))

    assert "has no column optype" in reported
    assert "dp_rank, stage, step" in reported


def test_text_for_numbers_is_refused(small: Trace, tmp_path: Path) -> None:
    message = pa.array(["soon"] * len(small))

    assert "start_ts: must be numbers" in refused(
        write_parquet(small, tmp_path / "x.parquet", start_ts=message)
    )


def test_empty_rows_are_refused(small: Trace, tmp_path: Path) -> None:
    holes = pa.array([None, *small.duration_s[1:].tolist()], pa.float64())

    assert "duration: has 1 empty rows" in refused(
        write_parquet(small, tmp_path / "x.parquet", duration=holes)
    )


def test_an_unknown_operation_is_named(small: Trace, tmp_path: Path) -> None:
    names = pa.array(["sideways-compute"] * len(small))
    reported = refused(write_parquet(small, tmp_path / "x.parquet", optype=names))

    assert "'sideways-compute' is unknown" in reported
    assert "forward-compute" in reported


def test_a_file_without_rows_is_refused(small: Trace, tmp_path: Path) -> None:
    path = write_parquet(small, tmp_path / "x.parquet")
    pq.write_table(pq.read_table(path).slice(0, 0), path)

    assert "has no operations" in refused(path)


def test_half_a_file_is_refused(small: Trace, tmp_path: Path) -> None:
    path = write_parquet(small, tmp_path / "x.parquet")
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])

    assert "is not a complete Parquet file" in refused(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"step,duration\n1,2\n", "is neither Parquet nor JSON"),
        (b"\x89PNG\r\n", "is neither Parquet nor JSON"),
    ],
)
def test_another_kind_of_file_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "x.parquet").write_bytes(content)

    assert message in refused(tmp_path / "x.parquet")
