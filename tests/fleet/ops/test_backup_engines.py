"""Backup of each database engine during writes, and restore as a whole or not at all."""

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import dj_database_url
import psycopg
import pytest

from fleet.ops.backups import BackupError, PostgreSQL, Sqlite, engine_of
from tests.postgres_server import start_postgres

ROWS = 2_000


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "live.sqlite3"
    with closing(sqlite3.connect(path)) as live:
        live.execute("PRAGMA journal_mode=WAL")
        live.execute("CREATE TABLE pair (a INTEGER, b INTEGER)")
        live.executemany("INSERT INTO pair VALUES (?, ?)", [(n, -n) for n in range(ROWS)])
        live.commit()
    return path


def pairs(path: Path) -> list[tuple[int, int]]:
    with closing(sqlite3.connect(path)) as database:
        return database.execute("SELECT a, b FROM pair ORDER BY a").fetchall()


def test_a_backup_is_consistent_while_others_write(database: Path, tmp_path: Path) -> None:
    done = threading.Event()

    def write_on() -> None:
        with closing(sqlite3.connect(database, timeout=20)) as live:
            n = ROWS
            while not done.is_set():
                with live:
                    live.execute("INSERT INTO pair VALUES (?, 0)", (n,))
                    live.execute("UPDATE pair SET b = -a WHERE a = ?", (n,))
                n += 1

    writer = threading.Thread(target=write_on)
    writer.start()
    try:
        Sqlite(database).dump(tmp_path / "copy")
    finally:
        done.set()
        writer.join()

    copied = pairs(tmp_path / "copy")
    assert len(copied) >= ROWS
    assert all(a == -b for a, b in copied)


def test_a_copy_comes_back_in_place_of_what_came_after(database: Path, tmp_path: Path) -> None:
    Sqlite(database).dump(tmp_path / "copy")
    with closing(sqlite3.connect(database)) as live, live:
        live.execute("DELETE FROM pair")
        live.execute("CREATE TABLE later (c INTEGER)")
    Sqlite(database).load(tmp_path / "copy")

    assert len(pairs(database)) == ROWS
    with closing(sqlite3.connect(database)) as live, pytest.raises(sqlite3.OperationalError):
        live.execute("SELECT * FROM later")


def test_a_damaged_copy_changes_nothing(database: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    Sqlite(database).dump(copy)
    whole = copy.read_bytes()
    copy.write_bytes(whole[:8192] + bytes(4096) + whole[12288:])

    with pytest.raises(BackupError, match="The copy is damaged"):
        Sqlite(database).load(copy)
    assert len(pairs(database)) == ROWS


def test_another_kind_of_database_is_refused_by_name() -> None:
    with pytest.raises(BackupError, match="DATABASE_URL: mysql cannot be backed up"):
        engine_of({"ENGINE": "django.db.backends.mysql", "NAME": "x"})


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with start_postgres() as own:
        yield own.url


@pytest.mark.postgresql
def test_postgresql_comes_back_whole_or_not_at_all(server: str, tmp_path: Path) -> None:
    engine = PostgreSQL(dj_database_url.parse(server))
    copy = tmp_path / "copy"
    with psycopg.connect(server, autocommit=True) as live:
        live.execute("CREATE TABLE pair (a int PRIMARY KEY, b int)")
        live.execute("INSERT INTO pair SELECT n, -n FROM generate_series(1, 500) n")
        engine.dump(copy)
        live.execute("DELETE FROM pair WHERE a > 10")

    broken = tmp_path / "broken"
    broken.write_bytes(copy.read_bytes()[:-200])
    with pytest.raises(BackupError, match="pg_restore"):
        engine.load(broken)
    assert counted(server) == 10

    engine.load(copy)
    assert counted(server) == 500


def counted(server: str) -> int:
    with psycopg.connect(server) as live:
        row = live.execute("SELECT count(*) FROM pair").fetchone()
    return int(row[0]) if row else 0
