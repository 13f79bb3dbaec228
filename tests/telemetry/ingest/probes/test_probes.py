"""Output of the three probes as rows in bytes, seconds and bytes per second."""

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from telemetry.ingest.probes import read_probe

GIB, GB = 2**30, 1e9
NCCOM = """\
    size(B)    count(elems)    type    time:avg(us)    algbw(GB/s)    busbw(GB/s)
       1024             256    fp32            58.2           0.02           0.02
    1048576          262144    fp32            68.0          14.36          14.36
 1073741824       268435456    fp32         18930.0          52.83          52.83
Avg bus bandwidth:      40.6901GB/s
"""
NCCL = """\
# nThread 1 nGpus 1 minBytes 8 maxBytes 17179869184 step: 2(factor) warmup iters: 5
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
           8             2     float     sum      -1    12.90    0.00    0.00      0    12.71    0.00    0.00      0
     1048576        262144     float     sum      -1    28.60   36.66   64.16      0    28.31   37.04   64.82    N/A
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 32.2447
#
"""  # noqa: E501
PINGPONG = """\
bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec
64      10      =10      1.2k        0.02s      0.08      812.30       0.00
256     10      =10      5k          0.00s     16.10       15.90       0.06
4k      10      =9       80k         0.00s    227.55       18.00       0.06
1m      10      =10      20m         0.01s   2080.00      504.12       0.00
"""


def test_nccom_test_counts_in_gib_and_microseconds() -> None:
    probe = read_probe(NCCOM.encode())

    assert (probe.tool, probe.failures, probe.n_skipped) == ("nccom-test", [], 0)
    assert [row.size_bytes for row in probe.rows] == [1024, 1_048_576, 1_073_741_824]
    assert probe.rows[1].time_s == pytest.approx(68e-6)
    assert probe.rows[1].busbw_bytes_per_s == pytest.approx(14.36 * GIB)
    assert probe.rows[1].element == "fp32"


def test_older_releases_of_nccom_test_name_the_time_otherwise() -> None:
    probe = read_probe(NCCOM.replace("time:avg(us)", "time(us)    ").encode())

    assert probe.rows[2].time_s == pytest.approx(18_930e-6)


def test_nccom_test_may_tell_percentiles() -> None:
    text = (
        "size(B) count(elems) type time:avg(us) time:p50(us) time:p99(us) algbw(GB/s) busbw(GB/s) "
        "algorithm\n33554432 8388608 bf16 2754 2750 2810 11.3 22.8 kangaring\n"
    )
    (row,) = read_probe(text.encode()).rows

    assert row.percentiles_s == {50: pytest.approx(2750e-6), 99: pytest.approx(2810e-6)}


def test_nccom_test_states_at_which_size_it_failed() -> None:
    text = NCCOM + (
        "   33554432    Failure running neuron-bench - log file /tmp/nccom_test_log_x.log\n"
        "1 errors found - test failed\nNeuron DKMS Driver is not running!\n"
    )
    probe = read_probe(text.encode())

    assert probe.failures[0].size_bytes == 33_554_432
    assert [math.isnan(each.size_bytes) for each in probe.failures] == [False, True, True]


def test_nccom_test_s_report_is_read_as_its_table() -> None:
    report = {
        "results": [
            {"size(B)": 1024, "count(elems)": 256, "type": "fp32", "algbw(GB/s)": 0.02,
             "busbw(GB/s)": 0.02, "time:avg(us)": 58.2},
            {"size(B)": 2048},
        ]
    }  # fmt: skip
    probe = read_probe(json.dumps(report).encode())

    assert (probe.tool, len(probe.rows), probe.n_skipped) == ("nccom-test", 1, 1)
    assert probe.rows == read_probe(NCCOM.encode()).rows[:1]


def test_nccl_tests_count_in_gb_each_size_twice() -> None:
    probe = read_probe(NCCL.encode())

    assert (probe.tool, probe.n_wrong, probe.n_skipped) == ("nccl-tests", 0, 0)
    assert [(row.size_bytes, row.in_place) for row in probe.rows] == [
        (8, False), (8, True), (1_048_576, False), (1_048_576, True),
    ]  # fmt: skip
    assert probe.rows[2].busbw_bytes_per_s == pytest.approx(64.16 * GB)
    assert probe.rows[2].time_s == pytest.approx(28.6e-6)
    assert (probe.rows[2].n_errors, probe.rows[3].n_errors) == (0, None)


def test_wrong_elements_are_counted() -> None:
    wrong = NCCL.replace("64.16      0", "64.16     17")

    assert read_probe(wrong.encode()).rows[2].n_errors == 17
    assert read_probe(NCCL.replace("values : 0 OK", "values : 3 FAILED").encode()).n_wrong == 3


def test_operations_without_reduction_leave_columns_out() -> None:
    line = "1048576 262144 float 28.60 36.66 64.16 0 28.31 37.04 64.82 0\n"
    header = "# size count type time algbw busbw #wrong time algbw busbw #wrong\n"

    assert [row.element for row in read_probe((header + line).encode()).rows] == ["float"] * 2


def test_a_pingpong_counts_kibibytes_and_its_first_row_warms_up() -> None:
    probe = read_probe(PINGPONG.encode())

    assert probe.tool == "fi_pingpong"
    assert [row.size_bytes for row in probe.rows] == [64, 256, 4096, 1_048_576]
    assert [row.is_warm_up for row in probe.rows] == [True, False, False, False]
    assert probe.rows[1].time_s == pytest.approx(15.9e-6)
    assert probe.rows[3].busbw_bytes_per_s == pytest.approx(2.08e9)
    assert [row.n_errors for row in probe.rows] == [0, 0, 1, 0]


def test_a_pingpong_that_breaks_off_states_it() -> None:
    probe = read_probe((PINGPONG + "fi_getinfo: -61 (No data available)\n").encode())

    assert [each.text for each in probe.failures] == ["fi_getinfo: -61 (No data available)"]


def test_text_around_a_table_is_counted_with_its_line() -> None:
    probe = read_probe(f"hello\n\x1b[31m{NCCOM}\x1b[0m".encode())

    assert (len(probe.rows), probe.n_skipped) == (3, 1)
    assert probe.skipped == [(1, "hello")]


def test_what_rounds_to_nothing_is_nothing_and_what_is_missing_is_not() -> None:
    (row, *_) = read_probe(NCCL.encode()).rows

    assert row.busbw_bytes_per_s == 0.0
    assert math.isnan(read_probe(NCCOM.replace("58.2", "N/A ").encode()).rows[0].time_s)
    assert not read_probe(NCCOM.replace("58.2", "N/A ").encode()).rows[0].is_measured


@pytest.mark.parametrize("data", [b"", b"{", b"[1]", b'{"results": 3}', b'{"results": [1, null]}'])
def test_what_is_no_probe_has_no_rows(data: bytes) -> None:
    assert read_probe(data).rows == []


TEXTS = st.sampled_from(
    [*NCCOM.split(), *NCCL.split(), *PINGPONG.split(), "\n", "\r", "{", "9" * 30]
)


@given(
    st.one_of(
        st.lists(st.one_of(TEXTS, st.text(max_size=8)), max_size=60).map(" ".join), st.text()
    )
)
@settings(max_examples=100)
def test_any_text_is_read(text: str) -> None:
    for each in (NCCOM, NCCL, PINGPONG, ""):
        probe = read_probe((each[: len(each) // 2] + text).encode("utf-8", "replace"))

        assert all(row.time_s > 0 or math.isnan(row.time_s) for row in probe.rows)
        assert all(math.isfinite(row.size_bytes) for row in probe.rows)


@given(st.binary(max_size=300))
@settings(max_examples=100)
def test_any_bytes_are_read(data: bytes) -> None:
    assert len(read_probe(data).skipped) <= 5
