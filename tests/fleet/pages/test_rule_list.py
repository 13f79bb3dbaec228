"""The page of rules: limits, what fires, and the limit of a run."""

from collections.abc import Callable

import pytest
from django.contrib.auth.models import User
from django.test import Client

from fleet.models import Alert, Run
from fleet.pages import rules
from telemetry.detect import RULES
from tests.fleet.test_anonymous_access import member

Page = Callable[..., str]
ASKED = {"run": "llama", "limit_percent": "40", "resolve_percent": "35"}


def test_every_rule_is_listed_with_its_limits(page: Page, db: None) -> None:
    text = page("/rules/")

    for name, rule in RULES.items():
        assert f'id="rule-{name}"' in text
        assert f'href="/runbooks/{name}/"' in text
        assert rule.title in text
    assert "<dt>limit</dt><dd>0.25</dd>" in text
    assert "unknown when the rules were last evaluated" in text


def test_open_alerts_are_counted_and_drills_are_not(page: Page, alert: Alert) -> None:
    def row() -> str:
        return page("/rules/").partition(f'id="rule-{alert.rule}"')[2].partition("</tr>")[0]

    assert "1 firing" in row()

    Alert.objects.update(is_drill=True)
    assert "none" in row()
    assert "never" in row()


def test_an_operator_sets_the_limit_of_a_run(client: Client, operator: User, alert: Alert) -> None:
    run = Run.objects.get(name="llama")
    text = client.post("/rules/", ASKED | {"run": run.name}, follow=True).text

    run.refresh_from_db()
    assert (run.allreduce_limit_ratio, run.allreduce_resolve_ratio) == (0.40, 0.35)
    assert "40 %, resolves below 35 %" in text.replace("\u202f", " ")
    [note] = run.annotations.filter(kind="note")
    assert note.text.replace("\u202f", " ") == "all-reduce limit 40 % instead of 25 %"
    assert note.by == operator.username


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("run", "missing"),
        ("run", ""),
        ("limit_percent", "0"),
        ("limit_percent", "many"),
        ("resolve_percent", "41"),
        ("resolve_percent", "0"),
    ],
)
def test_what_is_wrong_is_named_and_nothing_changes(
    client: Client, operator: User, alert: Alert, field: str, value: str
) -> None:
    page = client.post("/rules/", ASKED | {field: value})

    assert page.status_code == 422
    assert list(page.context["form"].errors) == [field]
    assert Run.objects.get(name="llama").allreduce_limit_ratio == 0.25


def test_every_own_limit_is_listed_however_many_runs_there_are(
    client: Client, operator: User, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rules, "N_SUGGESTED", 1)
    for name, limits in {
        "usual": {},
        "z-limit": {"allreduce_limit_ratio": 0.4},
        "z-resolve": {"allreduce_resolve_ratio": 0.1},
    }.items():
        run.pk, run.name = None, name
        run.save()
        Run.objects.filter(name=name).update(**limits)

    context = client.get("/rules/").context

    assert list(context["runs"]) == ["llama"]
    assert [each.name for each in context["own_limits"]] == ["z-limit", "z-resolve"]


def test_a_viewer_only_reads(client: Client, alert: Alert) -> None:
    client.force_login(member("viewer"))

    assert client.get("/rules/").status_code == 200
    assert client.post("/rules/", ASKED).status_code == 403
