"""The API against its own description: schemathesis finds nothing, whoever asks."""

import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
from django.db import connection
from pytest_django import Settings

from fleet.models import Alert, Annotation, Node, Run, Silence, Token
from tests.alerts import straggling
from tests.fleet.api.v1.conftest import numbered_on
from tests.parts import just_now

HERE = Path(__file__).parent
# The same every time, so that a finding can be seen again; another may be asked for.
SEED = int(os.environ.get("SCHEMATHESIS_SEED", "20261121"))
LONG = timedelta(days=1)
FAR = 1_000_000


def run_against(address: str, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run schemathesis against a server."""
    options = (
        f"--seed {SEED} --checks all --generation-database none --no-color --request-timeout 60 "
        "--suppress-health-check all --exclude-path-regex /ingest/"
    )
    command = [
        *(sys.executable, "-m", "schemathesis.cli"),
        *("--config-file", str(HERE / "schemathesis.toml"), "run"),
        *(f"{address}/api/v1/openapi.json", *options.split(), *arguments),
    ]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)


@pytest.fixture
def known(fleet: Alert, run: Run, settings: Settings) -> None:
    """Give what the description's examples name, and what boundary values of keys find."""
    settings.API_REQUESTS_PER_MINUTE = 1_000_000
    now = just_now()
    Node.objects.filter(name="steady").update(name="llama-03")
    for pk in (1, 2):
        Alert.objects.filter(pk=pk).delete()
        at = now - timedelta(hours=pk)
        straggling(run, fleet.node, at=at, pk=pk, subject=f"node:{pk}")  # type: ignore[arg-type]
        Silence.objects.filter(pk=pk).delete()
        Silence.objects.create(
            pk=pk, matchers="rule=x", reason="x", by="ada", starts_at=now, ends_at=now + LONG
        )
        Annotation.objects.filter(pk=pk).delete()
        Annotation.objects.create(pk=pk, at=now, kind="note", text="x", by="ada")
        Token.objects.create(pk=pk, name="x", digest=f"{pk}", scope="read", created_at=now)
    numbered_on()


def asking(scope: str) -> str:
    """Return the header of a token that no example and no boundary revokes."""
    token, secret = Token.issue("schemathesis", scope, now=just_now())
    Token.objects.filter(pk=token.pk).update(id=FAR + token.pk)
    return f"Authorization: Bearer {secret}"


def test_it_finds_nothing(address: str, known: None, tmp_path: Path) -> None:
    # PostgreSQL refuses more than SQLite does: there an admin asks for everything; here whoever
    # may only read asks for the examples, and is refused a good deal.
    everything = ("--max-examples", "3", "--phases", "examples,coverage,fuzzing,stateful")
    little = ("--max-examples", "1", "--phases", "examples,fuzzing")
    is_strict = connection.vendor == "postgresql"
    scope, asked = ("admin", everything) if is_strict else ("read", little)

    found = run_against(address, tmp_path, "-H", asking(scope), *asked)

    assert found.returncode == 0, f"seed {SEED}\n{found.stdout}\n{found.stderr}"
