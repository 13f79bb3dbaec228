"""Files in the data folder are readable by their owner only."""

import json
import os
import socket
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from fleet.ops import private_files
from tests.fleet.ops.installation import ROOT, environment, manage, prepare, running


def open_to_others(folder: Path) -> list[str]:
    """Name what others may read, write or enter."""
    paths = [folder, *folder.rglob("*")]
    return [str(p) for p in paths if not p.is_symlink() and p.stat().st_mode & 0o077]


def loosen(folder: Path) -> None:
    """Give a folder the modes that an older release left."""
    for path in [folder, *folder.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)


def test_a_running_installation_in_an_old_folder_is_closed_and_keeps_its_data(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "old"
    prepare(folder)
    with closing(sqlite3.connect(folder / "trnwatch.sqlite3")) as database, database:
        database.execute("INSERT INTO django_session VALUES ('stolen', '', '2999-01-01 00:00:00')")
        database.execute("INSERT INTO auth_group (name) VALUES ('kept')")
    key = "k" * 50
    (folder / "secret_key").write_text(key)
    (folder / "redis").mkdir()
    (folder / "redis" / "appendonly.aof").touch()
    loosen(folder)

    with running(folder) as up:
        assert up.answers() == 200
        assert open_to_others(folder) == []
        assert "Fixed permissions in" in up.shown
        assert "all users must sign in again" in up.shown
    assert open_to_others(folder) == []
    assert (folder / "secret_key").read_text() == key
    with closing(sqlite3.connect(folder / "trnwatch.sqlite3")) as database:
        kept = database.execute("SELECT name FROM auth_group WHERE name = 'kept'").fetchall()
        assert kept == [("kept",)]
        assert database.execute("SELECT * FROM django_session").fetchall() == []
    # What is closed is not reported again.
    assert private_files.make_private(folder).paths == []


@pytest.mark.parametrize("module", ["fleet.asgi", "fleet.celery", "fleet.settings"])
def test_whatever_a_program_writes_is_its_owners_alone(tmp_path: Path, module: str) -> None:
    text = f"import {module}, pathlib, django.conf; django.conf.settings.ROOT; "
    text += "pathlib.Path('made').touch(); pathlib.Path('folder').mkdir()"
    env = environment(tmp_path / "data", PYTHONPATH=str(ROOT))
    env["DJANGO_SETTINGS_MODULE"] = "fleet.settings"
    subprocess.run([sys.executable, "-c", text], cwd=tmp_path, env=env, check=True, umask=0o022)

    assert (tmp_path / "made").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "folder").stat().st_mode & 0o777 == 0o700


def test_links_out_of_the_folder_are_left_alone(tmp_path: Path) -> None:
    outside, folder = tmp_path / "outside", tmp_path / "data"
    (outside / "shared").mkdir(parents=True)
    (outside / "shared" / "file").touch()
    loosen(outside)
    folder.mkdir()
    (folder / "file").symlink_to(outside / "shared" / "file")
    (folder / "folder").symlink_to(outside / "shared")
    with socket.socket(socket.AF_UNIX) as endpoint:
        endpoint.bind(str(folder / "socket"))
    loosen_only = (folder, folder / "socket")
    for path in loosen_only:
        path.chmod(0o755)

    restricted = private_files.make_private(folder)

    assert restricted.paths == list(loosen_only)
    assert (outside / "shared").stat().st_mode & 0o777 == 0o755
    assert (outside / "shared" / "file").stat().st_mode & 0o777 == 0o644
    assert private_files.make_private(folder).paths == []


def test_in_a_place_for_everyone_only_our_own_files_are_closed(tmp_path: Path) -> None:
    (tmp_path / "redis").mkdir()
    for name in ("redis/url", "trnwatch.sqlite3", "other-user"):
        (tmp_path / name).touch()
    loosen(tmp_path)
    tmp_path.chmod(0o1777)

    private_files.make_private(tmp_path)

    assert tmp_path.stat().st_mode & 0o7777 == 0o1777
    assert (tmp_path / "other-user").stat().st_mode & 0o777 == 0o644
    assert open_to_others(tmp_path / "redis") == []
    assert (tmp_path / "trnwatch.sqlite3").stat().st_mode & 0o777 == 0o600


def test_what_belongs_to_another_user_is_named_and_left(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.touch()
    other.chmod(0o644)

    restricted = private_files.make_private(tmp_path, user=os.geteuid() + 1)

    assert restricted.refused == [other]
    assert other.stat().st_mode & 0o777 == 0o644


def test_an_empty_secret_key_is_replaced_and_a_full_one_kept(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.touch()

    private_files.write_once(key, "first")
    private_files.write_once(key, "second")

    assert key.read_text() == "first"
    assert list(tmp_path.iterdir()) == [key]


def test_a_backup_is_its_owners_alone_whatever_lay_there(tmp_path: Path) -> None:
    prepare(tmp_path / "data")
    old = tmp_path / ".a.backup.partial"
    old.touch()
    old.chmod(0o666)

    code, shown = manage(tmp_path / "data", "backup", str(tmp_path / "a.backup"), "--json")

    assert code == 0, shown
    assert json.loads(shown)["engine"] == "sqlite"
    assert (tmp_path / "a.backup").stat().st_mode & 0o777 == 0o600
