"""A run that requires a preflight is flagged when it starts without one."""

from collections.abc import Callable
from datetime import timedelta

import pytest

from fleet.checks.preflights import (
    NO_PREFLIGHT,
    missing_preflight_reason,
    set_requirement,
    update_preflight_doubts,
)
from fleet.models import Node, Preflight, Run
from telemetry.simulate.preflight import ProbeFault
from tests.helpers import NOON

pytestmark = pytest.mark.django_db
PAIR = ("steady", "limping")


def passed(done: Callable[..., Preflight], *, hours_before: float, **fields: object) -> Preflight:
    names = fields.pop("names", PAIR)
    at = NOON - timedelta(hours=hours_before)
    return done(names, instance_type="trn1.32xlarge", now=at, **fields)


def flagged(run: Run) -> str:
    update_preflight_doubts()
    run.refresh_from_db()
    return run.preflight_doubt


@pytest.fixture
def requiring(run: Run, steady: Node, limping: Node) -> Run:
    Run.objects.filter(pk=run.pk).update(requires_preflight=True)
    return run


def test_a_run_without_one_is_flagged_and_one_that_requires_none_is_not(
    requiring: Run, steady: Node
) -> None:
    assert flagged(requiring) == NO_PREFLIGHT
    assert update_preflight_doubts() == 0

    set_requirement(requiring, requires=False)

    assert flagged(requiring) == ""


@pytest.mark.parametrize(("hours_before", "is_good"), [(0, True), (23.9, True), (24.1, False)])
def test_a_pass_is_good_for_a_day(
    requiring: Run, done: Callable[..., Preflight], *, hours_before: float, is_good: bool
) -> None:
    passed(done, hours_before=hours_before)

    assert (flagged(requiring) == "") is is_good


def test_a_pass_that_comes_after_the_start_is_none(
    requiring: Run, done: Callable[..., Preflight]
) -> None:
    passed(done, hours_before=-1)

    assert flagged(requiring) == NO_PREFLIGHT


def test_it_must_have_been_of_all_its_nodes(
    requiring: Run, done: Callable[..., Preflight]
) -> None:
    passed(done, hours_before=1, names=("steady", "other"))

    assert flagged(requiring) == NO_PREFLIGHT


def test_the_newest_counts_and_states_who_did_not_pass(
    requiring: Run, done: Callable[..., Preflight]
) -> None:
    passed(done, hours_before=3)
    newest = passed(done, hours_before=1, faults=[ProbeFault.of_kind("chip_missing", "limping")])

    assert flagged(requiring) == f"Preflight {newest.pk} did not pass limping."


def test_both_nodes_of_a_bad_pair_must_not_come_and_one_may(
    done: Callable[..., Preflight],
) -> None:
    names = (*PAIR, "other", "another", "fifth")
    pair_fault = ProbeFault.of_kind("pair_slow", "steady", peer="limping")
    pair = passed(done, hours_before=1, names=names, faults=[pair_fault])

    assert missing_preflight_reason(names, NOON) == (
        f"Preflight {pair.pk} allows only one of steady and limping."
    )
    assert (
        missing_preflight_reason(["steady", "other"], NOON)
        == missing_preflight_reason(["limping", "other"], NOON)
        == ""
    )


def test_who_requires_one_now_is_reported_at_once(
    run: Run, steady: Node, limping: Node, done: Callable[..., Preflight]
) -> None:
    set_requirement(run, requires=True)
    assert Run.objects.get(pk=run.pk).preflight_doubt == NO_PREFLIGHT

    passed(done, hours_before=1)
    set_requirement(run, requires=True)
    assert Run.objects.get(pk=run.pk).preflight_doubt == ""
