"""Properties of every collective."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from telemetry.catalog import Instance, instance, instances
from telemetry.errors import FieldError
from telemetry.simulate.communication import FABRICS, OPS, bus_bytes_per_s, collective_time_s

kinds = st.sampled_from(
    [kind for kind in map(instance, sorted(instances())) if kind.chip.name in FABRICS]
)
sizes = st.integers(1, 2**36)
ops = st.sampled_from(sorted(OPS))
node_counts = st.sampled_from([1, 2, 4, 16, 64])


def total_s(kind: Instance, n_nodes: int, n_bytes: int, op: str) -> float:
    n_ranks = n_nodes * kind.n_cores
    time = collective_time_s(kind, n_nodes=n_nodes, n_ranks=n_ranks, n_bytes=n_bytes, op=op)
    assert time.latency_s > 0
    assert time.bandwidth_s >= 0
    return time.total_s


@given(kinds, node_counts, sizes, sizes, ops)
def test_more_bytes_never_take_less_time(
    kind: Instance, n_nodes: int, one: int, more: int, op: str
) -> None:
    assert total_s(kind, n_nodes, one, op) <= total_s(kind, n_nodes, one + more, op)


@given(kinds, node_counts, sizes, ops, st.floats(1, 16))
def test_more_network_never_takes_more_time(
    kind: Instance, n_nodes: int, n_bytes: int, op: str, more: float
) -> None:
    rate = kind.network_bytes_per_s * more
    better = msgspec.structs.replace(kind, network_bytes_per_s=rate)

    assert total_s(better, n_nodes, n_bytes, op) <= total_s(kind, n_nodes, n_bytes, op)


@given(kinds, sizes, ops)
def test_going_out_of_the_node_never_helps(kind: Instance, n_bytes: int, op: str) -> None:
    by_nodes = [total_s(kind, n, n_bytes, op) for n in (1, 2, 4, 8)]

    assert by_nodes == sorted(by_nodes)


@given(kinds, node_counts, sizes)
def test_gathering_is_no_slower_than_reducing_everywhere(
    kind: Instance, n_nodes: int, n_bytes: int
) -> None:
    gathered = total_s(kind, n_nodes, n_bytes, "reduce_scatter")

    assert gathered <= total_s(kind, n_nodes, n_bytes, "all_reduce")


def test_bus_bandwidth_is_what_a_ring_would_carry() -> None:
    kind, size = instance("trn1.32xlarge"), 2**30
    time = collective_time_s(kind, n_nodes=2, n_ranks=64, n_bytes=size)

    bus = bus_bytes_per_s(time, n_ranks=64, n_bytes=size, op="all_reduce")

    assert bus == pytest.approx(2 * 63 / 64 * size / time.total_s)
    assert bus / 2**30 == pytest.approx(47.09, rel=0.05)


@pytest.mark.parametrize(
    ("field", "n_nodes", "n_ranks", "n_bytes", "op"),
    [
        ("op", 1, 2, 8, "all_redcue"),
        ("nodes", 0, 2, 8, "all_reduce"),
        ("bytes", 1, 2, 0, "all_reduce"),
        ("ranks", 1, 1, 8, "all_reduce"),
        ("ranks", 1, 33, 8, "all_reduce"),
        ("ranks", 2, 3, 8, "all_reduce"),
    ],
)
def test_what_cannot_run_is_refused_by_field(
    field: str, n_nodes: int, n_ranks: int, n_bytes: int, op: str
) -> None:
    with pytest.raises(FieldError, match=rf"^{field}: .*; take") as caught:
        collective_time_s(
            instance("trn1.32xlarge"), n_nodes=n_nodes, n_ranks=n_ranks, n_bytes=n_bytes, op=op
        )

    assert caught.value.field == field
