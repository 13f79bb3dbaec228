"""Schemathesis finds no deviation from the OpenAPI document."""

import os
import subprocess
import sys
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import pytest
from django.db import connection
from django.test import Client
from pytest_django import Settings

from fleet.models import Alert, Annotation, Node, Run, Silence, Token
from fleet.trials.schedule import update_observed_runs
from telemetry.store.hot import HotStore
from tests.alerts import straggling
from tests.fleet.api.conftest import money
from tests.fleet.test_anonymous_access import member
from tests.fleet.trials.arms import let_train, trial_of_two
from tests.fleet.trials.conftest import LATER
from tests.helpers import just_now

HERE = Path(__file__).parent
# The same every time, so that a finding can be seen again; another may be asked for.
SEED = int(os.environ.get("SCHEMATHESIS_SEED", "20261121"))
LONG = timedelta(days=1)
FAR = 1_000_000
CSRF = "x" * 32
LEAST = ("--max-examples", "1", "--phases", "examples")
LITTLE = ("--max-examples", "1", "--phases", "examples,fuzzing")
# The doors' lines are so deep that all their boundaries would take an hour: chance draws some.
INGEST_OPTIONS = ("--include-tag", "ingest", "--max-examples", "5", "--phases", "examples,fuzzing")
ALL = (
    *("--exclude-tag", "ingest"),
    *("--max-examples", "3", "--phases", "examples,coverage,fuzzing,stateful"),
)


def run_against(address: str, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run schemathesis against a server."""
    options = (
        f"--seed {SEED} --checks all --generation-database none --no-color --request-timeout 60 "
        "--suppress-health-check all"
    )
    command = [
        *(sys.executable, "-m", "schemathesis.cli"),
        *("--config-file", str(HERE / "schemathesis.toml"), "run"),
        *("--url", address, *options.split(), *arguments),
    ]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)


@pytest.fixture
def known(fleet: Alert, run: Run, hot: HotStore, settings: Settings) -> None:
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
    money(run, 1, 2)
    trial_of_two()
    let_train()
    update_observed_runs(hot, now=LATER)


def bearing(scope: str) -> list[str]:
    """Return the header of a token that no example and no boundary revokes."""
    token, secret = Token.issue("schemathesis", scope, now=just_now())
    Token.objects.filter(pk=token.pk).update(id=FAR + token.pk)
    return ["-H", f"Authorization: Bearer {secret}"]


def signed_in(role: str) -> list[str]:
    """Return the headers of a signed-in browser."""
    browser = Client()
    browser.force_login(member(role))
    session = browser.cookies["trnwatch_session"].value
    cookies = f"Cookie: trnwatch_session={session}; trnwatch_csrf={CSRF}"
    return ["-H", cookies, "-H", f"X-CSRFToken: {CSRF}"]


def check(address: str, folder: Path, who: Sequence[str], asked: Sequence[str]) -> None:
    """Run the operations of the OpenAPI document with these headers."""
    secret = Token.issue("reader", "read", now=just_now())[1]
    headers = {"Authorization": f"Bearer {secret}"}
    description = folder / "openapi.json"
    description.write_text(Client().get("/api/v1/openapi.json", headers=headers).text)

    found = run_against(address, folder, str(description), *who, *asked)

    assert found.returncode == 0, f"seed {SEED}\n{found.stdout}\n{found.stderr}"


def test_it_finds_nothing_for_who_may_do_everything(
    address: str, known: None, tmp_path: Path
) -> None:
    # PostgreSQL refuses more than SQLite does: there everything is asked.
    asked = ALL if connection.vendor == "postgresql" else LITTLE
    check(address, tmp_path, bearing("admin"), asked)


def test_it_finds_nothing_at_the_endpoints_for_data(
    address: str, known: None, tmp_path: Path
) -> None:
    check(address, tmp_path, bearing("ingest"), INGEST_OPTIONS)


# What each scope and role may do, operation by operation, is tested in test_access.py.
def test_it_finds_nothing_for_a_token_that_opens_nothing(
    address: str, known: None, tmp_path: Path
) -> None:
    check(address, tmp_path, bearing("scrape"), LEAST)


@pytest.mark.parametrize("role", ["viewer", "admin"])
def test_it_finds_nothing_for_people(address: str, known: None, tmp_path: Path, role: str) -> None:
    check(address, tmp_path, signed_in(role), LEAST)


def test_it_finds_nothing_for_anonymous_callers(address: str, known: None, tmp_path: Path) -> None:
    check(address, tmp_path, [], LEAST)
