"""Celery tasks of telemetry; each connects two stages."""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby

import msgspec
from celery import shared_task
from django.conf import settings

from telemetry.blocks import Block, Span
from telemetry.simulate.background import stopped
from telemetry.simulate.observation import HELD, PROBED, next_report, reported_live
from telemetry.simulate.plan import Plan
from telemetry.simulate.shard import PlayedShards, RunClock, play_together, resume, start_clock
from telemetry.store import durable
from telemetry.store.hot import ClockChange, HotStore, StoreUnavailable, hot_store
from telemetry.store.node_state import (
    REQUESTED,
    note_stopping,
    read_agent_requests,
    read_sidecars,
    save_sidecars,
)

# Ticks missed for at most so long are made up for; beyond it the gap stays a gap.
CATCH_UP_S = 120
# A tick that took longer than this from its second to the store is late, and counted.
LATE_AFTER_S = 1.5
# A shard that lagged by more than this says nothing of its nodes until it has caught up.
LAGS_S = 5
# Minutes are written down once late reports have had this long to arrive.
SETTLE_S = 10
# Where no mark says what came late, as after a loss of Redis, so much is read again.
UNMARKED_S = 5 * 60
# For so long a turn takes late minutes: it is repeated each 60 s.
FOLD_S = 30
# A turn of merging old minutes is short: roll-ups wait for it. One node's day takes 50 ms, so that
# turns of 10 s each 5 minutes are enough for 50,000 nodes.
MERGE_EVERY_S, MERGE_S = 300, 10
ROLLED_UP_TO = "rolled_up_to"
# A hash: the simulated shards whose nodes have said that they have an agent.
WITH_AGENTS = "sidecar:simulated"
# A message costs 3.5 ms to queue and to take (measured), a run 2 ms and 1,000 nodes 6 ms to play:
# so much is one task. A task takes 30 ms, and two workers share a large fleet.
BATCH_NODES, BATCH_RUNS = 4_096, 16
# Neighbouring shards are played in one pass of so many nodes times ticks: arrays of 4 MB each.
PASS_NODE_TICKS = 4_096
PLANS_REMEMBERED = 1_024


# A tick that has waited longer than this expires; the next one catches up.
@shared_task(ignore_result=True, expires=10)
def start_tick() -> None:
    """Request every shard of every simulated run."""
    for batch in batches_due(hot_store()):
        simulate_shards.apply_async((batch,))


# Shards of one run, by the run's name.
Batch = list[tuple[str, list[str]]]


def batches_due(hot: HotStore) -> list[Batch]:
    """Divide all simulated shards into tasks."""
    batches: list[Batch] = []
    n_nodes = BATCH_NODES
    for run, encoded in hot.plans().items():
        plan = plan_in(encoded)
        shards, at_once = plan.shards, max(1, BATCH_NODES // plan.shard_size)
        for first in range(0, len(shards), at_once):
            some = list(shards[first : first + at_once])
            more = min(plan.run.nodes, len(some) * plan.shard_size)
            if n_nodes + more > BATCH_NODES or len(batches[-1]) == BATCH_RUNS:
                batches.append([])
                n_nodes = 0
            batches[-1].append((run, some))
            n_nodes += more
    return batches


@lru_cache(maxsize=PLANS_REMEMBERED)
def plan_in(encoded: bytes) -> Plan:
    """Decode a plan, once per change."""
    return msgspec.json.decode(encoded, type=Plan)


@dataclass(frozen=True, slots=True)
class Tick:
    """One shard, played: what to store of it, and how many ticks it made up for."""

    plan: Plan
    truth: Span
    change: ClockChange
    since: int
    until: int
    n_late: int

    @property
    def n_node_ticks(self) -> int:
        return len(self.truth.nodes) * (self.until - self.since)


@shared_task(
    ignore_result=True,
    expires=10,
    autoretry_for=(StoreUnavailable,),
    max_retries=3,
    retry_backoff=True,
)
def simulate_shards(batch: Batch, until: int | None = None) -> None:
    """Play shards up to a second, by default this one, and store them. Idempotent.

    A task that has waited brings them to the present, and those that waited behind it do nothing.
    """
    hot = hot_store()
    until = int(time.time()) if until is None else until
    plans = hot.plans_of([run for run, _ in batch])
    clocks = hot.clocks([shard for run, shards in batch if run in plans for shard in shards])
    waiting: list[Tick] = []
    errors: list[Exception] = []
    for run, shards in batch:
        if run not in plans:
            continue
        try:
            for ticks in played_passes(hot, plan_in(plans[run]), shards, clocks, until):
                waiting += ticks
                # Few round trips, and little in memory when much is made up for.
                if sum(tick.n_node_ticks for tick in waiting) >= PASS_NODE_TICKS:
                    store_ticks(hot, waiting)
                    waiting = []
        except StoreUnavailable:
            raise
        except Exception as error:
            # It stops no other run of the batch; a second later it is tried again.
            error.add_note(f"while playing {run} up to {until}")
            errors.append(error)
    store_ticks(hot, waiting)
    if errors:
        raise ExceptionGroup("could not play all runs", errors)


def store_ticks(hot: HotStore, ticks: Sequence[Tick]) -> None:
    """Commit shards, and count them."""
    if not ticks:
        return
    counts: dict[str, float] = dict.fromkeys(("ticks", "ticks_late", "ticks_raced"), 0)
    stretches: set[tuple[str, int, int]] = set()
    stopping: list[tuple[object, ...]] = []
    lateness_s, probed = [], list[Span]()
    answers = hot.commit_ticks([tick.change for tick in ticks])
    for tick, written in zip(ticks, answers, strict=True):
        if not written:
            counts["ticks_raced"] += 1
            continue
        inputs, run = tick.plan.inputs, tick.plan.run.name
        if settings.REQUEST_PROBES and inputs.agent and not inputs.is_scraped:
            probed.append(tick.truth)
        if (stretch := (run, tick.since, tick.until)) not in stretches:
            stretches.add(stretch)
            stops = stopped(tick.plan, tick.until, within_s=tick.until - tick.since)
            stopping += note_stopping(stops, now_s=tick.until)
        lateness_s.append(time.time() - tick.until)
        counts["ticks"] += len(tick.change.blocks)
        counts["ticks_late"] += tick.n_late + (lateness_s[-1] > LATE_AFTER_S)
    if stopping:
        hot.execute_all(stopping)
    answer_requested_probes(hot, probed)
    gauges = {"tick_lateness_s": max(lateness_s)} if lateness_s else {}
    if any(tick.n_late > LAGS_S for tick in ticks):
        gauges["caught_up_at_s"] = time.time()
    hot.note(counts, gauges)


def played_passes(
    hot: HotStore,
    plan: Plan,
    shards: Sequence[str],
    clocks: Mapping[str, bytes | None],
    until: int,
) -> Iterator[list[Tick]]:
    """Play shards of one run, in passes over neighbours of one clock."""
    first_shard = plan.shards[0]
    for before, group in groupby(shards, key=clocks.__getitem__):
        clock = start_clock(plan) if before is None else msgspec.json.decode(before, type=RunClock)
        if clock.tick >= until:
            continue
        n_missed = until - clock.tick - 1
        if n_missed > CATCH_UP_S:
            clock = resume(clock, until - 1)
        # Shards that do not report each second report at times of their own.
        width = plan.shard_size * (until - clock.tick) if plan.inputs.is_full else PASS_NODE_TICKS
        alike, at_once = list(group), max(1, PASS_NODE_TICKS // width)
        for first in range(0, len(alike), at_once):
            some = alike[first : first + at_once]
            observed = observe(hot, plan, some, clock, until)
            if observed is None:
                continue
            played, blocks = observed
            n_late = max(0, n_missed - plan.inputs.agent_every_s + 1)
            after = msgspec.json.encode(played.clock)
            # Steps are the whole run's, whichever shard is played: the first one brings them in.
            yield [
                Tick(
                    plan,
                    span,
                    ClockChange(
                        span.shard,
                        before,
                        after,
                        its,
                        played.steps if span.shard == first_shard else None,
                    ),
                    since=clock.tick,
                    until=played.clock.tick,
                    n_late=n_late,
                )
                for span, its in zip(played.spans, blocks, strict=True)
            ]


def observe(
    hot: HotStore, plan: Plan, shards: Sequence[str], clock: RunClock, until: int
) -> tuple[PlayedShards, list[tuple[Block, ...]]] | None:
    """Play shards to their newest report, and return them with the blocks that each reports.

    None where no report is over yet: agents report every few seconds at most input tiers, and the
    nodes of a shard together. There one shard is played.
    """
    inputs = plan.inputs
    if inputs.is_full:
        played = play_together(plan, shards, clock, until)
        return played, [tuple(span.blocks()) for span in played.spans]
    [shard] = shards
    phase = plan.shards.index(shard)
    last = next_report(inputs, phase, until) - inputs.agent_every_s
    if last <= clock.tick:
        return None
    played = play_together(plan, shards, clock, last)
    if not inputs.agent:
        return played, [()]
    [span] = played.spans
    before = hot.window(shard, HELD, start=clock.tick, end=clock.tick).of(span.nodes)
    last_values = {name: values[0] for name, values in before.values.items() if values.shape[2]}
    return played, [tuple(reported_live(inputs, span, phase, last_values).blocks())]


def answer_requested_probes(hot: HotStore, truths: Sequence[Span]) -> None:
    """Let the simulated agents of these shards answer the probes that were requested of them.

    A probe measures the newest second. A device that is down, and a node that is silent, answers
    nothing.
    """
    able = [truth for truth in truths if PROBED in truth.values and len(truth.ticks)]
    if not able:
        return
    known, requested = hot.execute_all(
        [
            ("HMGET", WITH_AGENTS, *(truth.shard for truth in able)),
            ("ZRANGEBYSCORE", REQUESTED.format(kind="probe"), time.time(), "+inf"),
        ]
    )
    asked = {node.decode() for node in requested}
    sent: list[tuple[str, dict[str, object]]] = []
    for truth, is_known in zip(able, known, strict=True):
        if not is_known:
            ports = [{"device": name, "index": i} for i, name in enumerate(efa_names(truth))]
            agents = read_sidecars(hot, "agent", truth.nodes)
            unknown = (node for node in truth.nodes if node not in agents)
            sent += [(node, {"agent": {}, "efa": ports}) for node in unknown]
        if not asked.isdisjoint(truth.nodes):
            sent += answers_of(hot, truth, [node for node in truth.nodes if node in asked])
    save_sidecars(hot, sent)
    if new := [truth.shard for truth, is_known in zip(able, known, strict=True) if not is_known]:
        hot.execute("HSET", WITH_AGENTS, *(part for shard in new for part in (shard, 1)))


def answers_of(
    hot: HotStore, truth: Span, asked: Sequence[str]
) -> list[tuple[str, dict[str, object]]]:
    """Return what the agents of these nodes measure, unless they have answered already."""
    newest, names = truth.values[PROBED][-1], efa_names(truth)
    agents = read_sidecars(hot, "agent", asked)
    sent: list[tuple[str, dict[str, object]]] = []
    for node, requests in read_agent_requests(hot, ["probe"], asked).items():
        number = requests["probe"]["id"]
        measured = zip(names, newest[truth.nodes.index(node)].tolist(), strict=True)
        latency_s = {name: value_s for name, value_s in measured if math.isfinite(value_s)}
        if latency_s and (agents.get(node, {}).get("probe") or {}).get("id") != number:
            sent.append((node, {"agent": {"probe": {"id": number, "latency_s": latency_s}}}))
    return sent


def efa_names(truth: Span) -> list[str]:
    return [f"efa{i}" for i in range(truth.values[PROBED].shape[2])]


@shared_task(ignore_result=True, expires=60)
def roll_up() -> None:
    """Store the minutes that are complete since the last time, and late ones. Idempotent."""
    hot, *others = hot_store().parts
    end = (int(time.time()) - SETTLE_S) // 60 * 60
    with rolled_up(hot, end=end) as start:
        late = durable.take_late_steps(hot)
        for run in {*hot.plans(), *hot.active_runs(since_s=start), *late}:
            since = min(start, late.get(run, start))
            if since < end:
                durable.write_steps(hot.steps(run, since_s=since, until_s=end))
        durable.stored_late_steps(hot)
    # One that is missing is rolled up later, from where it was left.
    for other in others:
        with suppress(StoreUnavailable), rolled_up(other, end=end):
            pass


@contextmanager
def rolled_up(hot: HotStore, *, end: int) -> Iterator[int]:
    """Store the minutes of one store's shards; yield from when on, and remember it at the end."""
    # After an outage of everything, from where it was left, as far as the hot tier still has it.
    left_at, begun = hot.execute("MGET", ROLLED_UP_TO, durable.BEGUN)
    oldest = -(-(end - settings.HOT_KEEP_S) // 60) * 60
    # Without a mark nothing knows what came late.
    since = end if left_at is None else int(left_at)
    start = max(oldest, since if begun else min(since, end - UNMARKED_S))
    durable.begin_roll_up(hot, end=end)
    if start < end:
        for shard in hot.shards():
            durable.write_rollups(hot.window(shard, (), start=start, end=end - 1))
    yield start
    # After an outage many came late: the next turn goes on.
    until_s = time.time() + FOLD_S
    while durable.fold_late(hot, now_s=time.time()) == durable.MAX_AT_ONCE:
        if time.time() > until_s:
            break
    hot.execute("SET", ROLLED_UP_TO, end)


@shared_task(ignore_result=True, expires=MERGE_EVERY_S)
def merge_old_hours() -> None:
    """Merge minutes of more than two days ago, for some seconds. Idempotent."""
    until_s = time.monotonic() + MERGE_S
    durable.merge_old_hours(now_s=time.time(), until_s=until_s, clock=time.monotonic)


@shared_task(ignore_result=True, expires=600)
def forget() -> None:
    """Delete what is older than the retention."""
    durable.delete_older_than(settings.DURABLE_KEEP_DAYS)
