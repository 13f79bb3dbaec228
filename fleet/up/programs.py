"""The programs that make up a running trnwatch: web, workers, beat and sender."""

import sys
from collections.abc import Mapping

from fleet.up.keeper import Program

WORKERS = ("worker-1", "worker-2")


def web(*, listener: int) -> Program:
    """Return the web server, which inherits the listening socket.

    While it starts again after a fall, callers wait in the socket's queue and are not refused.
    """
    options = (
        *("--fd", str(listener)),
        *("--timeout-graceful-shutdown", "2"),
        *("--log-level", "warning"),
        *("--http", "fleet.api.connections:LimitedProtocol"),
        "--no-server-header",
        # fleet/asgi.py reads them, from trusted proxies alone.
        "--no-proxy-headers",
    )
    command = (sys.executable, "-m", "uvicorn", "fleet.asgi:application", *options)
    return Program("web", command, pass_fds=(listener,))


def worker(name: str) -> Program:
    """Return one Celery worker; one process each, so the keeper sees every one that dies."""
    options = (
        *("--pool", "solo"),
        *("--hostname", f"{name}@trnwatch"),
        *("--loglevel", "WARNING"),
        "--without-gossip",
        "--without-mingle",
        "--without-heartbeat",
    )
    return Program(name, (*_celery(), "worker", *options))


def beat() -> Program:
    """Return Celery's clock."""
    return Program("beat", (*_celery(), "beat", "--pidfile", "", "--loglevel", "WARNING"))


def sender() -> Program:
    """Return what sends notifications, and watches the watching from outside Celery."""
    return Program("sender", (sys.executable, "manage.py", "send_notifications"))


def asked_for(env: Mapping[str, str]) -> list[Program]:
    """Return what runs only where a setting asks for it: the writer to the long-term store."""
    if not (env.get("LONG_TERM_WRITE_URL") or env.get("LONG_TERM_WRITE_URL_FILE")):
        return []
    return [Program("long-term", (sys.executable, "manage.py", "write_long_term"))]


def _celery() -> tuple[str, ...]:
    """Return the start of every Celery command."""
    return (sys.executable, "-m", "celery", "--quiet", "--app", "fleet.celery")
