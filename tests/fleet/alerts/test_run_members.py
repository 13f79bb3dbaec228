"""The nodes of runs: read where they have changed."""

import pytest
from pytest_django import DjangoAssertNumQueries

from fleet.alerts.snapshots import RunMembers, run_members
from fleet.models import Node
from fleet.simulation.runs import create_run
from tests.helpers import LLAMA, NOON


@pytest.mark.django_db
def test_they_are_read_where_they_have_changed(
    django_assert_num_queries: DjangoAssertNumQueries,
) -> None:
    """A large fleet has tens of thousands of them, each second."""
    run, names = create_run(LLAMA, started_at=NOON), LLAMA.node_names
    assert run_members([run])[run.pk].nodes == names
    with django_assert_num_queries(1):
        assert run_members([run])[run.pk].nodes == names

    first, second, third, _ = Node.objects.order_by("rank")
    for node, rank in ((first, 1), (second, 0)):
        Node.objects.filter(pk=node.pk).update(rank=rank)
    swapped = (names[1], names[0], *names[2:])
    assert run_members([run])[run.pk].nodes == swapped
    Node.objects.filter(pk=third.pk).update(retired_at=NOON)
    assert run_members([run])[run.pk].nodes == (*swapped[:2], names[3])
    Node.objects.filter(pk=third.pk).update(retired_at=None)
    assert run_members([run])[run.pk].nodes == swapped
    Node.objects.update(n_devices=4)
    assert run_members([run])[run.pk].cores_per_device == 8
    Node.objects.update(run=None)
    assert run_members([run])[run.pk] == RunMembers()
