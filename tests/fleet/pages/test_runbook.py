"""Every rule has a runbook page."""

import re

import pytest
from django.conf import settings
from django.test import Client
from django.utils.html import strip_tags

from fleet.alerts.runbooks import FIELD, FIRST, NOW, checks_first, filled, section, steps_now
from fleet.models import Alert, Run
from telemetry.detect import RULES
from trnwatch.surroundings import VARIABLES

FIELDS = {"node", "run", "alert", *VARIABLES}


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_has_its_runbook(client: Client, db: None, rule: str) -> None:
    response = client.get(f"/runbooks/{rule}/")

    assert response.status_code == 200
    assert "<h1" in response.text


@pytest.mark.parametrize("rule", RULES)
def test_every_runbook_begins_with_what_to_do(client: Client, db: None, rule: str) -> None:
    text = strip_tags(client.get(f"/runbooks/{rule}/").text)
    first = section(rule, NOW)

    assert first.startswith("1. ")
    assert "**Expect:**" in first
    assert "**Escalate if:**" in first
    assert text.index("Do now") < text.index("Expect:") < text.index("Check first")
    # Fields of commands are names of what to fill in, or of labels.
    assert not FIELD.search(filled(first, {}))
    assert set(FIELD.findall(first + section(rule, FIRST))) <= FIELDS


@pytest.mark.parametrize("rule", RULES)
def test_what_to_check_first_needs_no_filling_in(alert: Alert, rule: str) -> None:
    assert alert.node is not None
    for labels in ({"slurm_job_id": "4711"}, {"pod": "llama-0", "namespace": "ml"}, {}):
        assert alert.run is not None
        alert.rule, alert.run.labels = rule, labels
        text = checks_first(alert)

        assert not FIELD.search(text)
        assert not re.search(r"\b(NODE|LOG|JOB|POD|NAMESPACE|SLURM_JOB_ID)\b", text)
        assert ("slurm-4711.out" in text) <= ("slurm_job_id" in labels)
        assert ("kubectl" in text) <= ("pod" in labels)


def test_the_log_of_the_job_is_named_by_its_scheduler(alert: Alert) -> None:
    alert.rule, alert.run = "hang", Run(name="llama", labels={"slurm_job_id": "4711"})

    assert "slurm-4711.out | tail" in checks_first(alert)


@pytest.mark.parametrize("name", ["notifications", "service"])
def test_trnwatch_itself_has_runbooks_too(client: Client, db: None, name: str) -> None:
    response = client.get(f"/runbooks/{name}/")

    assert response.status_code == 200
    assert "Check first" in response.text
    assert "Alerts of this rule" not in response.text


@pytest.mark.parametrize("name", ["gremlins", "README"])
def test_an_unknown_name_is_not_found(client: Client, db: None, name: str) -> None:
    assert client.get(f"/runbooks/{name}/").status_code == 404


def test_a_wide_table_scrolls_by_itself(client: Client, db: None) -> None:
    text = client.get("/runbooks/input-tiers/").text

    names = re.findall(r'role="region" aria-label="([^"]+)"><table>', text)
    tables = (settings.ROOT / "docs/runbooks/input-tiers.md").read_text().count("\n|---")
    assert text.count("<table>") == len(names) == len(set(names)) == tables > 0
    assert text.count("</table></div>") == tables


@pytest.mark.parametrize(
    ("rule", "cause", "has_run", "words", "not_said"),
    [
        ("hang", "workers_ended", True, "Resume the job", "py-spy"),
        ("hang", "reports_refused", True, "names the field that is refused", "py-spy"),
        ("device_missing", "device_missing", False, "no job starts", "Restart the run"),
        ("device_missing", "device_missing", True, "Restart the run", "no job starts"),
    ],
)
def test_the_steps_are_those_of_the_case(
    alert: Alert,
    rule: str,
    cause: str,
    has_run: bool,  # noqa: FBT001
    words: str,
    not_said: str,
) -> None:
    alert.rule, alert.cause = rule, cause
    if not has_run:
        alert.run = None

    steps = steps_now(alert)

    assert words in steps
    assert not_said not in steps
