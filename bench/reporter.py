"""Cost of the reporter per training step, against an empty context manager."""

import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext

from django.conf import settings

from bench.ingest import web_server
from bench.table import print_table
from fleet.models import Token
from telemetry.store.hot import open_store
from tests.helpers import just_now
from trnwatch import Reporter

# Steps come in bursts, with time between them for what is sent in the background, as in life.
N_STEPS, ROUNDS, PAUSE_S = 200, 10, 0.3
N_FILLED = 12_000
MICRO = 1e6
SETTLED_S = 20.0


def measure(env: Mapping[str, str]) -> None:
    """Time steps with nothing, idle and reporting reporters around them; print all."""
    _, secret = Token.issue("bench", Token.Scope.INGEST, now=just_now())
    with web_server(dict(env), secret) as site:
        who = {"TRNWATCH_RUN": "bench", "TRNWATCH_NODE": "bench", "TRNWATCH_SESSION": "1"}
        server = f"http://127.0.0.1:{site.port}"
        idle = Reporter("", env=who)
        reporting = Reporter(server, token=secret, env=who)
        away = Reporter("http://127.0.0.1:1", token=secret, env=who)
        for _ in range(N_FILLED):
            _step(away)
        rows = [
            ("an empty context manager", _us(_nothing)),
            ("reporter of a process that does not report", _us(lambda: _step(idle))),
            ("reporter", _us(lambda: _step(reporting))),
            ("reporter, the server away and its queue full", _us(lambda: _step(away))),
            ("reporter, with input and two collectives timed", _us(lambda: _parts(reporting))),
        ]
        paced = _paced(reporting)
        reporting.finish()
    print_table("Reporter: per step", [(name, f"{us:.2f} us") for name, us in rows] + paced)


def _nothing() -> None:
    with nullcontext():
        pass


def _step(reporter: Reporter) -> None:
    with reporter.step():
        pass


def _parts(reporter: Reporter) -> None:
    with reporter.step() as step:
        with step.input():
            pass
        with step.collective():
            pass
        with step.collective():
            pass


def _us(run: Callable[[], None]) -> float:
    """Return the microseconds that a call takes: the best of some rounds."""
    best_s = float("inf")
    for _ in range(ROUNDS):
        time.sleep(PAUSE_S)
        began_s = time.perf_counter()
        for _ in range(N_STEPS):
            run()
        best_s = min(best_s, time.perf_counter() - began_s)
    return best_s / N_STEPS * MICRO


def _paced(reporter: Reporter) -> list[tuple[str, str]]:
    """Return the CPU of the whole process for steps of 0.1 s, over some seconds."""
    n, began_s, cpu_s = 0, time.monotonic(), time.process_time()
    while time.monotonic() - began_s < SETTLED_S:
        _parts(reporter)
        n += 1
        time.sleep(0.1)
    used = (time.process_time() - cpu_s) / (time.monotonic() - began_s)
    hot = open_store(settings.REDIS_URL)
    n_kept = hot.totals().steps.get("bench", 0)
    return [
        (f"CPU of a process with {n / SETTLED_S:.0f} steps a second", f"{used:.2%} of a core"),
        ("steps in the store by then", f"{n_kept:,}"),
    ]
