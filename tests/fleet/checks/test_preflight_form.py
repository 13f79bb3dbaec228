"""Valid and invalid preflight requests; each error names its field."""

from collections.abc import Callable
from typing import Any

import pytest

from fleet.checks import preflights
from fleet.checks.preflights import request_preflight
from fleet.models import Node, Preflight
from telemetry.errors import FieldError
from telemetry.simulate.preflight import ProbeFault
from tests.helpers import NOON

pytestmark = pytest.mark.django_db
fault = ProbeFault.of_kind


@pytest.mark.parametrize(
    ("field", "given"),
    [
        ("nodes", {"names": []}),
        ("nodes", {"names": ["a", "a"]}),
        ("nodes", {"names": ["a b"]}),
        ("nodes", {"names": [f"n{i}" for i in range(257)]}),
        ("take", {"take": 0}),
        ("take", {"take": 3}),
        ("instance_type", {"instance_type": ""}),
        ("instance_type", {"instance_type": "m5.large"}),
        ("faults", {"faults": [fault("melted", "a")]}),
        ("faults", {"faults": [fault("chip_missing", "c")]}),
        ("faults", {"faults": [fault("chip_missing", "a", device=0)]}),
        ("faults", {"faults": [fault("pair_slow", "a")]}),
        ("faults", {"faults": [fault("pair_slow", "a", peer="a")]}),
        ("faults", {"faults": [fault("efa_down", "a")]}),
        ("faults", {"faults": [fault("efa_down", "a", device=8)]}),
        ("faults", {"faults": [fault("efa_loss", "a", device=1, magnitude=0.9)]}),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_kept(
    asked: Callable[..., Preflight], field: str, given: dict[str, Any]
) -> None:
    with pytest.raises(FieldError) as refused:
        asked(**{"names": ["a", "b"], "instance_type": "trn1.32xlarge"} | given)

    assert refused.value.field == field
    assert not Preflight.objects.exists()


def test_the_type_is_that_of_the_nodes(steady: Node) -> None:
    assert request_preflight(["steady"], by="ada", now=NOON).instance_type == "trn1.32xlarge"


def test_nodes_of_two_types_are_not_compared(steady: Node, limping: Node) -> None:
    Node.objects.filter(pk=limping.pk).update(instance_type="trn2.48xlarge")

    with pytest.raises(FieldError, match=r"one type; these are trn1\.32xlarge, trn2\.48xlarge"):
        request_preflight(["steady", "limping"], by="ada", now=NOON)


def test_real_nodes_are_probed_where_they_stand(steady: Node) -> None:
    Node.objects.filter(pk=steady.pk).update(source=Node.Source.NEURON_MONITOR)

    with pytest.raises(FieldError, match="steady is a real node"):
        request_preflight(["steady"], by="ada", now=NOON)


def test_without_drills_unknown_nodes_and_faults_are_refused(steady: Node) -> None:
    with pytest.raises(FieldError, match="missing is no node of the fleet"):
        request_preflight(["steady", "missing"], by="ada", now=NOON)
    faults = [fault("chip_missing", "steady")]
    with pytest.raises(FieldError, match="TRNWATCH_ALLOW_DRILLS"):
        request_preflight(["steady"], faults=faults, by="ada", now=NOON)


def test_no_more_than_so_many_are_under_way(asked: Callable[..., Preflight]) -> None:
    for _ in range(preflights.MAX_RUNNING):
        asked(["a"])

    with pytest.raises(FieldError, match="wait for one"):
        asked(["a"])
