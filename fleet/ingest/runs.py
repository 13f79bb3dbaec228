"""Rows of reported runs and their nodes, created and updated by step reports."""

import math
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from itertools import chain
from typing import Any

from django.db import transaction
from django.db.models import Q

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
from fleet.runs.state import KEEP_S, members_of
from telemetry import catalog
from telemetry.ingest.lines import RefusedError
from telemetry.ingest.step_reports import RunLine, StepLine, WorkerLine
from telemetry.ingest.timing import shard_of
from telemetry.store.hot import HotStore
from trnwatch.identity import shortened

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
# What was read of a run is read again after this time.
REFRESH_S = 60.0
MAX_KNOWN = 50_000


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


def assign_node(hot: HotStore, run: Run, report: WorkerLine, *, now: datetime) -> None:
    """Assign a worker's node to the run; a node without an agent gets a row here.

    A node that several runs use at once belongs to the largest, of equals to the newest.
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
    if node.run_id != run.pk and _is_kept(hot, node, run, now_s=now.timestamp()):
        return
    # Of several workers of a node the first has its rank.
    is_first = report.worker.partition("/")[2] in ("", "0")
    rank = report.rank if is_first and report.rank is not None else node.rank
    if (node.run_id, node.rank) != (run.pk, rank) or node.retired_at:
        Node.objects.filter(pk=node.pk).update(run=run, rank=rank, **BACK)


def known_name(name: str, *, now: datetime) -> str:
    """Return the name of a node that its training job calls by its instance id.

    Its agent or a label may give it another name. What was stored under the id before that was
    known is retired.
    """
    heard = Node.objects.unretired().filter(source=Node.Source.NEURON_MONITOR)
    names = heard.filter(Q(name=name) | Q(instance_id=name)).order_by("-pk")
    known = list(names.values_list("name", flat=True))
    if not known or name in known:
        return name
    by_job = Node.objects.unretired().filter(name=name, source=Node.Source.STEPS)
    by_job.update(run=None, retired_at=now)
    return known[0]


def _is_kept(hot: HotStore, node: Node, run: Run, *, now_s: float) -> bool:
    """Whether a node stays with its run, which reports from it too, when ``run`` does."""
    its = node.run
    if its is None or (its.n_nodes, its.started_at) <= (run.n_nodes, run.started_at):
        return False
    members = members_of(hot, its.name, its.session).values()
    heard_s = (m.heard_s for m in members if m.node == node.name and not m.ended)
    return now_s - max(heard_s, default=-math.inf) < REFRESH_S


def tokens_of(run: Run) -> float:
    """Return the tokens per step from batch and sequence length, NaN if unknown."""
    return float(run.global_batch * run.seq_len) or math.nan


def starts_key(run: str) -> str:
    return f"steps-in:starts:{run}"


def _start_name(session: str, number: int) -> str:
    if session == AUTO:
        return f"{AUTO}-{number}"
    return session if number == 1 else f"{shortened(session, 50)}:{number}"


def _newest_start(run: str, session: str, newest: int) -> int:
    """Return a session's newest start: in Redis, or by the run's row where that knows a newer."""
    row, prefix = Run.objects.filter(name=run).first(), _start_name(session, 2)[:-1]
    if row is None:
        return max(newest, 1)
    number = row.session.removeprefix(prefix) if row.session.startswith(prefix) else ""
    known = int(number) if number.isdecimal() else int(row.session == session)
    return known + (row.finished_at is not None) if known > newest else max(newest, 1)


class SessionResolver:
    """Numbers the starts of a job, also those within what its launcher calls one session.

    Every process has a random id (``boot``). The next process of a worker, or of a rank, begins
    the next start. A process belongs to the start in which it ends its first step, and to the
    newest until then: workers come back one by one, and some more than once. The numbers are in
    Redis, so all web processes agree; what is known here is looked up there again every
    ``REFRESH_S``.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._known: dict[tuple[str, str, str, str], tuple[float, int]] = {}

    def session_of(self, hot: HotStore, report: WorkerLine, *, now_s: float) -> str:
        if report.boot is None:
            return report.session
        key = (report.run, report.session, report.worker, report.boot)
        at_s, known = self._known.get(key, (-math.inf, 0))
        if self._monotonic() - at_s < REFRESH_S:
            return _start_name(report.session, known)
        start, trains = _join(hot, report, known, now_s=now_s)
        if trains:
            if len(self._known) > MAX_KNOWN:
                self._known.clear()
            self._known[key] = self._monotonic(), start
        return _start_name(report.session, start)


def _has_place(hot: HotStore, report: WorkerLine, start: int, *, now_s: float) -> bool:
    """Whether no other process has its name in a start, nor its rank, whatever its node.

    That of one that says to be the only worker may be unknown: others may be of its job. It has no
    place where all of them have stopped.
    """
    key, taken = starts_key(report.run), f"taken:{report.session}:{start}:"
    names, n_workers = [report.worker], report.n_workers or 0
    if report.rank is not None and n_workers > 1:
        names.append(f"rank {report.rank}")
    elif report.rank is not None and n_workers == 1:
        members = members_of(hot, report.run, _start_name(report.session, start))
        others = [member for name, member in members.items() if name != report.worker]
        if others and all(now_s - member.heard_s > REFRESH_S for member in others):
            return False
    return all(
        hot.execute("HSETNX", key, taken + name, report.boot)
        or hot.execute("HGET", key, taken + name) == str(report.boot).encode()
        for name in reversed(names)
    )


def _join(hot: HotStore, report: WorkerLine, known: int, *, now_s: float) -> tuple[int, bool]:
    """Return the start of a worker's process, and whether it has made a step in it.

    ``known`` is what it was when Redis still knew it, 0 for none.
    """
    key, session, worker = starts_key(report.run), report.session, report.worker
    process = f"{session}:{worker}:{report.boot}"
    names = (f"boot:{process}", f"steps:{process}", f"newest:{session}")
    joined, stepped, last = hot.execute("HMGET", key, *names)
    before = int(joined or known)
    if stepped is not None:
        return before, True
    newest = int(last or 0)
    start = known or (newest if before else _newest_start(report.run, session, newest))
    while not _has_place(hot, report, start, now_s=now_s):
        if before:
            # The worker has another process by now.
            start = before
            break
        start += 1
    trains = bool(known) or isinstance(report, StepLine)
    fields = {names[0]: start} | ({names[1]: 1} if trains else {})
    fields |= {names[2]: start} if start > newest else {}
    hot.execute("HSET", key, *chain.from_iterable(fields.items()))
    hot.execute("EXPIRE", key, KEEP_S)
    return start, trains
