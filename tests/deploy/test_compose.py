"""`compose.yaml`: its services with their commands and environment, on real servers."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from fleet.ops.environment import Environment
from tests.helpers import free_port, redis_server
from tests.postgres_server import start_postgres

ROOT = Path(__file__).resolve().parents[2]
OURS = ("migrate", "web", "worker", "beat", "sender")
# Environment variables of services that are not our settings.
OTHERS = {"FORWARDED_ALLOW_IPS"}


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    reported: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())
    return reported


def settings_documented() -> set[str]:
    table = (ROOT / "docs/operations.md").read_text()
    return set(re.findall(r"^\| `([A-Z_]+)` \|", table, flags=re.MULTILINE))


def test_every_variable_is_a_setting_and_every_secret_has_a_file(compose: dict[str, Any]) -> None:
    known = settings_documented() | OTHERS
    secrets = compose["secrets"]
    for name in OURS:
        service = compose["services"][name]
        assert {key.removesuffix("_FILE") for key in service["environment"]} <= known
        assert set(service["secrets"]) <= secrets.keys()
        read = {v for k, v in service["environment"].items() if k.endswith("_FILE")}
        assert read == {f"/run/secrets/{secret}" for secret in service["secrets"]}
        assert service["read_only"] is True


def test_every_line_of_the_example_for_systemd_is_a_setting() -> None:
    text = (ROOT / "deploy/systemd/environment.example").read_text()
    names = re.findall(r"^([A-Z_]+)=", text, flags=re.MULTILINE)

    assert {"DATABASE_URL", "TRNWATCH_SECRET_KEY"} < {*names} <= settings_documented() | OTHERS


def test_what_is_mounted_is_there_and_images_are_pinned(compose: dict[str, Any]) -> None:
    for service in compose["services"].values():
        for volume in service.get("volumes", []):
            source = volume.partition(":")[0]
            assert not source.startswith("./") or (ROOT / source).exists(), volume
            assert source.startswith("./") or source in compose["volumes"]
        image = service["image"]
        assert image == "trnwatch" or re.search(r":v?\d+(\.\d+)*", image), image
        if build := service.get("build"):
            assert (ROOT / build["dockerfile"]).exists()


def test_only_the_proxy_is_reachable_from_outside(compose: dict[str, Any]) -> None:
    published = {name for name, service in compose["services"].items() if "ports" in service}

    assert published == {"proxy"}


def test_secrets_are_made_once_and_read_by_the_settings(tmp_path: Path) -> None:
    make = [sys.executable, str(ROOT / "deploy/make_secrets.py"), str(tmp_path / "secrets")]
    subprocess.run(make, check=True, capture_output=True)
    first = {path.name: path.read_text() for path in (tmp_path / "secrets").iterdir()}
    subprocess.run(make, check=True, capture_output=True)

    assert first == {path.name: path.read_text() for path in (tmp_path / "secrets").iterdir()}
    assert (tmp_path / "secrets").stat().st_mode & 0o077 == 0
    assert first["postgres_password"] in first["database_url"]
    assert first["redis_password"] in first["redis_url"]
    (tmp_path / "secrets" / "redis_url").unlink()
    done = subprocess.run(make, check=False, capture_output=True, text=True)
    assert (done.returncode, "lacks redis_url" in done.stderr) == (1, True)


@pytest.fixture(scope="module")
def environment(
    compose: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Mapping[str, str]]:
    """Give the environment of the web service, with real secrets and servers."""
    folder = tmp_path_factory.mktemp("compose")
    with ExitStack() as stack:
        secrets = {
            "database_url": stack.enter_context(start_postgres()).url,
            "redis_url": stack.enter_context(redis_server(folder)),
            "secret_key": "only-for-this-test-" * 3,
        }
        reported = dict(compose["services"]["web"]["environment"])
        for name, value in secrets.items():
            (folder / name).write_text(value + "\n")
        for key, value in reported.items():
            named = re.sub(r"\$\{TRNWATCH_HOST[^}]*\}", "trnwatch.test", value)
            chosen = re.sub(r"\$\{\w+:-\}", "", named)
            reported[key] = chosen.replace("/run/secrets/", f"{folder}/")
        (folder / "data").mkdir()
        kept = {k: v for k, v in os.environ.items() if k in {"PATH", "HOME", "LANG"}}
        yield (
            kept
            | reported
            | {
                "TRNWATCH_DATA_DIR": str(folder / "data"),
                "TRNWATCH_PYTHON": sys.executable,
                "TMPDIR": str(folder),
                "PORT": str(free_port()),
            }
        )


@pytest.mark.postgresql
def test_its_programs_make_a_trnwatch_that_is_ready(
    environment: Mapping[str, str], compose: dict[str, Any]
) -> None:
    run = [str(ROOT / "deploy/run")]
    subprocess.run([*run, "migrate", "--verbosity", "0"], env=environment, check=True)
    checked = [sys.executable, "manage.py", "check", "--deploy", "--fail-level", "WARNING"]
    subprocess.run(checked, env=environment, cwd=ROOT, check=True, capture_output=True)
    programs = [
        subprocess.Popen([*run, name], env=environment, stderr=subprocess.DEVNULL)
        for name in ("web", "worker", "beat", "sender")
    ]
    try:
        address = f"http://127.0.0.1:{environment['PORT']}"
        assert until_answers(f"{address}/healthz") == 200
        # Without this the proxy, which waits for it, would never start.
        asked = compose["services"]["web"]["healthcheck"]["test"][-1]
        health = asked.replace("127.0.0.1:8000", f"127.0.0.1:{environment['PORT']}")
        subprocess.run([sys.executable, "-c", health], env=environment, check=True)
        # The proxy sets X-Forwarded-Proto; plain http is redirected to https.
        assert status(f"{address}/sign-in/", {"X-Forwarded-Proto": "https"}) == 200
        assert status(f"{address}/sign-in/", {}) == 301
        assert status(f"{address}/metrics", {}) == 401
        assert [program.poll() for program in programs] == [None] * 4
    finally:
        for program in programs:
            program.terminate()
        for program in programs:
            program.wait(timeout=30)


def test_a_value_in_a_file_is_read_by_the_name_of_the_setting(
    environment: Mapping[str, str],
) -> None:
    assert Environment(environment).text("TRNWATCH_SECRET_KEY").startswith("only-for-this-test")


def status(url: str, headers: Mapping[str, str]) -> int:
    """Ask, without following where the answer leads."""
    place = urlsplit(url)
    connection = HTTPConnection(place.hostname or "", place.port, timeout=30)
    connection.request("GET", place.path, headers={"Host": "trnwatch.test"} | dict(headers))
    code = connection.getresponse().status
    connection.close()
    return code


def until_answers(url: str, *, timeout_s: float = 90.0) -> int:
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            return status(url, {})
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
