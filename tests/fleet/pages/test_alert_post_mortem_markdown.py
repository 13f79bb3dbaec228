"""The post-mortem of an alert as Markdown."""

from collections.abc import Callable
from datetime import timedelta

import pytest
from django.test import Client

from fleet.models import Alert, AlertEvent, Annotation, Run
from tests.helpers import just_now

Fire = Callable[..., Alert]
SECTIONS = (
    "## Summary",
    "## Impact",
    "## Timeline",
    "## Cause and evidence",
    "## What changed around the onset",
    "## Who did what",
    "## Earlier similar alerts",
    "## Follow-ups",
)


@pytest.fixture
def read(client: Client) -> Callable[[Alert], str]:
    def read(alert: Alert) -> str:
        response = client.get(f"/alerts/{alert.pk}/post-mortem.md")
        assert response.status_code == 200
        return response.text

    return read


@pytest.fixture
def over(fired: Fire) -> Alert:
    alert = fired(
        ago=timedelta(hours=1),
        resolved_at=just_now() - timedelta(minutes=40),
        acknowledged_at=just_now() - timedelta(minutes=58),
        acknowledged_by="olga",
    )
    for kind, minutes, by, text in (
        ("acknowledged", 58, "olga", "looking"),
        ("commented", 50, "olga", "drained *limping* <b>"),
        ("resolved", 40, "", ""),
    ):
        at = just_now() - timedelta(minutes=minutes)
        AlertEvent.objects.create(alert=alert, at=at, kind=kind, by=by, text=text)
    return alert


def test_it_has_every_section_in_order(read: Callable[[Alert], str], over: Alert) -> None:
    text = read(over)
    at = [text.index(f"\n{section}\n") for section in SECTIONS]

    assert text.startswith("# Post-mortem: llama spent 31.4 % of each step in all-reduce\n")
    assert at == sorted(at)


def test_it_reports_the_impact_in_figures(read: Callable[[Alert], str], over: Alert) -> None:
    text = read(over)

    assert "| Duration | 20 min |" in text
    assert "by olga, 2 min after it fired" in text
    assert "| Lost | $1.43, 30 steps. 60 steps ended in the 3 min" in text
    assert "| Also affected | 1 node: steady |" in text


def test_it_shows_who_did_what_and_nothing_of_theirs_is_markup(
    read: Callable[[Alert], str], over: Alert
) -> None:
    text = read(over)

    assert "| olga | 10 min after it fired | commented: drained \\*limping\\* \\<b\\> |" in text
    assert "<b>" not in text


def test_it_reports_the_evidence_and_where_to_see_it(
    read: Callable[[Alert], str], over: Alert
) -> None:
    text = read(over)

    assert "| Measured | 95.0 % |" in text
    assert "| Peers | 62.0 % median, 31 peers |" in text
    assert f"(http://testserver/alerts/{over.pk}/?from=" in text
    assert "(http://testserver/runbooks/allreduce_share/)" in text


def test_it_sets_what_the_charts_show_before_next_to_what_they_show_during_it(
    read: Callable[[Alert], str], fired: Fire
) -> None:
    text = read(fired(ago=timedelta(seconds=5)))

    assert "| Chart | Line | Before | During |" in text
    assert "| Step time by phase | compute | 1.40 s |" in text


def test_it_shows_what_changed_and_when(
    read: Callable[[Alert], str], over: Alert, alive: Run
) -> None:
    at = over.onset_at - timedelta(minutes=12)
    Annotation.objects.create(run=alive, at=at, kind="deploy", text="loader 2.4.1", by="ci")

    assert "| 12 min | deploy: loader 2.4.1 | ci |" in read(over)


def test_an_open_alert_is_marked_as_open(read: Callable[[Alert], str], alert: Alert) -> None:
    text = read(alert)

    assert "still open (firing)" in text
    assert "| Resolved | not yet |" in text
    assert "| Acknowledged | no |" in text
    assert "No action is recorded in trnwatch." in text


def test_a_drill_is_marked_as_one(read: Callable[[Alert], str], fired: Fire) -> None:
    assert "It was a drill" in read(fired(is_drill=True))


@pytest.mark.parametrize("rule", ["node_silent", "ecc_uncorrected", "monitoring_blind", "new"])
def test_every_rule_can_be_written_up(
    read: Callable[[Alert], str], fired: Fire, rule: str
) -> None:
    alert = fired(rule=rule, cause=rule, evidence={}, run=None, victims=[], cost={})

    assert "unknown: no comparable step time before it" in read(alert)


def test_it_is_markdown_that_no_one_keeps(client: Client, alert: Alert) -> None:
    response = client.get(f"/alerts/{alert.pk}/post-mortem.md")

    assert response["Content-Type"] == "text/markdown; charset=utf-8"
    assert response["Cache-Control"] == "no-store"
    assert f"alert-{alert.pk}-post-mortem.md" in response["Content-Disposition"]
