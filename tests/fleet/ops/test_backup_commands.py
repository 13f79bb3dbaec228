"""`manage.py backup` and `restore` on a temporary folder."""

import json
import os
import sqlite3
import subprocess
import tarfile
from collections.abc import Callable
from contextlib import closing
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from fleet.ops.sockets import Lock
from tests import warm
from tests.fleet.ops.installation import prepare

Manage = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def manage(tmp_path: Path) -> Manage:
    prepare(tmp_path / "data")

    def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
        known = os.environ | {"TRNWATCH_DATA_DIR": str(tmp_path / "data"), "TRNWATCH_DEMO": ""}
        known.pop("DATABASE_URL", None)
        return warm.run(["manage.py", *arguments], env=known)

    return run


def token_names(folder: Path) -> list[str]:
    with closing(sqlite3.connect(folder / "data" / "trnwatch.sqlite3")) as database:
        rows = database.execute("SELECT name FROM fleet_token ORDER BY name")
        return [name for (name,) in rows]


def test_what_was_backed_up_comes_back_and_nothing_is_overwritten_unasked(
    manage: Manage, tmp_path: Path
) -> None:
    manage("create_token", "first", "--scope", "ingest")
    file = tmp_path / "a copy.backup"
    reported: dict[str, Any] = json.loads(manage("backup", str(file), "--json").stdout)
    assert reported["engine"] == "sqlite"
    assert file.stat().st_mode & 0o077 == 0

    again = manage("backup", str(file))
    assert (again.returncode, "exists already" in again.stderr) == (2, True)

    manage("create_token", "second", "--scope", "scrape")
    refused = manage("restore", str(file))
    assert refused.returncode == 2
    assert "rows in fleet_token; --replace overwrites" in refused.stderr
    assert token_names(tmp_path) == ["first", "second"]

    with Lock(tmp_path / "data" / "up.lock") as lock:
        lock.note("http://127.0.0.1:8000")
        running = manage("restore", str(file), "--replace")
    assert (running.returncode, "stop it first" in running.stderr) == (2, True)

    restored = manage("restore", str(file), "--replace", "--json")
    assert json.loads(restored.stdout)["migrations_to_apply"] == 0
    assert token_names(tmp_path) == ["first"]


def test_a_file_that_is_no_backup_or_of_another_release_changes_nothing(
    manage: Manage, tmp_path: Path
) -> None:
    manage("create_token", "first", "--scope", "ingest")
    file = tmp_path / "copy.backup"
    manage("backup", str(file))

    cut = tmp_path / "cut.backup"
    cut.write_bytes(file.read_bytes()[:-5000])
    newer = tmp_path / "newer.backup"
    rewritten(file, newer, lambda about: about["migrations"].append("fleet.9999_later"))
    older = tmp_path / "older.backup"
    rewritten(file, older, lambda about: about.update(migrations=["fleet.0001_initial"]))
    edited = tmp_path / "edited.backup"
    rewritten(file, edited, lambda about: about.update(sha256="0" * 64))

    for path, complaint in (
        (cut, "is not a complete backup"),
        (newer, "fleet.9999_later is unknown"),
        (older, "before 0.10"),
        (edited, "is damaged"),
        (tmp_path / "none", "is not a complete backup"),
    ):
        done = manage("restore", str(path), "--replace")
        assert (done.returncode, complaint in done.stderr) == (2, True), done.stderr
    assert token_names(tmp_path) == ["first"]


def rewritten(source: Path, target: Path, change: Callable[[dict[str, Any]], object]) -> None:
    with tarfile.open(source) as old, tarfile.open(target, "w:gz") as new:
        for member in old.getmembers():
            content = old.extractfile(member)
            assert content is not None
            reported = content.read()
            if member.name == "manifest.json":
                about = json.loads(reported)
                change(about)
                reported = json.dumps(about).encode()
            member.size = len(reported)
            new.addfile(member, BytesIO(reported))
