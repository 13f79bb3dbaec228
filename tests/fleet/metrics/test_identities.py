"""Instance labels for AWS exporters are unique per node."""

from fleet.metrics.node_collectors import node_labels
from fleet.models import Node
from tests.helpers import just_now


def real(name: str, instance_id: str = "") -> Node:
    """Make a node that reports by neuron-monitor."""
    return Node.objects.create(
        name=name,
        instance_type="trn2.48xlarge",
        instance_id=instance_id,
        zone="us-east-2b",
        source=Node.Source.NEURON_MONITOR,
        shard=f"node:{name}",
        n_cores=64,
        n_devices=16,
        first_seen_at=just_now(),
    )


def test_a_simulated_node_goes_by_its_name_and_its_process_by_its_run(steady: Node) -> None:
    Node.objects.update(zone="us-west-2d")

    [who] = node_labels(Node.objects.all()).values()

    assert who.base == (
        "steady",
        "steady",
        "trn1.32xlarge",
        "us-west-2d",
        "us-west-2",
        "subnet-us-west-2d",
    )
    assert who.runtime_tag == "llama"
    assert who.is_simulated


def test_a_real_node_is_left_to_say_what_it_is_called(db: None) -> None:
    real("trn2-a", "i-1")

    who = node_labels(Node.objects.all())["trn2-a"]

    assert who.instance_name == ""
    assert (who.instance_id, who.region) == ("i-1", "us-east-2")
    assert not who.is_simulated


def test_of_two_nodes_under_one_id_the_second_goes_by_its_name_here(db: None) -> None:
    for name, instance_id in (("a", "i-1"), ("b", "i-1"), ("c", "i-2"), ("d", ""), ("e", "")):
        real(name, instance_id)

    whole = node_labels(Node.objects.all())

    assert {name: who.instance_name for name, who in whole.items()} == {
        "a": "",
        "b": "b",
        "c": "",
        "d": "",
        "e": "",
    }


def test_on_its_own_page_a_node_is_who_it_is_on_the_whole_one(db: None) -> None:
    for name in ("a", "b"):
        real(name, "i-1")

    whole = node_labels(Node.objects.all())

    for name in whole:
        assert node_labels(Node.objects.filter(name=name)) == {name: whole[name]}
