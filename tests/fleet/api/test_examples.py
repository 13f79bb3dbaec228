"""Every example of docs/api.md runs against a server."""

import os
import re
import subprocess
from datetime import timedelta
from pathlib import Path

import pytest
from django.contrib.auth.models import User

from fleet.api.application import document
from fleet.models import Alert, Node, Run, Silence, Token
from fleet.trials.schedule import update_observed_runs
from telemetry.store.hot import HotStore
from tests.alerts import straggling
from tests.fleet.api.conftest import money
from tests.fleet.trials.arms import let_train, trial_of_two
from tests.fleet.trials.conftest import LATER
from tests.helpers import just_now

TEXT = (Path(__file__).parents[3] / "docs/api.md").read_text()
EXAMPLES = re.findall(r"```sh\n(.*?)```", TEXT, flags=re.DOTALL)

# The parts of each address; how data are reported is described in docs/real-nodes.md.
RESOURCES = {
    part
    for path in document()["paths"]
    if "/ingest/" not in path
    for part in path.removeprefix("/api/v1/").split("/")
    if part and "{" not in part
}


@pytest.fixture
def named(fleet: Alert, hot: HotStore) -> None:
    """Give what the examples name: a node, an alert that has not been seen for a while, ada."""
    now = just_now()
    node = Node.objects.get(name="silent")
    Node.objects.filter(pk=node.pk).update(name="llama-03")
    spare = {"name": "spare-01", "source": Node.Source.NEURON_MONITOR, "first_seen_at": now}
    Node.objects.create(**spare, instance_type="trn2.48xlarge", n_cores=64, n_devices=16)
    at = now - timedelta(hours=1)
    straggling(fleet.run, node, at=at, pk=42, subject="node:llama-03")  # type: ignore[arg-type]
    Silence.objects.all().delete()
    Silence.objects.create(
        pk=5,
        matchers="rule=x",
        reason="x",
        by="ada",
        starts_at=at,
        ends_at=now + timedelta(days=1),
    )
    Token.objects.create(pk=3, name="old", digest="x", scope="read", created_at=at)
    User.objects.create_superuser("ada")
    money(Run.objects.get(), 4, 6)
    trial_of_two()
    let_train()
    update_observed_runs(hot, now=LATER)


@pytest.mark.curl
def test_every_example_works(address: str, named: None, tmp_path: Path) -> None:
    token, secret = Token.issue("docs", Token.Scope.ADMIN, now=just_now())
    assert len(EXAMPLES) > 10
    for example in EXAMPLES:
        script = "set -e\n" + example.replace("https://trnwatch.example", address)

        done = subprocess.run(
            ["sh", "-c", script],
            env=os.environ | {"TOKEN": secret, "no_proxy": "*"},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )

        assert done.returncode == 0, f"{example}\n{done.stdout}\n{done.stderr}"
        assert done.stdout.startswith("{")
    assert Alert.objects.get(pk=42).events.filter(by="token docs").count() > 4
    assert Token.objects.filter(name="ci", created_by="token docs").exists()
    token.refresh_from_db()
    assert token.last_used_at is not None


def test_every_resource_has_an_example() -> None:
    missing = [each for each in RESOURCES if f"/{each}" not in "".join(EXAMPLES)]
    assert missing == [], "docs/api.md: add an example in a block `sh`"
