"""How many nodes a shard of a simulated run holds."""

import msgspec
import pytest

from fleet.models import Node, Run
from fleet.simulation.runs import create_run, plan_of, publish_plans
from telemetry.simulate.plan import LEAST_SHARD_NODES, Plan
from telemetry.store.hot import HotStore
from tests.helpers import LLAMA, NOON

pytestmark = pytest.mark.django_db
LARGE = msgspec.structs.replace(LLAMA, name="large", nodes=300, global_batch=4800)


def shards_of_nodes(run: Run) -> list[str]:
    return list(Node.objects.filter(run=run).order_by("rank").values_list("shard", flat=True))


def test_a_large_run_has_few_shards_and_its_nodes_say_which(hot: HotStore) -> None:
    run = create_run(LARGE, started_at=NOON)
    publish_plans(hot, now=NOON)

    plan = msgspec.json.decode(hot.plan("large") or b"", type=Plan)
    assert plan == plan_of(run, [])
    assert plan.shard_size > LEAST_SHARD_NODES
    assert shards_of_nodes(run) == [f"large/{rank // plan.shard_size}" for rank in range(300)]


def test_a_run_keeps_the_shards_that_it_began_with(hot: HotStore) -> None:
    """Its history is stored by shard: another size would lose it."""
    run = create_run(LARGE, started_at=NOON)
    Run.objects.filter(pk=run.pk).update(shard_nodes=LEAST_SHARD_NODES)

    assert plan_of(Run.objects.get(pk=run.pk), []).shard_size == LEAST_SHARD_NODES


def test_runs_of_earlier_releases_have_shards_of_32(hot: HotStore) -> None:
    assert Run(name="old").shard_nodes == 32
    assert len(Plan(run=LARGE, seed=1, epoch_s=0).shards) == 10
