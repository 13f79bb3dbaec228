"""Run the tests: everything on SQLite, and in parallel what SQL can change on PostgreSQL.

What is named (`tests/fleet/test_search.py`, `-k silence`) runs alone, in one process and on
SQLite; with `PG=1` on both. `--statements` finds what need not run on both, also
of some folders (`--statements tests/fleet/alerts`).
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import IO

from common import ROOT
from postgres import postgres_program, temporary_postgres

PYTEST = (sys.executable, "-m", "pytest", "-q")
# Without bytecode, each of the hundreds of processes that tests start compiles all of trnwatch.
UNWANTED = {"DATABASE_URL", "REDIS_URL", "PYTHONDONTWRITEBYTECODE"}
# Much of a test is waiting for other programs, so there are more processes than cores.
# tests/conftest.py says which tests stay together, and which start first.
AT_ONCE = ("-n", "3", "--dist", "loadgroup", "--no-loadscope-reorder")
ALONE = ("-p", "no:xdist")
# Where constraints, concurrency, aggregates, migrations and the number of queries are tested: a
# database can change what these find. tests/test_project.py sees that none is forgotten.
ON_POSTGRES = (
    "tests/fleet/access",
    "tests/fleet/alerts",
    "tests/fleet/api",
    "tests/fleet/costs",
    "tests/fleet/ingest",
    "tests/fleet/notifications",
    "tests/fleet/ops/test_backup_commands.py",
    "tests/fleet/pages",
    "tests/fleet/runs",
    "tests/fleet/simulation",
    "tests/fleet/test_metrics.py",
    "tests/fleet/test_metrics_neuron.py",
    "tests/fleet/test_metrics_node.py",
    "tests/fleet/test_metrics_streaming.py",
    "tests/fleet/test_migrations.py",
    "tests/fleet/test_overview.py",
    "tests/fleet/test_sd_prometheus.py",
    "tests/fleet/test_search.py",
    "tests/fleet/test_sign_in.py",
    "tests/fleet/test_step_durations.py",
    "tests/fleet/trials",
    "tests/importers",
    "tests/telemetry/long_term",
    "tests/telemetry/store",
    "tests/test_helpers.py",
)
# What other programs ask is asked once, on SQLite: it is the same queries.
OF_A_DATABASE = "database and not (browser or prometheus or alertmanager or victoria or curl)"
# These play long scenarios or start programs, and ask a database nothing that others do not ask.
ON_SQLITE_ALONE = (
    "tests/fleet/alerts/test_carry_over.py::test_more_urgent",
    "tests/fleet/alerts/test_correlation.py::test_a_drill_of",
    "tests/fleet/ingest/test_columns.py",
    "tests/fleet/ingest/test_restarts.py",
    "tests/fleet/notifications/test_crash_recovery.py::test_asked",
    "tests/fleet/notifications/test_crash_recovery.py::test_killed_after",
    "tests/fleet/notifications/test_crash_recovery.py::test_killed_before",
    "tests/fleet/notifications/test_crash_recovery.py::test_killed_while",
    "tests/fleet/notifications/test_outages.py::test_without_redis",
    "tests/fleet/simulation/test_demo_trial_figures.py",
    "tests/fleet/simulation/test_findings.py",
    "tests/fleet/simulation/test_measured_noise.py",
    "tests/fleet/simulation/test_past.py::test_steps_of",
    "tests/fleet/simulation/test_past.py::test_the_first_fault",
)
SKIPPED = [f"--deselect={name}" for name in ON_SQLITE_ALONE]
# PostgreSQL refuses more than SQLite does, and these take long: they are asked there alone.
ONCE = ("tests/fleet/api/test_schemathesis.py", "tests/fleet/pages/test_numbers.py")


def pytest(*arguments: str, log: IO[bytes] | int | None = None, **env: str) -> int:
    """Run pytest with a temporary data folder, into ``log`` if given; returns the exit code."""
    inherited = {name: value for name, value in os.environ.items() if name not in UNWANTED}
    with tempfile.TemporaryDirectory(prefix="trnwatch-test-") as folder:
        ours = {"TRNWATCH_DATA_DIR": folder, "TRNWATCH_DEMO": "0"}
        command = [*PYTEST, *arguments]
        return subprocess.run(
            command, cwd=ROOT, env=inherited | ours | env, stdout=log, stderr=log, check=False
        ).returncode


def is_chosen(arguments: Sequence[str]) -> bool:
    """Whether the arguments name tests, not only options for all of them."""
    paths = (word.partition("::")[0] for word in arguments if not word.startswith("-"))
    # A mistyped file names tests too: pytest says that it is missing.
    return any(path.endswith(".py") or (ROOT / path).exists() for path in paths) or bool(
        {"-k", "-m", "--lf", "--last-failed"} & set(arguments)
    )


def on_postgres(arguments: Sequence[str], log: IO[bytes] | None = None, **env: str) -> int:
    """Run tests that ask the database on a PostgreSQL of our own."""
    with temporary_postgres() as url:
        return pytest("-m", OF_A_DATABASE, *arguments, log=log, DATABASE_URL=url, **env)


def compile_once() -> None:
    """On a clean clone, let one process compile tests and packages: five take twice the CPU."""
    if not (ROOT / "tests" / "__pycache__").exists():
        pytest("--collect-only", *ALONE, log=subprocess.DEVNULL)


def all_tests(arguments: Sequence[str]) -> set[int]:
    """Run all tests, on both databases at the same time; returns the exit codes."""
    compile_once()
    if postgres_program("initdb") is None:
        return {pytest(*AT_ONCE, *arguments)}
    left_out = [f"--ignore={path}" for path in ONCE]
    with (
        tempfile.TemporaryDirectory(prefix="trnwatch-shared-") as shared,
        tempfile.TemporaryFile() as log,
        ThreadPoolExecutor(1) as background,
    ):
        # In ``shared`` lies what one test process makes for all.
        on_both = [*ALONE, *arguments, *SKIPPED, *ON_POSTGRES]
        other = background.submit(on_postgres, on_both, log, TRNWATCH_TEST_SHARED=shared)
        print("On SQLite:", flush=True)
        codes = {pytest(*AT_ONCE, *arguments, *left_out, TRNWATCH_TEST_SHARED=shared)}
        codes.add(other.result())
        log.seek(0)
        print(f"On PostgreSQL:\n{log.read().decode(errors='replace')}", flush=True)
    return codes


def main() -> None:
    """Run what was asked for; what was named may not touch the database at all, which is fine."""
    arguments = sys.argv[1:]
    if arguments[:1] == ["--statements"]:
        recorded = ["-m", OF_A_DATABASE, *SKIPPED, *(arguments[1:] or ON_POSTGRES)]
        sys.exit(pytest(*ALONE, *recorded, TRNWATCH_STATEMENTS="1"))
    chosen = is_chosen(arguments)
    if not chosen and not {"-n", "--numprocesses", "--pdb", "-x"} & set(arguments):
        sys.exit(max(all_tests(arguments)))
    arguments = arguments if {"-n", "--numprocesses"} & set(arguments) else [*ALONE, *arguments]
    codes = {pytest(*arguments)}
    if postgres_program("initdb") and (os.environ.get("PG") or not chosen):
        print("On PostgreSQL:", flush=True)
        codes.add(on_postgres(arguments if chosen else [*arguments, *ON_POSTGRES]))
    no_tests = 5 if chosen else 0
    sys.exit(max(codes - {0, no_tests}, default=0))


if __name__ == "__main__":
    main()
