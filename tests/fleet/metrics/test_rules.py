"""The rule file: current, valid, and every alert fires as its rule defines."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from fleet.metrics.rules import EXAMPLE_URL, SERVICE_ALERTS, rule_file
from telemetry.detect import RULES
from tests.fleet.metrics import node_cases, part_cases, run_cases, service_cases
from tests.fleet.metrics.rule_cases import merged_cases, series_of, without_series

ROOT = Path(__file__).parents[3]
COMMITTED = ROOT / "deploy/prometheus/rules/trnwatch.rules.yml"
CASES = [*run_cases.CASES, *part_cases.CASES, *node_cases.CASES, *service_cases.CASES]
ANNOTATIONS = ("summary", "description", "runbook_url", "dashboard")
BORN_OF_ABSENCE = {"trnwatch_absent", "trnwatch_nothing_to_watch"}


def promtool(folder: Path, tests: list[dict[str, Any]], *, every_s: int) -> str:
    """Run promtool's rule tests on the committed rules; return its complaints."""
    whole = {
        "rule_files": [str(COMMITTED)],
        "evaluation_interval": f"{every_s}s",
        "tests": tests,
    }
    # JSON is YAML too.
    (folder / "stories.yml").write_text(json.dumps(whole))
    command = ["promtool", "test", "rules", str(folder / "stories.yml")]
    check = subprocess.run(command, capture_output=True, text=True, check=False)
    return "" if check.returncode == 0 else check.stdout + check.stderr


def test_the_committed_file_is_current() -> None:
    assert COMMITTED.read_text() == rule_file()


@pytest.mark.prometheus
def test_promtool_accepts_it() -> None:
    command = ["promtool", "check", "rules", str(COMMITTED)]
    check = subprocess.run(command, capture_output=True, text=True, check=False)

    assert check.returncode == 0, check.stdout + check.stderr
    assert "SUCCESS" in check.stdout


@pytest.mark.prometheus
def test_every_alert_fires_and_resolves_as_it_should(tmp_path: Path) -> None:
    assert (
        promtool(tmp_path, [series_of(cases) for cases in merged_cases(CASES)], every_s=30) == ""
    )


@pytest.mark.prometheus
def test_what_nothing_is_heard_of_is_not_reported(tmp_path: Path) -> None:
    heard_of = [case for case in CASES if case.alert not in BORN_OF_ABSENCE]

    assert (
        promtool(
            tmp_path, [without_series(cases) for cases in merged_cases(heard_of)], every_s=120
        )
        == ""
    )


def test_every_alert_has_a_rule_case() -> None:
    alerts = set(re.findall(r"- alert: (\w+)", rule_file()))

    assert alerts == {*RULES, *SERVICE_ALERTS}
    cases = {case.alert for case in CASES if case.fires and case.quiet}
    assert alerts - cases == set(), "tests/fleet/metrics/*_cases.py: add a case that fires"


def test_an_alert_states_how_bad_it_is_and_where_to_go_from_it() -> None:
    alerts = re.findall(r"- alert: .*?(?=\n +- |\Z)", rule_file(), re.DOTALL)
    assert len(alerts) > 40
    severity = re.compile(r"\n +severity: (page|warn|'?\"?\{\{ \$labels.severity \}\}'?\"?)\n")
    for alert in alerts:
        assert severity.search(alert)
        assert re.search(r"\n +rule: \w+\n", alert)
        assert all(f"\n      {key}: " in alert or f" {key}: " in alert for key in ANNOTATIONS)
        assert f"{EXAMPLE_URL}/runbooks/" in alert


def test_links_lead_where_people_say(tmp_path: Path) -> None:
    output = tmp_path / "rules.yml"
    call_command("export_rules", output=output, url="https://watch.lab/")

    assert "https://watch.lab/runbooks/hang/" in output.read_text()
    assert EXAMPLE_URL not in output.read_text()


def test_a_link_without_a_scheme_is_refused() -> None:
    with pytest.raises(CommandError, match="--url"):
        call_command("export_rules", url="watch.lab")
