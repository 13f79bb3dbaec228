"""Retire nodes and runs that will not report again; the next report of one brings it back."""

from datetime import UTC, datetime, timedelta

from fleet.models import Node, Run
from fleet.runs.annotations import annotate_phase
from fleet.runs.state import reporting_nodes
from telemetry.errors import FieldError
from telemetry.store.hot import HotStore
from telemetry.store.reading import AGENT_BACK_S, AGENT_RESTART_S, STOPPING

# The fields of a row that reports again.
BACK = {"retired_at": None, "retired_by": ""}
# Ingest remembers rows for a minute: one that still reports would stay retired that long.
REPORTS_WITHIN = timedelta(minutes=2)
HOUR = timedelta(hours=1)


def retire(hot: HotStore, row: Node | Run, *, by: str, now: datetime) -> bool:
    """Retire a node or a run; False if it is retired already. Raises FieldError as below."""
    if isinstance(row, Run):
        return retire_run(row, by=by, now=now)
    return retire_node(hot, row, by=by, now=now)


def retire_node(hot: HotStore, node: Node, *, by: str, now: datetime) -> bool:
    """Retire a node; False if it is retired already.

    Raises FieldError where it reported in the last two minutes, or a simulated run uses it.
    """
    if node.source == Node.Source.SIMULATED and not node.is_released and node.run:
        raise FieldError("node", f"{node.name} is simulated for {node.run.name}, which is active.")
    seen_s = _last_seen(hot).get(node.name)
    _check_quiet("node", node.name, seen_s, "Stop its agent and its training job first.", now)
    return bool(
        Node.objects.unretired().filter(pk=node.pk).update(retired_at=now, retired_by=by[:150])
    )


def retire_run(run: Run, *, by: str, now: datetime) -> bool:
    """Retire a run, and end it with its last report if it is active; False if it is retired.

    Raises FieldError where it reported in the last two minutes, or is simulated and active.
    """
    ended: dict[str, object] = {}
    was = run.phase
    if run.finished_at is None:
        if run.is_simulated:
            raise FieldError("run", f"{run.name} is simulated and active.")
        heard_s = run.heard_at.timestamp() if run.heard_at else None
        _check_quiet("run", run.name, heard_s, "End its training job first.", now)
        at = max(run.started_at, run.heard_at or now)
        ended = {"phase": Run.Phase.FAILED, "phase_since": at, "finished_at": at}
    as_read = Run.objects.unretired().filter(pk=run.pk, heard_at=run.heard_at)
    if not as_read.update(retired_at=now, retired_by=by[:150], **ended):
        return False
    run.refresh_from_db()
    if ended:
        annotate_phase(run, was=was, at=run.phase_since)
    return True


def _check_quiet(field: str, name: str, seen_s: float | None, remedy: str, now: datetime) -> None:
    age_s = now.timestamp() - (seen_s or 0.0)
    if age_s < REPORTS_WITHIN.total_seconds():
        raise FieldError(field, f"{name} reported {max(0, round(age_s))} s ago. {remedy}")


def unretire(row: Node | Run, *, by: str) -> bool:
    """Bring a row back, whatever it reports; False if it is not retired.

    It is not retired automatically again before its next report.
    """
    retired = type(row)._default_manager.filter(pk=row.pk).exclude(retired_at=None)
    return bool(retired.update(retired_at=None, retired_by=by[:150]))


def retire_quiet(hot: HotStore, *, after: timedelta, now: datetime) -> tuple[int, int]:
    """Store when nodes were last seen; retire real nodes and runs without reports for ``after``.

    Returns how many nodes and runs were retired; with a zero ``after``, none.
    """
    seen, changed = _last_seen(hot), []
    nodes = Node.objects.real().unretired()
    for node in nodes.only("name", "last_seen_at"):
        seen_s = seen.get(node.name)
        known = node.last_seen_at
        newest = (known or now) if seen_s is None else datetime.fromtimestamp(seen_s, UTC)
        if known is None or newest - known >= HOUR:
            node.last_seen_at = newest
            changed.append(node)
    Node.objects.bulk_update(changed, ["last_seen_at"], batch_size=500)
    if not after:
        return 0, 0
    # Who brought a row back is in its `retired_by`.
    automatic = {"retired_by": ""}
    n_nodes = nodes.filter(last_seen_at__lt=now - after, **automatic).update(retired_at=now)
    runs = Run.objects.unretired().filter(is_simulated=False, heard_at__lt=now - after)
    runs = runs.filter(**automatic).exclude(session="")
    return n_nodes, sum(retire_run(run, by="", now=now) for run in runs)


def retire_stopped(hot: HotStore, *, now: datetime) -> None:
    """Retire nodes without an active run whose agent was asked to end and is not back.

    They were shut down, as when a fleet shrinks. The agent of an active run's node is missed.
    """
    until_s = now.timestamp() - AGENT_BACK_S
    due = ("ZRANGEBYSCORE", STOPPING, "-inf", until_s, "WITHSCORES")
    stopped = {name.decode(): float(at_s) for name, at_s in hot.execute(*due, withscores=True)}
    if not stopped:
        return
    seen = hot.last_seen()
    gone = [name for name, at_s in stopped.items() if seen.get(name, 0.0) <= at_s]
    idle = Node.objects.real().unretired().exclude(run__in=Run.objects.active())
    idle.filter(name__in=gone, retired_by="").update(retired_at=now)
    # The agent of an active run's node may be back until then.
    hot.execute("ZREMRANGEBYSCORE", STOPPING, "-inf", now.timestamp() - AGENT_RESTART_S)


def _last_seen(hot: HotStore) -> dict[str, float]:
    """Return when each node's agent or training job last reported, in Unix seconds."""
    seen: dict[str, float] = dict(hot.last_seen())
    for name, at_s in reporting_nodes(hot).items():
        seen[name] = max(seen.get(name, 0.0), at_s)
    return seen
