"""Ask the agents of weakly suspected nodes for one EFA probe, and store the results.

A node is asked once for an alert, and once in ten minutes. Only the operator's setting
``TRNWATCH_REQUEST_PROBES`` allows it, and an agent runs nothing but its own probe command.
"""

from collections.abc import Collection
from datetime import datetime, timedelta

from django.conf import settings
from django.db import transaction

from fleet.alerts.events import Kind, note
from fleet.formatting import counted, listed, seconds
from fleet.models import Alert, Node, ProbeRequest
from telemetry.detect.causes import UNKNOWN
from telemetry.store.hot import HotStore
from telemetry.store.node_state import forget_probe_request, read_sidecars, save_probe_request

# Causes that telemetry cannot separate further.
WEAK = ("network", "slow_compute", UNKNOWN)
MAX_SUSPECTS = 3
# At most this many requests in QUIET, in the whole fleet, and one of a node.
MAX_REQUESTS, QUIET = 20, timedelta(minutes=10)


def update_probe_requests(hot: HotStore, *, now: datetime) -> None:
    """Store answers that have arrived; request probes for new alerts."""
    if settings.REQUEST_PROBES:
        _record_results(hot, now=now)
        _request(hot, now=now)


def _record_results(hot: HotStore, *, now: datetime) -> None:
    waiting = ProbeRequest.objects.filter(
        answered_at=None, requested_at__gt=now - ProbeRequest.WAIT
    )
    requests = list(waiting.select_related("alert"))
    agents = read_sidecars(hot, "agent", {request.node for request in requests})
    for request in requests:
        answer = agents.get(request.node, {}).get("probe") or {}
        if answer.get("id") != request.pk:
            continue
        latency_s = answer.get("latency_s") or {}
        reason = "" if latency_s else (answer.get("reason") or "no result")[:200]
        with transaction.atomic():
            still = ProbeRequest.objects.filter(pk=request.pk, answered_at=None)
            if still.update(answered_at=now, reason=reason, latency_s=latency_s):
                request.latency_s = latency_s
                text = f"{request.node}: {_result(request) or f'no result: {reason}'}"
                note(request.alert, Kind.PROBED, now=now, text=text)
        forget_probe_request(hot, request.node)


def _result(request: ProbeRequest) -> str:
    if request.median_s is None:
        return ""
    devices = counted(len(request.latency_s), "device")
    return f"EFA latency {seconds(request.median_s)}, median of {devices}"


def _request(hot: HotStore, *, now: datetime) -> None:
    alerts = Alert.objects.open().filter(
        cause__in=WEAK, probe_requests=None, fired_at__gt=now - QUIET
    )
    recent = set(
        ProbeRequest.objects.filter(requested_at__gt=now - QUIET).values_list("node", flat=True)
    )
    for alert in alerts.select_related("node").order_by("fired_at", "pk"):
        suspects, peer = _nodes_to_probe(hot, alert, without=recent)
        wanted = [*suspects, *peer]
        if not suspects or len(recent) + len(wanted) > MAX_REQUESTS:
            continue
        recent |= set(wanted)
        with transaction.atomic():
            rows = [
                ProbeRequest.objects.get_or_create(
                    alert=alert, node=name, defaults={"requested_at": now, "is_peer": name in peer}
                )
                for name in wanted
            ]
            if any(is_new for _, is_new in rows):
                text = f"EFA latency of {listed(suspects)}"
                text += f", and of {peer[0]} to compare" if peer else ""
                note(alert, Kind.PROBE_REQUESTED, now=now, text=text)
        for row, is_new in rows:
            if is_new:
                wait_s = int(ProbeRequest.WAIT.total_seconds())
                save_probe_request(hot, row.node, row.pk, wait_s=wait_s)


def _nodes_to_probe(
    hot: HotStore, alert: Alert, *, without: Collection[str]
) -> tuple[list[str], list[str]]:
    """Return the suspects to probe, and one other node of their run if there is any.

    Only real nodes with an agent are probed.
    """
    accused = alert.nodes
    if not accused:
        return [], []
    real = Node.objects.filter(source=Node.Source.NEURON_MONITOR).exclude(name__in=without)
    runs = real.filter(name__in=accused).values_list("run", flat=True)
    others = real.filter(run__in=[run for run in runs if run is not None])
    others = others.exclude(name__in=accused).order_by("rank", "name")
    names = [*real.filter(name__in=accused).values_list("name", flat=True)[:MAX_SUSPECTS]]
    peers = [*others.values_list("name", flat=True)[:MAX_SUSPECTS]] if names else []
    agents = read_sidecars(hot, "agent", [*names, *peers])
    return [name for name in names if name in agents], [n for n in peers if n in agents][:1]
