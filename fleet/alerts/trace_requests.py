"""Ask a job's workers to read the runtime's trace for a minute, on suspicion.

Where the gradient exchange is not timed, all workers of a slow run take the same time, and no node
can be named. A trace shows which worker makes the others wait. Jobs allow it by
``TRNWATCH_RUNTIME_TRACE=request``, the operator by ``TRNWATCH_REQUEST_TRACES``.

A process may end at any line. The request is a row, which is written before anyone is asked; while
it lasts, the workers are asked each second, until the same moment.
"""

from collections import Counter
from datetime import datetime, timedelta
from typing import Protocol

import numpy as np
from django.db import transaction

from fleet.alerts.events import Kind, note
from fleet.alerts.evidence import Evidence
from fleet.alerts.probe_requests import QUIET, SLOW_RUN, WEAK
from fleet.formatting import counted, seconds
from fleet.models import Alert, TraceRequest
from fleet.runs.agent_requests import LiveAgents, is_allowed
from fleet.runs.state import state_of
from telemetry.steps import StepBatch
from telemetry.store.hot import HotStore

# So many steps are traced, within these limits. A worker reads a request with its next report: a
# heartbeat at the latest.
N_STEPS, LEAST_S, MOST_S = 8, 60.0, 300.0
STARTS_WITHIN = timedelta(seconds=12)
# A worker that waits less than this part of what the others do is the one they wait for.
LEAST_WAIT = 0.5
UNEXPLAINED = "no worker reports why: look at a worker's log"


class Reporters(Protocol):
    """The workers of jobs, as far as they trace."""

    def n_tracing(self, run: str) -> int:
        """Count the workers of a run that may be asked."""

    def hand_out(self, request: TraceRequest) -> None:
        """Ask the workers of a run for a trace until it expires; again changes nothing."""

    def steps(self, run: str, *, since_s: float) -> StepBatch: ...

    def problem(self, run: str) -> str:
        """Return why workers of a run have no trace; empty where none says so."""


class LiveReporters(LiveAgents):
    """The reporters that send to this installation; they read requests in its responses."""

    hot: HotStore

    def n_tracing(self, run: str) -> int:
        state = state_of(self.hot, run)
        members = state.members.values() if state else ()
        return sum(member.traces_on_request for member in members)

    def steps(self, run: str, *, since_s: float) -> StepBatch:
        return self.hot.steps(run, since_s=since_s)

    def problem(self, run: str) -> str:
        state = state_of(self.hot, run)
        members = state.members.values() if state else ()
        problems = Counter(member.trace_problem for member in members if member.trace_problem)
        return "".join(
            f"on {counted(n, 'worker')} {problem}" for problem, n in problems.most_common(1)
        )


def update_trace_requests(hot: HotStore, *, now: datetime) -> None:
    """Advance the requested traces where the setting allows them."""
    if is_allowed("trace"):
        advance_traces(LiveReporters(hot, now), now=now)


def advance_traces(reporters: Reporters, *, now: datetime) -> None:
    """Ask the workers of slow runs for a trace, once for each alert, and note what it shows."""
    requests = TraceRequest.objects.unfinished().filter(ends_at__gt=now - QUIET)
    for request in requests.select_related("alert__run", "alert__node"):
        if now <= request.ends_at:
            _ask(reporters, request)
        elif now > request.result_by:
            _conclude(reporters, request, now=now)
    alerts = Alert.objects.open().filter(
        cause__in=WEAK,
        rule__in=SLOW_RUN,
        fired_at__gt=now - QUIET,
        run__isnull=False,
        trace_request=None,
    )
    for alert in alerts.select_related("run", "node"):
        # Of a timed exchange it is known who waits.
        if not (alert.nodes or alert.parts) and alert.evidence.get("kind") == "step":
            _request(reporters, alert, now=now)


def _request(reporters: Reporters, alert: Alert, *, now: datetime) -> None:
    n_workers = 0 if alert.run is None else reporters.n_tracing(alert.run.name)
    if n_workers < 2:
        return
    defaults = {"requested_at": now, "ends_at": now + _length(alert), "n_workers": n_workers}
    with transaction.atomic():
        request, is_new = TraceRequest.objects.get_or_create(alert=alert, defaults=defaults)
        if is_new:
            length = f"{request.lasts.total_seconds():.0f}\u202fs"
            text = f"of {counted(n_workers, 'worker')}, for {length}"
            note(alert, Kind.TRACE_REQUESTED, now=now, text=text)
    _ask(reporters, request)


def _ask(reporters: Reporters, request: TraceRequest) -> None:
    if request.alert.run is not None:
        reporters.hand_out(request)


def _length(alert: Alert) -> timedelta:
    """How long a run is traced: some of its slow steps."""
    step_s = Evidence(alert.evidence).number("step_s") or 0.0
    length_s = STARTS_WITHIN.total_seconds() + N_STEPS * step_s
    return timedelta(seconds=round(min(max(length_s, LEAST_S), MOST_S)))


def _conclude(reporters: Reporters, request: TraceRequest, *, now: datetime) -> None:
    """Note what a trace has shown, unless another process did."""
    alert = request.alert
    result = ""
    if alert.run is not None:
        steps = reporters.steps(alert.run.name, since_s=request.requested_at.timestamp())
        result = _result(steps, is_named=bool(alert.nodes), why=reporters.problem(alert.run.name))
    with transaction.atomic():
        if request.finish(now, result=result) and alert.is_open:
            note(alert, Kind.TRACED, now=now, text=result)


def _result(steps: StepBatch, *, is_named: bool, why: str) -> str:
    """Say what traced steps show; ``is_named``: the alert names a node, ``why``: what failed."""
    waits_s = steps.phases["wait_s"]
    waits_s = waits_s[np.isfinite(waits_s).any(axis=1)]
    if not len(waits_s):
        return f"no traced step has arrived; {why or UNEXPLAINED}"
    traced = f"in {counted(len(waits_s), 'traced step')}"
    if not is_named:
        return (
            f"{traced} no single worker makes the others wait. Look at what all workers share: "
            "the network, the storage, power and cooling"
        )
    known = np.flatnonzero(np.isfinite(waits_s).any(axis=0))
    usual_s = np.nanmedian(waits_s[:, known], axis=0)
    late = int(np.argmin(usual_s))
    others_s = float(np.median(np.delete(usual_s, late))) if len(usual_s) > 1 else 0.0
    if usual_s[late] > LEAST_WAIT * others_s:
        return f"{traced} the waits of the workers are known: see the chart"
    return (
        f"{traced} the others wait for {steps.workers[known[late]]}: they wait "
        f"{seconds(others_s)} per step, it waits {seconds(float(usual_s[late]))}"
    )
