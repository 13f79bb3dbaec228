"""Run the tests: what asks the database on PostgreSQL, then everything on SQLite."""

import os
import subprocess
import sys
import tempfile

from common import ROOT
from postgres import postgres_program, throw_away_postgres

PYTEST = (sys.executable, "-m", "pytest", "-q")
# Much of a test is waiting for other programs: three keep two cores busy.
N_PROCESSES = "3"


def pytest(*words: str, **env: str) -> int:
    """Run pytest, its data in a place of its own; gives the exit code."""
    options = [] if {"-n", "--pdb", "-x"} & set(words) else ["-n", N_PROCESSES]
    clean = {k: v for k, v in os.environ.items() if k not in {"DATABASE_URL", "REDIS_URL"}}
    with tempfile.TemporaryDirectory(prefix="trnwatch-test-") as folder:
        place = {"TRNWATCH_DATA_DIR": folder, "TRNWATCH_DEMO": "0"}
        command = [*PYTEST, *options, *words]
        return subprocess.run(command, cwd=ROOT, env=clean | place | env, check=False).returncode


def on_postgres(words: list[str]) -> int:
    """Run the part that asks the database on a PostgreSQL of our own."""
    if postgres_program("initdb") is None:
        return 0
    with throw_away_postgres() as url:
        print("On PostgreSQL:", flush=True)
        # What a browser or Prometheus asks is asked once, on SQLite: it is the same queries.
        chosen = "database and not browser and not prometheus"
        return pytest("-m", chosen, *words, DATABASE_URL=url)


def main() -> None:
    """Run both; what was selected may not touch the database at all, which is fine."""
    words = sys.argv[1:]
    codes = {on_postgres(words)}
    print("On SQLite:", flush=True)
    codes.add(pytest(*words))
    no_tests = 5 if words else 0
    sys.exit(max(codes - {0, no_tests}, default=0))


if __name__ == "__main__":
    main()
