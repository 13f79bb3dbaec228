"""Example configurations are accepted by Prometheus, Alertmanager and Grafana."""

import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from fleet.metrics.dashboards import dashboard_files

DEPLOY = Path(__file__).parents[3] / "deploy"
SCRAPING = sorted(path.name for path in (DEPLOY / "prometheus").glob("*.yml"))
# It scrapes and writes on, for stores and rules that are elsewhere.
AGENT = "agent.yml"
PROVISIONING = sorted((DEPLOY / "grafana/provisioning").rglob("*.yml"))


def read(path: Path) -> Any:
    """Read YAML."""
    return yaml.safe_load(path.read_text())


def placed(value: Any, place: Mapping[str, str]) -> Any:
    """Put this machine's files in the place of those that an example names."""
    if isinstance(value, dict):
        return {key: placed(each, place) for key, each in value.items()}
    if isinstance(value, list):
        return [placed(each, place) for each in value]
    for there, here in place.items():
        if isinstance(value, str) and value.startswith(there):
            return value.replace(there, here)
    return value


def files_named(value: Any) -> Iterator[str]:
    """Yield the files in which a configuration looks for secrets."""
    if isinstance(value, dict):
        for key, each in value.items():
            yield from [each] if key.endswith("_file") else files_named(each)
    elif isinstance(value, list):
        for each in value:
            yield from files_named(each)


@pytest.mark.prometheus
@pytest.mark.parametrize("name", SCRAPING)
def test_promtool_accepts_a_configuration_and_finds_its_rules(name: str, tmp_path: Path) -> None:
    config = read(DEPLOY / "prometheus" / name)
    secrets = set(files_named(config))
    (tmp_path / "token").write_text("secret")
    place = dict.fromkeys(secrets, str(tmp_path / "token"))
    shutil.copytree(DEPLOY / "prometheus/rules", tmp_path / "rules")
    place["/etc/prometheus/rules"] = str(tmp_path / "rules")
    (tmp_path / name).write_text(yaml.safe_dump(placed(config, place)))

    command = ["promtool", "check", "config", "--lint=all", "--lint-fatal", str(tmp_path / name)]
    check = subprocess.run(command, capture_output=True, text=True, check=False)

    assert check.returncode == 0, check.stdout + check.stderr
    assert ("SUCCESS: 1 rule files found" in check.stdout) is (name != AGENT)
    assert secrets


@pytest.mark.parametrize("name", SCRAPING)
def test_a_configuration_scrapes_the_job_that_rules_ask_for(name: str) -> None:
    config = read(DEPLOY / "prometheus" / name)

    assert "trnwatch" in {job["job_name"] for job in config["scrape_configs"]}
    if name == AGENT:
        assert config["remote_write"]
    else:
        assert config["alerting"]["alertmanagers"]
        assert config["rule_files"]


@pytest.mark.alertmanager
def test_amtool_accepts_the_configuration_of_alertmanager() -> None:
    command = ["amtool", "check-config", str(DEPLOY / "alertmanager/alertmanager.yml")]
    check = subprocess.run(command, capture_output=True, text=True, check=False)

    assert check.returncode == 0, check.stdout + check.stderr


@pytest.mark.parametrize("path", PROVISIONING, ids=lambda path: path.parent.name)
def test_grafana_is_given_addresses(path: Path) -> None:
    reported = read(path)

    assert reported["apiVersion"] == 1
    for source in reported.get("datasources", ()):
        assert source["type"] == "prometheus"
        assert {"name", "uid", "url", "access"} <= set(source)
    for provider in reported.get("providers", ()):
        assert provider["type"] == "file"
        assert provider["options"]["path"].startswith("/")
    assert bool(reported.get("datasources")) != bool(reported.get("providers"))


def test_there_is_something_to_provision() -> None:
    assert {path.parent.name for path in PROVISIONING} == {"dashboards", "datasources"}
    assert dashboard_files()
