"""Rows of reported runs and their nodes, created and updated by step reports."""

import math
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from django.db import transaction

from fleet.ingest.rows import check_room
from fleet.models import Node, Run
from fleet.models.filters import merged_labels
from fleet.runs.prices import (
    AS_REPORTED,
    entries,
    is_priced,
    opening_price,
    with_nodes,
    with_prices,
)
from fleet.runs.retirement import BACK
from fleet.runs.state import KEEP_S
from telemetry import catalog
from telemetry.ingest.lines import RefusedError
from telemetry.ingest.step_reports import RunLine, WorkerLine
from telemetry.ingest.timing import shard_of
from telemetry.store.hot import HotStore

NOT_REPORTED = "not reported"
NO_PRICE = "no price known"
# A limit, so that one token cannot fill the database; retired runs do not count.
MAX_RUNS = 4_000
SHAPE = ("params", "layers", "hidden")
RECIPE = ("cp", "micro_batch", "recompute")
FACTS = (
    *("team", "purpose", "model", "instance_type", "n_nodes", "n_workers"),
    "requires_preflight",
)
SETTINGS = ("compiler_flags", "compiler_version", "sdk_version")
LAYOUT = ("tp", "pp", "seq_len", "global_batch", "precision", "optimizer")
LENGTH = ("tokens_per_epoch", "planned_tokens")

NEW_RUN: dict[str, Any] = {
    "model": NOT_REPORTED,
    "instance_type": NOT_REPORTED,
    "n_nodes": 1,
    "seq_len": 0,
    "global_batch": 0,
    "precision": "bf16",
    "usd_per_node_hour": 0.0,
    "price_basis": NO_PRICE,
}

AUTO = "auto"


@transaction.atomic
def refresh_run(report: RunLine, *, now: datetime) -> Run:
    """Create or update the run of a report; facts that the report lacks stay unchanged.

    Raises RefusedError if the name belongs to a simulated or imported run.
    """
    run = Run.objects.select_for_update().filter(name=report.run).first()
    in_use = Run.objects.unretired().exclude(session="")
    if (run is None or run.retired_at) and in_use.count() >= MAX_RUNS:
        reason = (
            f"{report.run} is new or retired, and {MAX_RUNS:,} runs are all we take; "
            "retire those that are over"
        )
        raise RefusedError("run", reason)
    if run is None:
        at = datetime.fromtimestamp(report.at, UTC) if report.at else now
        return Run.objects.create(
            **NEW_RUN
            | _given(report, (*FACTS, *LAYOUT, *LENGTH, *SETTINGS))
            | _price(report, None, now=now)
            | {
                "name": report.run,
                "session": report.session,
                "shape": _given(report, SHAPE),
                "recipe": _given(report, RECIPE) or None,
                "labels": merged_labels({}, report.labels or {}),
                # Until the first step.
                "phase": Run.Phase.COMPILING,
                "phase_since": min(at, now),
                "started_at": min(at, now),
                "heard_at": now,
            }
        )
    if not run.is_reported:
        kind = "a simulated" if run.is_simulated else "an imported"
        raise RefusedError("run", f"{report.run} is {kind} run; report under another name")
    facts = _given(report, (*FACTS, *LAYOUT, *LENGTH, *SETTINGS))
    changes = facts | _price(report, run, now=now)
    shape = (run.shape or {}) | _given(report, SHAPE)
    if shape != run.shape:
        changes["shape"] = shape
    if recipe := _given(report, RECIPE):
        changes["recipe"] = (run.recipe or {}) | recipe
    if report.labels:
        changes["labels"] = merged_labels(run.labels, report.labels)
    if run.retired_at:
        changes |= BACK
        if run.phase == Run.Phase.FAILED:
            # It was silent, and goes on.
            changes |= {"phase": Run.Phase.COMPILING, "phase_since": now, "finished_at": None}
            changes["end_reason"] = ""
    changed = [name for name, value in changes.items() if getattr(run, name) != value]
    for name in changed:
        setattr(run, name, changes[name])
    if changed:
        run.save(update_fields=changed)
    return run


def _given(report: RunLine, names: Iterable[str]) -> dict[str, Any]:
    given = {name: getattr(report, name) for name in names}
    return {name: value for name, value in given.items() if value is not None}


def _price(report: RunLine, run: Run | None, *, now: datetime) -> dict[str, Any]:
    """Return the run's price: as reported, else by contract and catalog at its start.

    A changed price or number of nodes applies from now on; past cost is unchanged.
    """
    if run is None or not is_priced(run):
        if report.usd_per_node_hour:
            return {"usd_per_node_hour": report.usd_per_node_hour, "price_basis": AS_REPORTED}
        at = datetime.fromtimestamp(report.at, UTC) if report.at else now
        began = run.started_at if run else min(at, now)
        kept = run or Run(n_nodes=1)
        price = opening_price(
            kept.team if report.team is None else report.team,
            report.instance_type or kept.instance_type,
            n_nodes=report.n_nodes or kept.n_nodes,
            began=began,
        )
        return price if price["usd_per_node_hour"] or price["tariff"] else {}
    tariff = run.tariff
    if report.n_nodes not in (None, run.n_nodes):
        tariff = with_nodes(run, report.n_nodes or 0, now=now)
    usd = report.usd_per_node_hour
    if usd and usd != run.price_at(now)[0]:
        priced_run = Run(n_nodes=report.n_nodes or run.n_nodes, tariff=tariff or entries(run))
        tariff = with_prices(priced_run, [(now, usd, AS_REPORTED)], now=now)
    return {} if tariff == run.tariff else {"tariff": tariff}


def assign_node(run: Run, report: WorkerLine, *, now: datetime) -> None:
    """Assign a worker's node to the run; a node without an agent gets a row here.

    Raises RefusedError if the node is simulated, or there are too many nodes.
    """
    name = report.runs_on
    node = Node.objects.filter(name=name).first()
    if node is None or node.retired_at:
        check_room(name)
    if node is None:
        instance = catalog.instances().get(run.instance_type)
        node, _ = Node.objects.get_or_create(
            name=name,
            defaults={
                "instance_type": run.instance_type,
                "source": Node.Source.STEPS,
                "shard": shard_of(name),
                "n_cores": instance.n_cores if instance else 0,
                "n_devices": instance.n_devices if instance else 0,
                "n_efa": instance.n_efa if instance else 0,
                "first_seen_at": now,
            },
        )
    if node.source == Node.Source.SIMULATED:
        raise RefusedError("node", f"{name} is a simulated node; report under another name")
    # Of several workers of a node the first has its rank.
    is_first = report.worker.partition("/")[2] in ("", "0")
    rank = report.rank if is_first and report.rank is not None else node.rank
    if (node.run_id, node.rank) != (run.pk, rank) or node.retired_at:
        Node.objects.filter(pk=node.pk).update(run=run, rank=rank, **BACK)


def tokens_of(run: Run) -> float:
    """Return the tokens per step from batch and sequence length, NaN if unknown."""
    return float(run.global_batch * run.seq_len) or math.nan


def starts_key(run: str) -> str:
    return f"steps-in:starts:{run}"


def _next_start(name: str) -> int:
    """Return the number of a start where Redis knows none: the last one, or after its end."""
    run = Run.objects.filter(name=name, session__startswith=f"{AUTO}-").first()
    if run is None:
        return 1
    return int(run.session.removeprefix(f"{AUTO}-")) + (run.finished_at is not None)


class SessionResolver:
    """Numbers the starts of a job if no launcher does.

    Every process has a random id (``boot``). It joins the first start that does not have its
    worker yet. The numbers are in Redis, so all web processes agree.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[str, str, str], str] = {}

    def session_of(self, hot: HotStore, report: WorkerLine) -> str:
        if report.session != AUTO or report.boot is None:
            return report.session
        key = (report.run, report.worker, report.boot)
        if key not in self._known:
            if len(self._known) > 50_000:
                self._known.clear()
            self._known[key] = self._joined(hot, *key)
        return self._known[key]

    def _joined(self, hot: HotStore, run: str, worker: str, boot: str) -> str:
        """Assign a worker's process to the first start without this worker."""
        key = starts_key(run)
        joined, newest = hot.execute("HMGET", key, f"boot:{worker}:{boot}", "newest")
        if joined is not None:
            return f"{AUTO}-{int(joined)}"
        start = number = int(newest or _next_start(run))
        while not hot.execute("HSETNX", key, f"taken:{start}:{worker}", boot):
            if hot.execute("HGET", key, f"taken:{start}:{worker}") == boot.encode():
                break
            start += 1
        hot.execute_all(
            [
                ("HSET", key, f"boot:{worker}:{boot}", start),
                ("HSET", key, "newest", max(start, number)),
                ("EXPIRE", key, KEEP_S),
            ]
        )
        return f"{AUTO}-{start}"
