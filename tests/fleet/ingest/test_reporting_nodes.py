"""Reporting machines become nodes with stored metadata."""

import json

import pytest

from fleet.ingest.nodes import IN_USE_S, REFRESH_S, NodeIngest
from fleet.models import Node
from tests.helpers import NOON_S
from tests.telemetry.ingest.reports import encoded, lines, report

pytestmark = pytest.mark.django_db
LINE = lines("trn1.2xlarge")[0]


class Watch:
    """A watch that a test sets."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def watch() -> Watch:
    return Watch()


@pytest.fixture
def arrivals(watch: Watch) -> NodeIngest:
    return NodeIngest(keep_s=900, monotonic=watch)


def test_a_node_that_someone_deleted_comes_back(arrivals: NodeIngest, watch: Watch) -> None:
    arrivals.deliver([LINE], node="real", arrived_s=NOON_S)
    Node.objects.all().delete()
    watch.now_s += REFRESH_S + 1

    arrivals.deliver([LINE], node="real", arrived_s=NOON_S + 61)

    assert Node.objects.get().name == "real"


def test_what_could_not_be_stored_may_be_sent_again(arrivals: NodeIngest) -> None:
    line = json.dumps({"at": NOON_S, "seq": 1, "report": report("trn1.2xlarge")}).encode()
    assert arrivals.deliver([line], node="real", arrived_s=NOON_S).n_accepted == 1
    assert arrivals.deliver([line], node="real", arrived_s=NOON_S).n_repeated == 1

    arrivals.forget("real")

    assert arrivals.deliver([line], node="real", arrived_s=NOON_S).n_accepted == 1


def test_a_machine_may_take_over_the_name_of_one_that_is_gone(
    arrivals: NodeIngest, watch: Watch
) -> None:
    successor = report("trn1.2xlarge")
    successor["instance_info"]["instance_id"] = "i-9"
    arrivals.deliver([LINE], node="real", arrived_s=NOON_S)

    too_soon = arrivals.deliver([encoded(successor)], node="real", arrived_s=NOON_S)
    watch.now_s += IN_USE_S
    later = arrivals.deliver([encoded(successor)], node="real", arrived_s=NOON_S + 60)

    assert (too_soon.n_refused, later.n_accepted) == (1, 1)
    node = Node.objects.get()
    assert node.instance_id == "i-9"
    assert (node.replaced_id, node.replaced_at is None) == (
        report("trn1.2xlarge")["instance_info"]["instance_id"],
        False,
    )


def test_another_process_sees_a_new_machine_and_refuses_the_old_one(watch: Watch) -> None:
    successor = report("trn1.2xlarge")
    successor["instance_info"]["instance_id"] = "i-9"
    first, second = (NodeIngest(keep_s=900, monotonic=watch) for _ in range(2))
    first.deliver([LINE], node="real", arrived_s=NOON_S)
    second.deliver([encoded(successor)], node="real", arrived_s=NOON_S + 1)
    watch.now_s += REFRESH_S + 1

    old = first.deliver([LINE], node="real", arrived_s=NOON_S + 61)

    assert old.refused[0].field == "instance_info.instance_id"
    assert "use another name" in old.refused[0].reason
    assert Node.objects.get().instance_id == "i-9"


@pytest.mark.parametrize("other", ["real", "", "9d1f0c2e"])
def test_an_id_that_is_none_of_a_machine_replaces_nothing(watch: Watch, other: str) -> None:
    line = report("trn1.2xlarge")
    line["instance_info"]["instance_id"] = other
    arrivals = NodeIngest(keep_s=900, monotonic=watch)
    arrivals.deliver([LINE], node="real", arrived_s=NOON_S)
    watch.now_s += REFRESH_S + 1

    arrivals.deliver([encoded(line)], node="real", arrived_s=NOON_S + 61)

    assert Node.objects.get().replaced_at is None


def test_a_report_without_hardware_is_read_by_what_the_node_reported_before(
    arrivals: NodeIngest,
) -> None:
    bare = report("trn1.2xlarge")
    bare["neuron_hardware_info"] = None
    bare["instance_info"]["instance_type"] = "trn9.huge"
    bare["system_data"]["neuron_hw_counters"] = None

    before = arrivals.deliver([encoded(bare)], node="real", arrived_s=NOON_S)
    arrivals.deliver([LINE], node="real", arrived_s=NOON_S)
    after = arrivals.deliver([encoded(bare)], node="real", arrived_s=NOON_S)

    assert before.refused[0].field == "neuron_hardware_info"
    assert after.n_accepted == 1


def test_line_numbers_continue_from_where_the_stream_was(arrivals: NodeIngest) -> None:
    delivery = arrivals.deliver([b"", b"x"], node="real", arrived_s=NOON_S, first_line=10)

    assert [refusal.line for refusal in delivery.refused] == [11]


def test_what_a_report_does_not_say_stays(arrivals: NodeIngest) -> None:
    bare = report("trn1.2xlarge")
    bare["instance_info"] = None

    arrivals.deliver([LINE], node="real", arrived_s=NOON_S)
    arrivals.deliver([encoded(bare)], node="real", arrived_s=NOON_S + 1)

    node = Node.objects.get()
    assert (node.instance_type, node.instance_id) == ("trn1.2xlarge", "i-0000002810962580")


def test_a_machine_of_unknown_type_is_accepted(arrivals: NodeIngest) -> None:
    bare = report("trn1.2xlarge")
    bare["instance_info"] = None

    arrivals.deliver([encoded(bare)], node="real", arrived_s=NOON_S)

    assert Node.objects.get().instance_type == "unknown"


def test_the_catalogue_knows_how_many_links_there_are(arrivals: NodeIngest) -> None:
    arrivals.deliver([lines("trn2.48xlarge")[0]], node="real", arrived_s=NOON_S)

    assert Node.objects.get().n_efa == 16


def test_a_fleet_has_a_maximum_size(arrivals: NodeIngest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fleet.ingest.rows.MAX_NODES", 1)
    arrivals.deliver([LINE], node="first", arrived_s=NOON_S)

    delivery = arrivals.deliver([LINE], node="second", arrived_s=NOON_S)

    assert delivery.refused[0].field == "node"
    assert Node.objects.count() == 1


@pytest.mark.parametrize("text", ["a\0b", "\x1b[31m"])
def test_names_have_no_control_characters(arrivals: NodeIngest, text: str) -> None:
    bent = report("trn1.2xlarge")
    bent["instance_info"]["instance_type"] = text

    delivery = arrivals.deliver([encoded(bent)], node="real", arrived_s=NOON_S)

    assert delivery.refused[0].field == "instance_info.instance_type"
