"""Count the product's modules in which a function runs along three paths through trnwatch.

`python tools/files_touched.py` plays them in this process, on a temporary SQLite and Redis, and
prints one line each: the path, a tab, the number. `--names` lists the modules.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
RECORDING = ROOT / "tests/telemetry/ingest/data/trn2.48xlarge.ndjson"
FOLDERS = ("drills", "fleet", "importers", "telemetry", "trnwatch")
PRODUCT = tuple(f"{ROOT}/{folder}/" for folder in FOLDERS)
# A node that has been silent for so long raises an alert.
SILENT_S = 40


@contextmanager
def modules_run() -> Iterator[set[str]]:
    """Collect the files of the product in which a function runs, in all threads started now."""
    files: set[str] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_name != "<module>":
            files.add(frame.f_code.co_filename)

    touched: set[str] = set()
    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield touched
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
        touched |= {file.removeprefix(f"{ROOT}/") for file in files if file.startswith(PRODUCT)}


@contextmanager
def installation() -> Iterator[None]:
    """Prepare a small demo fleet in a temporary folder, with its own Redis."""
    from fleet.ops.embedded_redis import REDIS_SERVER

    with tempfile.TemporaryDirectory(prefix="trnwatch-paths-") as folder:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        options = ("--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", folder)
        redis = subprocess.Popen([REDIS_SERVER, *options], stdout=subprocess.DEVNULL)
        try:
            while socket.socket().connect_ex(("127.0.0.1", port)):
                time.sleep(0.02)
            clean = {"DATABASE_URL", "TRNWATCH_ALLOWED_HOSTS"}
            for name in clean & set(os.environ):
                del os.environ[name]
            os.environ |= {
                "TRNWATCH_DATA_DIR": folder,
                "REDIS_URL": f"redis://127.0.0.1:{port}/0",
                "TRNWATCH_DEMO": "1",
                "DJANGO_SETTINGS_MODULE": "fleet.settings",
            }
            prepare()
            yield
        finally:
            redis.terminate()
            redis.wait()
            shutil.rmtree(folder, ignore_errors=True)


def prepare() -> None:
    """Make the tables and a fleet with a short history."""
    import django

    django.setup()
    from django.core.management import call_command

    from fleet.celery import app

    app.conf.task_always_eager = True
    with Path(os.devnull).open("w") as quiet:
        call_command("migrate", verbosity=0)
        call_command("prepare_demo", hours=0.02, stdout=quiet)
    # The first visit imports the views; what runs on import is no part of a path.
    get("/runbooks/hang/")


def get(path: str) -> None:
    """Visit a page from this machine."""
    from django.test import Client

    response = Client(headers={"host": "localhost"}).get(path)
    assert response.status_code == 200, f"{path}: {response.status_code}"


def keep_one_run() -> None:
    """Leave one healthy run of the fleet, and play its first seconds."""
    from django.conf import settings

    from fleet.models import Alert, Run, Trial
    from fleet.simulation.runs import publish_plans
    from telemetry.store.hot import open_store
    from telemetry.tasks import start_tick

    Trial.objects.all().delete()
    Alert.objects.all().delete()
    Run.objects.exclude(name="longctx").delete()
    hot = open_store(settings.REDIS_URL, keep_s=settings.HOT_KEEP_S)
    for run in hot.plans():
        if run != "longctx":
            hot.drop_plan(run)
    publish_plans(hot, now=datetime.now(UTC))
    start_tick()
    time.sleep(1)


def tick_to_overview() -> None:
    """Simulate a second, evaluate it, and open the overview."""
    from fleet.tasks import watch_fleet
    from telemetry.tasks import start_tick

    start_tick()
    watch_fleet()
    get("/")


class Webhook(BaseHTTPRequestHandler):
    """Accepts one notification, then ends the sender."""

    def do_POST(self) -> None:
        self.send_response(200)
        self.end_headers()
        os.kill(os.getpid(), signal.SIGTERM)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


def monitor_line_to_webhook() -> None:
    """Post a report of a node that is silent afterwards, and send the alert about it."""
    from django.conf import settings
    from django.core.management import call_command
    from django.test import Client

    from fleet.access.tokens import make_token
    from fleet.alerts.evaluate import watch
    from fleet.models import Receiver, Route
    from telemetry.store.hot import open_store

    now = datetime.now(UTC)
    server = HTTPServer(("127.0.0.1", 0), Webhook)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    receiver = Receiver.objects.create(
        name="hook",
        kind="webhook",
        target=f"http://127.0.0.1:{server.server_port}/",
        created_at=now,
    )
    route, _ = Route.objects.get_or_create(is_default=True, defaults={"name": "default"})
    route.group_wait_s = 0
    route.save()
    route.receivers.set([receiver])
    _, secret = make_token("node", "ingest", days=None, now=now)
    line = {
        "at": now.timestamp() - SILENT_S,
        "seq": 1,
        "stream": "recording-1",
        "report": json.loads(RECORDING.read_text().splitlines()[0]),
    }
    with modules_run() as touched:
        response = Client(headers={"host": "localhost"}).post(
            "/api/v1/ingest/neuron-monitor?node=real",
            json.dumps(line),
            content_type="application/x-ndjson",
            headers={"Authorization": f"Bearer {secret}"},
        )
        assert response.status_code == 200, response.content
        hot = open_store(settings.REDIS_URL, keep_s=settings.HOT_KEEP_S)
        for second in range(SILENT_S):
            watch(hot, now=now + timedelta(seconds=second))
        call_command("send_notifications")
    server.shutdown()
    report("a neuron-monitor line to a webhook", touched)


def trial_page() -> None:
    """Compute the trials, and open the page of one."""
    from django.conf import settings

    from fleet.trials.services import update_due_figures
    from telemetry.store.hot import open_store

    hot = open_store(settings.REDIS_URL, keep_s=settings.HOT_KEEP_S)
    update_due_figures(hot, now=datetime.now(UTC) + timedelta(minutes=5))
    get("/trials/vit-bakeoff/")


def report(path: str, touched: set[str]) -> None:
    """Print one line of the table."""
    print(f"files from {path}\t{len(touched)}")
    if "--names" in sys.argv:
        print(*sorted(touched), sep="\n")


def main() -> None:
    """Play the paths, and print how many files each touches."""
    with installation():
        with modules_run() as touched:
            trial_page()
        report("a trial's computation to its page", touched)
        keep_one_run()
        with modules_run() as touched:
            tick_to_overview()
        report("a simulated tick to the overview", touched)
        monitor_line_to_webhook()


if __name__ == "__main__":
    main()
