"""One alert's page: the sentence, its evidence, what was ruled out, who did what."""

from collections.abc import Callable
from datetime import timedelta

import pytest
from django.test import Client
from django.utils.html import strip_tags
from pytest_django import DjangoAssertNumQueries

from fleet.models import Alert, AlertEvent
from tests.parts import just_now

Page = Callable[..., str]
Fire = Callable[..., Alert]
PARTIALS = ("story", "act", "facts", "timeline", "bar")


def test_it_says_what_where_how_bad_and_why(page: Page, alert: Alert) -> None:
    text = strip_tags(page(f"/alerts/{alert.pk}/"))

    assert "llama spends 31.4 % of each step in gradient all-reduce" in text
    assert "core 7 of limping, which computes more slowly than its peers" in text
    assert "95.0 % against 62.0 % on its peers" in text
    assert "3.00 s in place of 2.00 s" in text
    assert "lost so far" in text


def test_it_lists_the_evidence_and_what_was_ruled_out(page: Page, alert: Alert) -> None:
    text = page(f"/alerts/{alert.pk}/")

    assert "62.0 % median, 31 peers" in text
    assert "transferring 4.2 %, waiting 27.2 %" in text
    assert "Ruled out" in text
    assert "17.0 µs, peers 16.0 µs" in text


def test_it_says_when_the_same_was_there_before(page: Page, fired: Fire) -> None:
    for days in (1, 2, 20):
        fired(ago=timedelta(days=days), resolved_at=just_now() - timedelta(days=days))

    assert "3rd time this week on this core" in page(f"/alerts/{fired().pk}/")


def test_it_folds_its_victims_in(page: Page, alert: Alert) -> None:
    text = page(f"/alerts/{alert.pk}/")

    assert "Slowed with it" in text
    assert '<a class="mono" href="/nodes/steady/">steady</a>' in text


def test_it_draws_the_steps_the_culprit_and_who_waits(page: Page, alert: Alert) -> None:
    text = page(f"/alerts/{alert.pk}/")

    for chart in ("phases", "culprit", "workers", "share"):
        assert f'data-src="/alerts/{alert.pk}/charts/{chart}"' in text


def test_an_unknown_cause_blames_nobody(page: Page, fired: Fire) -> None:
    alert = fired(cause="unknown", node=None, device=None, evidence={"share_ratio": 0.3})
    text = page(f"/alerts/{alert.pk}/")

    assert "The cause is <b>unknown</b>" in text
    assert "charts/culprit" not in text


def test_a_resolved_alert_speaks_of_the_past_and_its_window_stands_still(
    page: Page, fired: Fire
) -> None:
    alert = fired(ago=timedelta(hours=3), resolved_at=just_now() - timedelta(hours=2))
    text = page(f"/alerts/{alert.pk}/")

    assert "spent <b" in text
    assert "resolved" in text
    assert "charts/phases?from=" in text
    assert "Acknowledge" not in text


def test_evidence_that_is_missing_or_odd_does_not_break_the_page(page: Page, fired: Fire) -> None:
    odd = {"culprit": 7, "wait_by_worker": [1], "ruled_out": None, "charts": "x", "kind": None}
    alert = fired(evidence=odd | {"share_ratio": "many", "step_s": True, "n_peers": {}})

    assert "llama" in page(f"/alerts/{alert.pk}/")


@pytest.mark.parametrize("rule", ["node_silent", "ecc_uncorrected", "monitoring_blind", "new"])
def test_every_rule_has_its_page(page: Page, fired: Fire, rule: str) -> None:
    alert = fired(rule=rule, cause=rule, evidence={}, run=None, victims=[])

    assert f"alert {alert.pk}" in page(f"/alerts/{alert.pk}/")


def test_the_timeline_tells_who_did_what(page: Page, alert: Alert) -> None:
    AlertEvent.objects.create(
        alert=alert, at=just_now(), kind=AlertEvent.Kind.COMMENTED, by="olga", text="draining it"
    )
    text = page(f"/alerts/{alert.pk}/")

    assert '<span class="by">olga</span>' in text
    assert "<q>draining it</q>" in text


def test_a_comment_is_text_and_never_markup(page: Page, alert: Alert) -> None:
    AlertEvent.objects.create(
        alert=alert,
        at=just_now(),
        kind=AlertEvent.Kind.COMMENTED,
        by="<u>",
        text="<script>x</script>",
    )
    text = page(f"/alerts/{alert.pk}/")

    assert "<script>x" not in text
    assert "<u>" not in text


def test_it_can_be_taken_with_one_tap_on_a_phone(page: Page, alert: Alert) -> None:
    text = page(f"/alerts/{alert.pk}/")

    assert '<button class="primary" form="say">Acknowledge</button>' in text


@pytest.mark.parametrize("partial", PARTIALS)
def test_it_gives_htmx_only_the_partial_it_asks_for(
    client: Client, alert: Alert, partial: str
) -> None:
    headers = {"HX-Request": "true", "HX-Target": partial}
    response = client.get(f"/alerts/{alert.pk}/", headers=headers)

    assert f'id="{partial}"' in response.text
    assert "<html" not in response.text


def test_it_asks_the_database_little(
    client: Client,
    alert: Alert,
    operator: object,
    django_assert_max_num_queries: DjangoAssertNumQueries,
) -> None:
    with django_assert_max_num_queries(10):
        client.get(f"/alerts/{alert.pk}/")


def test_it_does_not_know_a_stranger(client: Client, db: None) -> None:
    assert client.get("/alerts/999/").status_code == 404


def test_it_can_only_be_read(client: Client, alert: Alert, operator: object) -> None:
    assert client.post(f"/alerts/{alert.pk}/").status_code == 405
