"""A real Alertmanager receives, groups, silences and resolves."""

import json
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fleet.models import Receiver, Run, SenderHeartbeat
from tests.fleet.notifications.conftest import an_alert, receiver, say
from tests.fleet.notifications.processes import Senders, until
from tests.fleet.notifications.receiver_server import ReceiverServer
from tests.helpers import free_port

pytestmark = [pytest.mark.alertmanager, pytest.mark.django_db(transaction=True)]

CONFIG = """
global:
  resolve_timeout: 5m
route:
  receiver: people
  group_by: [run]
  group_wait: 2s
  group_interval: 1s
  repeat_interval: 1h
receivers:
  - name: people
    webhook_configs:
      - url: {url}
        send_resolved: true
"""


@pytest.fixture
def manager(tmp_path: Path, hook_server: ReceiverServer) -> Iterator[str]:
    """Run an Alertmanager that notifies the hook server; gives its address."""
    (tmp_path / "config.yml").write_text(CONFIG.format(url=hook_server.url))
    url = f"http://127.0.0.1:{free_port()}"
    command = [
        "prometheus-alertmanager",
        f"--config.file={tmp_path / 'config.yml'}",
        f"--storage.path={tmp_path / 'alertmanager'}",
        f"--web.listen-address={url.removeprefix('http://')}",
        "--cluster.listen-address=",
    ]
    with (tmp_path / "alertmanager.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        until(lambda: is_ready(url))
        yield url
    finally:
        process.kill()
        process.wait()


def is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/-/ready", timeout=2) as page:
            return bool(page.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def held(url: str) -> list[dict[str, Any]]:
    """Return what the Alertmanager takes to be firing."""
    with urllib.request.urlopen(f"{url}/api/v2/alerts?active=true", timeout=5) as page:
        alerts: list[dict[str, Any]] = json.load(page)
    return alerts


def test_it_receives_groups_holds_and_resolves(
    senders: Senders, manager: str, run: Run, hook_server: ReceiverServer
) -> None:
    receiver("manager", "alertmanager", manager)
    senders.start(refresh=0.5)
    until(SenderHeartbeat.objects.exists)
    share, silent = an_alert(run), an_alert(run, "node:steady", "node_silent")
    for alert in (share, silent):
        say(alert, "fired")

    until(lambda: any(len(post.json["alerts"]) == 2 for post in hook_server.posts))
    body = hook_server.posts[-1].json
    assert (body["status"], body["groupLabels"]) == ("firing", {"run": "llama"})
    assert {alert["labels"]["alertname"] for alert in body["alerts"]} == {
        "allreduce_share",
        "node_silent",
    }
    assert body["alerts"][0]["generatorURL"].startswith("https://trnwatch.example/alerts/")

    first = held(manager)[0]["endsAt"]
    until(lambda: held(manager)[0]["endsAt"] > first)

    say(share, "resolved")
    until(lambda: statuses(hook_server, share.pk) == ["firing", "resolved"])
    assert [alert["labels"]["alertname"] for alert in held(manager)] == ["node_silent"]
    say(silent, "resolved")
    until(lambda: held(manager) == [])
    until(lambda: statuses(hook_server, silent.pk)[-1] == "resolved")


def statuses(hook_server: ReceiverServer, alert: int) -> list[str]:
    """Return the notifications of one alert, without repeats."""
    shown = [
        each["status"]
        for post in hook_server.posts
        for each in post.json["alerts"]
        if each["labels"]["trnwatch_alert"] == str(alert)
    ]
    return list(dict.fromkeys(shown))


def test_an_alertmanager_that_was_away_gets_it_when_it_is_back(
    senders: Senders, run: Run, hook_server: ReceiverServer, request: pytest.FixtureRequest
) -> None:
    made = receiver("manager", "alertmanager", f"http://127.0.0.1:{free_port()}")
    say(an_alert(run), "fired")
    senders.start()
    until(lambda: Receiver.objects.get().n_failed >= 2)

    manager: str = request.getfixturevalue("manager")
    made.target = manager
    made.save(update_fields=["target"])
    until(lambda: len(held(manager)) == 1)
