"""Probe files of a group become one measurement; other files are refused."""

import numpy as np
import pytest

from telemetry.catalog import instance
from telemetry.checks.preflight import judge
from telemetry.checks.preflight_measurements import Measured
from telemetry.checks.preflight_pairs import PreflightFinding
from telemetry.ingest.probes import GroupError, measured_group, read_group
from tests.fleet.checks.probe_output import collective, group, node, pingpong

HEADER = "size(B) count(elems) type time:avg(us) time:p50(us) time:p99(us) algbw(GB/s) busbw(GB/s)"
NCCOM_PAIR = f"""{HEADER}
8    2    fp32    63.5    60.0    99.0    0.0    0.0
1073741824    268435456    fp32    41806.0    41000.0    43000.0    23.92    47.09
""".encode()


def measured(files: list[tuple[str, bytes]]) -> Measured:
    return measured_group(read_group(files), n_efa=8, curve=lambda n, sizes: sizes * n)


def test_set_up_counts_for_nothing_and_runs_of_a_pair_are_put_together() -> None:
    found = measured(group(pair__a__b__2=pingpong(30.0), pair__b__a__3=pingpong(31.0)))

    # 17 and 18, 30 and 31, 31 and 32 µs: the rows of up to 8 KiB, the first of each left out.
    assert found.p50_s[0, 1] == pytest.approx(30.5e-6)
    assert found.p50_s[1, 0] == found.p50_s[0, 1]
    assert found.p99_s[0, 1] == pytest.approx(31.95e-6)
    assert found.bandwidth_bytes_per_s[0, 1] == pytest.approx(2.3e9)


def test_percentiles_are_read_where_a_tool_prints_them() -> None:
    found = measured([("pair__a__b.txt", NCCOM_PAIR)])

    assert found.p50_s[0, 1] == pytest.approx(60e-6)
    assert found.p99_s[0, 1] == pytest.approx(99e-6)
    assert found.bandwidth_bytes_per_s[0, 1] == pytest.approx(47.09 * 2**30)


def test_counters_are_known_where_reported_and_unknown_elsewhere() -> None:
    found = measured([("node__a.json", node(15, n_again=4)), ("node__b.json", b'{"rack": "r7"}')])

    np.testing.assert_array_equal(found.n_devices, [15, np.nan])
    np.testing.assert_array_equal(found.rest["retrans_pkts"], [4, np.nan])
    assert found.rest_s == 30
    assert found.racks == ("", "r7")


def test_a_healthy_group_passes_and_what_is_wrong_in_the_files_is_named() -> None:
    healthy = group()
    sick = group(
        device__b__5=pingpong(48.0),
        pair__c__d__1=pingpong(40.0, rate_mb=1100.0),
        node__e=node(15),
        device__a__1=b"ft_connect: timed out\nno answer\n",
    )

    assert [t.kind for t in judge(measured(healthy), None).troubles] == []
    assert {(t.kind, t.node, t.peer, t.device) for t in judge_of(sick)} == {
        ("device_missing", "e", None, None),
        ("efa_latency", "b", None, 5),
        ("efa_down", "a", None, 1),
        ("pair_slow", "c", "d", None),
    }


def judge_of(files: list[tuple[str, bytes]]) -> list[PreflightFinding]:
    return list(judge(measured(files), instance("trn1.32xlarge")).troubles)


def test_a_collective_is_laid_beside_its_curve() -> None:
    [one] = measured([*group(), ("collective__all.txt", collective())]).collectives

    assert one.nodes == ("a", "b", "c", "d", "e")
    assert one.size_bytes.tolist() == [2.0**20, 2.0**25, 2.0**30]
    assert one.time_s[-1] == pytest.approx(60e-3)
    assert one.expected_s[0] == 5 * 2**20


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("notes.txt", b"", "unknown file name"),
        ("pair__a__a.txt", pingpong(17), "names the same node twice"),
        ("pair__a__b.txt", b"hello", "has no table"),
        ("device__a__8.txt", pingpong(17), "this type has 8"),
        ("node__a.json", b"{", "node__a.json"),
        ("node__a.json", b'{"n_devices": -1}', "n_devices"),
        ("node__a.json", b'{"chips": 16}', "chips"),
        ("node__a.json", b'{"rest": {"cosmic_rays": 1}}', "cosmic_rays"),
        ("collective.txt", pingpong(17), "not fi_pingpong"),
    ],
)
def test_what_is_no_such_file_is_refused_by_name(name: str, data: bytes, message: str) -> None:
    with pytest.raises(GroupError, match=message):
        measured([("node__a.json", b"{}"), (name, data)])


def test_files_that_name_no_node_are_refused() -> None:
    with pytest.raises(GroupError, match="no file names a node"):
        read_group([("collective.txt", collective())])
