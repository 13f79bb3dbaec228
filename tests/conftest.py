"""Fixtures for all tests: a real Redis, a browser, a run of four nodes."""

import functools
import gc
import itertools
import os
import shutil
import subprocess
import time
from collections.abc import Generator, Iterator
from datetime import timedelta
from pathlib import Path

import hypothesis
import pytest
from django.apps import AppConfig, apps
from django.conf import settings as project
from django.contrib.contenttypes.management import create_contenttypes
from django.db import connection, transaction
from django.db.models import Model
from django.db.models.signals import post_migrate
from playwright.sync_api import Browser, Page, expect, sync_playwright
from pytest_django import DjangoDbBlocker, Settings
from redis import Redis
from redis import utils as redis_utils

from fleet.alerts.evaluate import WATCHES
from fleet.models import Node, Run
from telemetry.store.hot import HotStore
from tests.console import LEFT, real_errors
from tests.fleet.ops.installation import prepared
from tests.helpers import N_REDIS_DATABASES, NOON, postgres_program, redis_server
from tests.statements import Recorder
from tests.web_server import served

NO_SERVER = "redis://127.0.0.1:1/0"
# The build without a window needs little more than half of the CPU. Its script on the path is
# not it: when ended, it leaves Chromium running.
CHROMIUMS = (
    "/usr/lib/chromium/chromium-headless-shell",
    "chromium",
    "chromium-browser",
)
CHROMIUM = next(filter(None, map(shutil.which, CHROMIUMS)), "chromium")
# An example takes milliseconds, and a hundred times as long on a busy machine.
hypothesis.settings.register_profile("slow_machine", deadline=timedelta(seconds=5))
hypothesis.settings.load_profile("slow_machine")
CHROMIUM_WITHIN_S = 60.0
# What a page is to show it shows in a second, and on a busy machine in many.
expect.set_options(timeout=30_000)
CHROMIUM_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    # A process less: it takes a tenth of the time.
    "--in-process-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    # No scrollbar takes room from a page; a tab behind another is as quick as one in front.
    "--hide-scrollbars",
    "--disable-background-timer-throttling",
    "--disable-backgrounding-occluded-windows",
    "--disable-renderer-backgrounding",
    "--disable-ipc-flooding-protection",
    "--disable-dev-shm-usage",
    "--disable-extensions",
    "--disable-hang-monitor",
    "--force-color-profile=srgb",
    "--mute-audio",
    # It has a mouse, which hovers.
    "--blink-settings=primaryHoverType=2,availableHoverTypes=2,"
    "primaryPointerType=4,availablePointerTypes=4",
)


# What a marker's tests need on the machine.
PROGRAMS = {
    "browser": CHROMIUM,
    "prometheus": "prometheus",
    "alertmanager": "prometheus-alertmanager",
    "victoria": "victoria-metrics",
    "curl": "curl",
    "pdftotext": "pdftotext",
    "postgresql": postgres_program("initdb"),
}


def pytest_configure(config: pytest.Config) -> None:
    """Serve static files from where they are written, uncollected; spare what takes long."""
    # What is collected stays: to look through it again and again for garbage takes a fifth of it.
    gc.disable()
    # pytest 9.1 loses the fixtures of a folder whose files are not named one after the other.
    config.args.sort()
    project.WHITENOISE_AUTOREFRESH = project.WHITENOISE_USE_FINDERS = True
    plain = "django.contrib.staticfiles.storage.StaticFilesStorage"
    project.STORAGES["staticfiles"] = {"BACKEND": plain}
    # A test without a Redis fixture reaches none that happens to run here.
    project.REDIS_URL = project.CELERY_BROKER_URL = NO_SERVER
    # It reads its own version from the disk for each connection.
    redis_utils.get_lib_version = functools.cache(redis_utils.get_lib_version)
    if "TRNWATCH_STATEMENTS" in os.environ:
        config.pluginmanager.register(Recorder(SENT_BY_OTHERS, EVERY_CASE))
    # The real one takes 0.3 s for each account that a test makes, on purpose.
    project.PASSWORD_HASHERS = [
        "django.contrib.auth.hashers.MD5PasswordHasher",
        *project.PASSWORD_HASHERS,
    ]


# These take long, or wait long, and start first: at the end a test that waits leaves a core idle.
# Each test may go to another process.
LONG = (
    "tests/fleet/ops/",
    "tests/fleet/api/test_connections.py",
    "tests/fleet/api/test_ingest_asgi.py",
    "tests/fleet/api/test_schemathesis.py",
    "tests/fleet/simulation/test_findings.py",
    "tests/fleet/notifications/test_crash_recovery.py",
    "tests/fleet/notifications/test_outages.py",
    "tests/fleet/test_alert_storms.py",
    "tests/fleet/test_detection_end_to_end.py",
    "tests/fleet/test_live.py",
    "tests/fleet/test_private_files.py",
    "tests/browser/",
    "tests/deploy/",
    "tests/telemetry/detect/",
    "tests/trnwatch/test_nccl_inspector.py",
    "tests/trnwatch/test_runtime_trace.py",
)


# PostgreSQL is not asked these: others send each statement of them (tests/statements.py).
SENT_BY_OTHERS = Path(__file__).with_name("sent_by_others.txt")
# Cases of one test ask a database the same, and are all asked on SQLite. PostgreSQL is asked
# the first; and all of these, whose cases differ in their SQL or in what a text may hold.
EVERY_CASE = (
    "tests/fleet/access/test_audit.py",
    "tests/fleet/alerts/test_lifecycle.py",
    "tests/fleet/api/test_actions.py",
    "tests/fleet/api/test_budgets.py",
    "tests/fleet/api/test_compiles.py",
    "tests/fleet/api/test_paging.py::test_any_cursor",
    "tests/fleet/api/test_prices.py",
    "tests/fleet/api/test_resources.py::test_a_full_list",
    "tests/fleet/api/test_resources.py::test_alerts_are_listed",
    "tests/fleet/api/test_resources.py::test_nodes_are_listed",
    "tests/fleet/api/test_schemathesis.py",
    "tests/importers/test_import_log_errors.py",
    "tests/fleet/notifications/test_reminders.py",
    "tests/fleet/pages/drills/test_drill_list.py",
    "tests/fleet/pages/test_alert_list.py",
    "tests/fleet/pages/test_change_list.py",
    "tests/fleet/pages/test_compile_list.py",
    "tests/fleet/pages/test_delivery_list.py",
    "tests/fleet/pages/test_delivery_settle_all.py",
    "tests/fleet/pages/test_labels.py",
    "tests/fleet/pages/test_live_parts.py::test_every_part",
    "tests/fleet/pages/test_node_list.py",
    "tests/fleet/test_search.py",
    "tests/fleet/test_sign_in.py",
    "tests/fleet/trials/test_lifecycle.py",
    "tests/telemetry/",
)


def first_cases(items: list[pytest.Item]) -> list[pytest.Item]:
    """Return the first case of each test, and every one where cases differ for a database."""
    first = {item.nodeid.partition("[")[0]: item for item in reversed(items)}
    return [
        item
        for item in items
        if item.nodeid.startswith(EVERY_CASE) or first[item.nodeid.partition("[")[0]] is item
    ]


def mix(items: list[pytest.Item]) -> None:
    """Spread what waits evenly among what computes, ahead of the last fifth of the rest.

    Where every process waits at the same time, the cores are idle.
    """
    waits = [item.nodeid.startswith(LONG) for item in items]
    n_long = sum(waits)
    each_long, each_other = 0.8 / max(1, n_long), 1 / max(1, len(items) - n_long)
    turns, at_long, at_other = [], 0.0, 0.0
    for is_long in waits:
        turns.append(at_long if is_long else at_other)
        at_long, at_other = at_long + each_long * is_long, at_other + each_other * (not is_long)
    items[:] = [items[i] for i in sorted(range(len(items)), key=turns.__getitem__)]


def shares_a_fixture(item: pytest.Item) -> bool:
    """Whether a fixture of the test is created once per module, like a browser connection."""
    definitions = item._fixtureinfo.name2fixturedefs if isinstance(item, pytest.Function) else {}
    return any(each.scope == "module" for several in definitions.values() for each in several)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> Generator[None]:
    """Mark what uses the database; leave out what has no program here, except in CI.

    The tests of a module go to one process, unless they take long and share no fixture: xdist
    needs most of a millisecond for each group.
    """
    for item in items:
        if shares_a_fixture(item) or not item.nodeid.startswith(LONG):
            item.add_marker(pytest.mark.xdist_group(item.nodeid.partition("::")[0]))
        asks = {"db", "transactional_db"} & set(getattr(item, "fixturenames", ()))
        if asks or item.get_closest_marker("django_db"):
            item.add_marker("database")
    for marker, program in {} if os.environ.get("CI") else PROGRAMS.items():
        left_out = [item for item in items if item.get_closest_marker(marker)]
        if left_out and not shutil.which(program):
            config.hook.pytest_deselected(items=left_out)
            items[:] = [item for item in items if item not in left_out]
    is_recorded = "TRNWATCH_STATEMENTS" in os.environ
    if is_recorded or (connection.vendor == "postgresql" and "TRNWATCH_TEST_SHARED" in os.environ):
        listed = set() if is_recorded else {*SENT_BY_OTHERS.read_text().split()}
        items[:] = [
            item
            for item in first_cases(items)
            if not listed & {item.nodeid.partition(end)[0] for end in ("[", "::")}
        ]
    yield
    if getattr(config.option, "loadgroup", False):
        mix(items)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Check that xdist keeps groups together; spare the garbage collector all the tests."""
    if getattr(session.config.option, "loadgroup", False):
        grouped = [item for item in session.items if item.get_closest_marker("xdist_group")]
        assert all("@" in item.nodeid for item in grouped), "this xdist ignores groups"
    gc.collect()
    gc.freeze()
    # Most of what a test leaves needs no collector: at Python's own 700 objects it takes 4 %.
    gc.set_threshold(20_000, 20, 50)
    gc.enable()


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, exitstatus: int, config: pytest.Config
) -> None:
    """Print the seed of the random order after a failure."""
    seed = config.getoption("randomly_seed", default=None)
    if exitstatus and seed is not None:
        terminalreporter.write_line(f"Repeat this random order with --randomly-seed={seed}")


def pytest_report_header() -> list[str]:
    """Name the programs that are missing on this machine."""
    missing = [marker for marker, name in PROGRAMS.items() if not shutil.which(name)]
    return [f"missing here: {name}; its tests are left out unless CI is set" for name in missing]


@pytest.fixture(scope="session")
def django_db_keepdb() -> bool:
    """Tell whether the database is migrated already: one of all test processes does it."""
    return connection.vendor == "sqlite" and "TRNWATCH_TEST_SHARED" in os.environ


@pytest.fixture(scope="session")
def django_db_modify_db_settings(
    tmp_path_factory: pytest.TempPathFactory,
    django_db_modify_db_settings_parallel_suffix: None,
    *,
    django_db_keepdb: bool,
) -> None:
    """Let threads share the database of a test process: on SQLite it is a file."""
    connection.settings_dict["CONN_MAX_AGE"] = 0
    if connection.vendor == "sqlite":
        folder = tmp_path_factory.mktemp("database")
        connection.settings_dict["TEST"]["NAME"] = str(folder / "test.sqlite3")
        if django_db_keepdb:
            shutil.copy(prepared() / "trnwatch.sqlite3", folder / "test.sqlite3")


def all_rows() -> list[list[Model]]:
    """Return every row of the database, by model."""
    return [
        list(model._base_manager.all())
        for model in apps.get_models(include_auto_created=True)
        if model._meta.managed and not model._meta.proxy
    ]


def restart_counting() -> None:
    """Number rows from one again on SQLite, as it does by itself where a test is rolled back."""
    if connection.vendor == "sqlite":
        with connection.cursor() as cursor:
            cursor.execute("DELETE FROM sqlite_sequence")


@pytest.fixture(scope="session")
def django_db_setup(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[None]:
    """Keep what migrations wrote; close every connection to the database at the end.

    A test that commits is followed by a flush, which deletes roles, content types and permissions
    too. They are restored here: Django's own receivers would ask for each of them, app by app.
    """
    with django_db_blocker.unblock():
        written = all_rows()
    last_app = [each for each in apps.get_app_configs() if each.models_module is not None][-1]

    def restore(sender: AppConfig, **_: object) -> None:
        if sender is last_app:
            restart_counting()
            with transaction.atomic():
                for rows in filter(None, written):
                    type(rows[0])._base_manager.bulk_create(rows, ignore_conflicts=True)

    post_migrate.disconnect(dispatch_uid="django.contrib.auth.management.create_permissions")
    post_migrate.disconnect(create_contenttypes)
    post_migrate.connect(restore)
    yield
    post_migrate.disconnect(restore)
    if connection.vendor == "postgresql":
        with django_db_blocker.unblock(), connection.cursor() as cursor:
            cursor.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )


@pytest.fixture(scope="session")
def redis_of_the_session(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[str, Iterator[int]]]:
    """Run one Redis per test process; each test uses another database of it."""
    with redis_server(tmp_path_factory.mktemp("redis")) as url:
        yield url, itertools.cycle(range(N_REDIS_DATABASES))


@pytest.fixture(scope="session")
def redis_to_empty(redis_of_the_session: tuple[str, Iterator[int]]) -> Iterator[Redis]:
    """Give a client that stays connected, to empty one database after the other."""
    with Redis.from_url(redis_of_the_session[0], single_connection_client=True) as client:
        yield client


@pytest.fixture
def redis_url(
    redis_of_the_session: tuple[str, Iterator[int]],
    redis_to_empty: Redis,
    settings: Settings,
) -> Iterator[str]:
    """Give an empty Redis; the settings point to it. Nothing is known of its runs."""
    WATCHES.clear()
    server, numbers = redis_of_the_session
    number = next(numbers)
    settings.REDIS_URL = settings.CELERY_BROKER_URL = url = f"{server}/{number}"
    redis_to_empty.select(number)
    redis_to_empty.flushdb()
    yield url
    redis_to_empty.flushdb()


@pytest.fixture
def redis(redis_url: str) -> Iterator[Redis]:
    """Give a client of that Redis."""
    with Redis.from_url(redis_url) as client:
        yield client


@pytest.fixture
def hot(redis: Redis) -> HotStore:
    """Give a hot store over that Redis, as the settings open it too."""
    return HotStore(redis)


@pytest.fixture
def address(transactional_db: None, redis_url: str) -> Iterator[str]:
    """Run a web server, streams included; gives its address without a slash."""
    with served() as url:
        yield url


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Run one Chromium per test process; gives the address of its debugger."""
    folder = tmp_path_factory.mktemp("chromium")
    command = [CHROMIUM, *CHROMIUM_FLAGS, "--remote-debugging-port=0", f"--user-data-dir={folder}"]
    with (folder / "log").open("wb") as log:
        program = subprocess.Popen(
            command,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=os.environ | {"TMPDIR": str(folder)},
        )
    try:
        # It writes its port there once it listens.
        port, deadline = folder / "DevToolsActivePort", time.monotonic() + CHROMIUM_WITHIN_S
        while not (port.exists() and port.read_text().count("\n")):
            assert program.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < deadline, (folder / "log").read_text()
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port.read_text().split()[0]}"
    finally:
        program.terminate()
        program.wait()


@pytest.fixture(scope="module")
def browser(chromium: str) -> Iterator[Browser]:
    """Connect to Chromium, per module: while it lasts, Playwright's loop occupies this thread."""
    with sync_playwright() as playwright:
        connected = playwright.chromium.connect_over_cdp(chromium)
        yield connected
        connected.close()  # Removes its folder, too.


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """Open a fresh tab without cookies; an error on the page's console fails the test."""
    errors: list[str] = []
    context = browser.new_context(viewport={"width": 1280, "height": 900}, timezone_id="UTC")
    tab = context.new_page()
    tab.on("pageerror", lambda error: errors.append(str(error)))
    tab.on("framenavigated", lambda _: errors.append(LEFT))
    tab.on("console", lambda line: errors.append(line.text) if line.type == "error" else None)
    yield tab
    context.close()
    assert real_errors([*errors, LEFT]) == []


@pytest.fixture
def run(db: None) -> Run:
    """Make a run of four nodes."""
    return Run.objects.create(
        name="llama",
        team="LLM",
        model="llama2-7b",
        instance_type="trn1.32xlarge",
        n_nodes=4,
        tp=8,
        seq_len=4096,
        global_batch=1024,
        usd_per_node_hour=21.5,
        price_basis="on demand",
        phase=Run.Phase.TRAINING,
        phase_since=NOON,
        started_at=NOON,
    )


def _node(run: Run, rank: int, name: str) -> Node:
    """Make one node of the run."""
    return Node.objects.create(
        name=name,
        instance_type=run.instance_type,
        source=Node.Source.SIMULATED,
        shard=f"{run.name}/0",
        run=run,
        rank=rank,
        n_cores=32,
        n_devices=16,
        n_efa=8,
        first_seen_at=NOON,
    )


@pytest.fixture
def steady(run: Run) -> Node:
    """Make a healthy node."""
    return _node(run, 0, "steady")


@pytest.fixture
def limping(run: Run) -> Node:
    """Make a node that computes slowly."""
    return _node(run, 1, "limping")


@pytest.fixture
def silent(run: Run, hot: HotStore) -> Node:
    """Make a node that does not report, although trnwatch has watched for an hour."""
    hot.gauge("listening_since_s", time.time() - 3_600)
    hot.gauge("watched_at_s", time.time() + 60)
    return _node(run, 2, "silent")


@pytest.fixture
def hot_node(run: Run) -> Node:
    """Make a node that is throttled because it is hot."""
    return _node(run, 3, "hot")
