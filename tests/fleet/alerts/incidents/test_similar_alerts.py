"""Similar earlier alerts: order, count per week, and recorded reasons."""

from collections.abc import Callable
from datetime import timedelta

import pytest

from fleet.models import Alert, AlertEvent, Node
from fleet.pages.alert_context import SimilarAlerts, neighbours_of, nth_this_week, recurring
from fleet.pages.alert_context import similar_alerts as rank
from tests.helpers import NOON

Make = Callable[..., Alert]
DAY = timedelta(days=1)


def similar_to(alert: Alert) -> SimilarAlerts:
    return rank(alert, neighbours_of(alert, until=NOON))


@pytest.fixture
def ago(make: Make) -> Make:
    """Make alerts that are over, some days ago."""

    def past(days: float, **fields: object) -> Alert:
        at = NOON - days * DAY
        return make(fired_at=at, resolved_at=at + timedelta(minutes=9), **fields)

    return past


def test_the_same_core_comes_before_the_same_node_and_the_same_cause(
    make: Make, ago: Make, steady: Node
) -> None:
    cause = ago(1, node=steady)
    node = ago(2, cause="efa_loss")
    core = ago(3)
    found = similar_to(make())

    assert [like.alert for like in found.alerts] == [core, node, cause]
    assert [like.same for like in found.alerts] == [
        "same core, same cause",
        "same node",
        "same cause",
    ]


def test_it_counts_the_week_at_this_very_core(make: Make, ago: Make) -> None:
    ago(1), ago(2), ago(8), ago(3, device=8)

    assert similar_to(make()).recurring == "3rd time this week on this core"


def test_it_reports_the_last_thing_a_person_reported(make: Make, ago: Make) -> None:
    core = ago(3)
    for kind, by, text in (
        ("fired", "", "at 31 %"),
        ("acknowledged", "olga", "looking"),
        ("commented", "olga", "drained it"),
        ("resolved", "", ""),
    ):
        AlertEvent.objects.create(alert=core, at=NOON, kind=kind, by=by, text=text)
    (like,) = similar_to(make()).alerts

    assert (like.comment, like.comment_by) == ("drained it", "olga")


def test_an_unknown_cause_is_like_what_the_same_rule_reported_of_the_same_run(
    make: Make, ago: Make
) -> None:
    ago(1, cause="unknown", node=None, device=None)
    ago(2)
    found = similar_to(make(cause="unknown", node=None, device=None))

    assert [like.same for like in found.alerts] == ["same run, same cause", "same rule"]
    assert found.recurring == "2nd time this week on this run"


def test_a_first_time_is_like_nothing(make: Make) -> None:
    found = similar_to(make())

    assert (found.alerts, found.recurring) == ([], "")


def test_a_list_is_counted_in_one_query(
    make: Make, ago: Make, django_assert_num_queries: Callable[..., object]
) -> None:
    alerts = [ago(1), ago(2), make(), ago(1.5, device=9)]
    with django_assert_num_queries(1):  # type: ignore[attr-defined]
        counts = nth_this_week(alerts)

    assert [counts[alert.pk] for alert in alerts] == [2, 1, 3, 1]


@pytest.mark.parametrize(
    ("nth", "shown"),
    [
        (1, ""),
        *((n, f"{n}th") for n in (4, 10, 11, 12, 13, 111)),
        *((2, "2nd"), (3, "3rd"), (21, "21st"), (22, "22nd"), (23, "23rd")),
    ],
)
def test_numbers_are_counted_as_people_do(nth: int, shown: str) -> None:
    assert recurring(nth, "node") == (f"{shown} time this week on this node" if shown else "")
