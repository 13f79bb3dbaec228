"""Ask a job's workers to read the runtime's trace for a minute, on suspicion.

Where the gradient exchange is not timed, all workers of a slow run take the same time, and no node
can be named. A trace shows which worker makes the others wait. Jobs allow it by
``TRNWATCH_RUNTIME_TRACE=request``, the operator by ``TRNWATCH_REQUEST_TRACES``.
"""

from datetime import datetime, timedelta
from typing import Protocol

import numpy as np
from django.conf import settings

from fleet.alerts.events import Kind, note
from fleet.alerts.probe_requests import QUIET, SLOW_RUN, WEAK
from fleet.alerts.text import Evidence
from fleet.formatting import counted
from fleet.models import Alert
from fleet.runs.state import request_trace, state_of
from telemetry.steps import StepBatch
from telemetry.store.hot import HotStore

# So many steps are traced, within these limits. A worker reads a request with its next report: a
# heartbeat at the latest. The last steps are assembled so long after the end.
N_STEPS, LEAST_S, MOST_S = 8, 60.0, 300.0
STARTS_WITHIN, ASSEMBLED_WITHIN = timedelta(seconds=12), timedelta(seconds=15)


class Reporters(Protocol):
    """The workers of jobs, as far as they trace."""

    def n_tracing(self, run: str) -> int:
        """Count the workers of a run that may be asked."""

    def request(self, run: str, *, until_s: float) -> None: ...

    def steps(self, run: str, *, since_s: float) -> StepBatch: ...


class LiveReporters:
    """The reporters that send to this installation; they read requests in its responses."""

    def __init__(self, hot: HotStore, now: datetime) -> None:
        self._hot, self._now_s = hot, now.timestamp()

    def n_tracing(self, run: str) -> int:
        state = state_of(self._hot, run)
        members = state.members.values() if state else ()
        return sum(member.traces_on_request for member in members)

    def request(self, run: str, *, until_s: float) -> None:
        request_trace(self._hot, run, until_s=until_s, now_s=self._now_s)

    def steps(self, run: str, *, since_s: float) -> StepBatch:
        return self._hot.steps(run, since_s=since_s)


def update_trace_requests(hot: HotStore, *, now: datetime) -> None:
    """Advance the requested traces where the setting allows them."""
    if settings.REQUEST_TRACES:
        advance_traces(LiveReporters(hot, now), now=now)


def advance_traces(reporters: Reporters, *, now: datetime) -> None:
    """Ask the workers of slow runs for a trace, once for each alert, and note what it shows."""
    alerts = Alert.objects.open().filter(
        cause__in=WEAK, rule__in=SLOW_RUN, fired_at__gt=now - QUIET, run__isnull=False
    )
    for alert in alerts.exclude(events__kind=Kind.TRACED).select_related("run"):
        requested = alert.events.filter(kind=Kind.TRACE_REQUESTED).last()
        if alert.nodes or alert.parts or alert.run is None:
            continue
        if requested is None:
            _request(reporters, alert, now=now)
        elif now > requested.at + _length(alert) + ASSEMBLED_WITHIN:
            steps = reporters.steps(alert.run.name, since_s=requested.at.timestamp())
            _conclude(alert, steps, now=now)


def _request(reporters: Reporters, alert: Alert, *, now: datetime) -> None:
    run = alert.run
    # Of a timed exchange it is known who waits.
    if run is None or alert.evidence.get("kind") != "step":
        return
    n_workers = reporters.n_tracing(run.name)
    if n_workers < 2:
        return
    length = _length(alert)
    text = f"of {counted(n_workers, 'worker')}, for {length.total_seconds():.0f}\u202fs"
    # Asked twice is asked once: a process may end before it has noted it.
    reporters.request(run.name, until_s=(now + length).timestamp())
    note(alert, Kind.TRACE_REQUESTED, now=now, text=text)


def _length(alert: Alert) -> timedelta:
    """How long a run is traced: some of its slow steps."""
    step_s = Evidence(alert.evidence).number("step_s") or 0.0
    seconds = STARTS_WITHIN.total_seconds() + N_STEPS * step_s
    return timedelta(seconds=round(min(max(seconds, LEAST_S), MOST_S)))


def _conclude(alert: Alert, steps: StepBatch, *, now: datetime) -> None:
    """Note that a trace names no node."""
    n_traced = int(np.isfinite(steps.phases["wait_s"]).any(axis=1).sum())
    text = "no traced step has arrived"
    if n_traced:
        text = (
            f"in {counted(n_traced, 'traced step')} no single worker makes the others wait. Look "
            "at what all workers share: the network, the storage, their clocks"
        )
    note(alert, Kind.TRACED, now=now, text=text)
