"""A preflight passes each stage once, whichever process runs it."""

from collections.abc import Callable
from datetime import timedelta

import numpy as np
import pytest

from fleet.checks.preflights import (
    advance,
    advance_all,
    load_measured,
    load_result,
    request_preflight,
    run_all_stages,
)
from fleet.models import InjectedFault, Node, Preflight, Run
from tests.fleet.checks.conftest import BAD
from tests.helpers import NOON

pytestmark = pytest.mark.django_db
LATER = NOON + timedelta(minutes=5)


def test_it_names_exactly_what_is_wrong(done: Callable[..., Preflight]) -> None:
    preflight = done(faults=BAD, take=12)

    found = load_result(preflight)
    assert found is not None
    assert [(t.kind, t.node, t.peer, t.device) for t in found.troubles] == [
        ("device_missing", "n-09", None, None),
        ("efa_latency", "n-03", None, 5),
        ("pair_slow", "n-06", "n-11", None),
    ]
    assert preflight.verdict == "pass"
    failed = preflight.nodes.filter(verdict="fail").values_list("name", flat=True)
    assert list(failed) == ["n-03", "n-09"]
    assert preflight.nodes.filter(is_chosen=True).count() == 12
    assert preflight.nodes.filter(verdict="hold").count() == 1


@pytest.mark.parametrize(("take", "verdict"), [(None, "hold"), (13, "pass"), (14, "fail")])
def test_it_fails_where_fewer_can_come_than_are_wanted(
    done: Callable[..., Preflight], take: int | None, verdict: str
) -> None:
    assert done(faults=BAD, take=take).verdict == verdict


def test_stages_probe_the_pairs_round_by_round(asked: Callable[..., Preflight]) -> None:
    preflight = asked()
    probed = []
    while advance(preflight, now=LATER):
        probed.append(int(load_measured(preflight).was_probed.sum()))

    assert len(probed) == preflight.n_stages
    assert probed == sorted(probed)
    assert probed[0] == 0
    assert probed[-1] == 16 * 15
    assert preflight.finished_at == LATER


def test_the_second_writer_changes_nothing(asked: Callable[..., Preflight]) -> None:
    preflight = asked()
    copy = Preflight.objects.get(pk=preflight.pk)

    assert advance(preflight, now=LATER)
    assert not advance(copy, now=LATER)
    assert Preflight.objects.get(pk=preflight.pk).n_done == 1


def test_all_that_are_under_way_are_driven_and_none_that_is_over(
    asked: Callable[..., Preflight], done: Callable[..., Preflight]
) -> None:
    over, waiting = done(), asked()

    assert advance_all(now=LATER) == 1
    waiting.refresh_from_db()
    over.refresh_from_db()
    assert waiting.n_done == 1
    assert over.finished_at == NOON


def test_it_measures_the_same_in_one_go_and_after_being_put_away(
    asked: Callable[..., Preflight],
) -> None:
    preflight = asked(faults=BAD)
    run_all_stages(preflight, now=LATER)
    again = Preflight.objects.get(pk=preflight.pk)

    np.testing.assert_array_equal(load_measured(again).p99_s, load_measured(preflight).p99_s)
    [whole, chosen] = load_measured(again).collectives
    assert (len(whole.nodes), len(chosen.nodes)) == (16, 13)


def test_a_drill_under_way_is_found_and_a_chip_the_node_lacks(
    run: Run, steady: Node, limping: Node
) -> None:
    InjectedFault.objects.create(
        run=run,
        node=steady,
        kind="efa_down",
        device=3,
        magnitude=1,
        starts_at=NOON - timedelta(minutes=1),
        ends_at=NOON + timedelta(minutes=1),
        injected_by="ada",
    )
    Node.objects.filter(pk=limping.pk).update(n_devices=15)

    preflight = request_preflight(["steady", "limping"], by="ada", now=NOON)
    run_all_stages(preflight, now=LATER)

    found = load_result(preflight)
    assert found is not None
    assert {(t.kind, t.node, t.device) for t in found.troubles} == {
        ("efa_down", "steady", 3),
        ("device_missing", "limping", None),
    }
    assert preflight.verdict == "fail"
    later = request_preflight(["steady"], by="ada", now=NOON + timedelta(hours=1))
    run_all_stages(later, now=NOON + timedelta(hours=1))
    assert later.verdict == "pass"
