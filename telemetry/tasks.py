"""Celery tasks of telemetry; each connects two stages."""

import math
import time

import msgspec
from celery import shared_task
from django.conf import settings

from telemetry.blocks import Block, Span
from telemetry.simulate.background import stopped
from telemetry.simulate.observation import HELD, PROBED, next_report, reported_live
from telemetry.simulate.plan import Plan
from telemetry.simulate.shard import PlayedShard, RunClock, play, resume, start_clock
from telemetry.store import durable
from telemetry.store.durable import fold_late
from telemetry.store.hot import HotStore, StoreUnavailable, hot_store
from telemetry.store.node_state import (
    note_stopping,
    read_agent_requests,
    read_sidecars,
    save_sidecars,
)

# Ticks missed for at most so long are made up for; beyond it the gap stays a gap.
CATCH_UP_S = 120
# A tick that took longer than this from its second to the store is late, and counted.
LATE_AFTER_S = 1.5
# Minutes are written down once late reports have had this long to arrive.
SETTLE_S = 10
ROLL_UP_LAST_S = 5 * 60
ROLLED_UP_TO = "rolled_up_to"


# A tick that has waited longer than this expires; the next one catches up.
@shared_task(ignore_result=True, expires=10)
def start_tick() -> None:
    """Request every shard of every simulated run up to this second."""
    until = int(time.time())
    for run, shard in shards_due(hot_store()):
        simulate_shard.apply_async((run, shard, until))


def shards_due(hot: HotStore) -> list[tuple[str, str]]:
    """Run and name of every simulated shard."""
    plans = hot.plans().items()
    return [
        (run, shard)
        for run, plan in plans
        for shard in msgspec.json.decode(plan, type=Plan).shards
    ]


@shared_task(
    ignore_result=True,
    expires=10,
    autoretry_for=(StoreUnavailable,),
    max_retries=3,
    retry_backoff=True,
)
def simulate_shard(run: str, shard: str, until: int) -> None:
    """Play one shard up to a second and store it. Idempotent."""
    hot = hot_store()
    encoded = hot.plan(run)
    if encoded is None:
        return
    plan = msgspec.json.decode(encoded, type=Plan)
    before = hot.clock(shard)
    clock = start_clock(plan) if before is None else msgspec.json.decode(before, type=RunClock)
    if clock.tick >= until:
        return
    n_missed = until - clock.tick - 1
    if n_missed > CATCH_UP_S:
        clock = resume(clock, until - 1)
    observed = observe(hot, plan, shard, clock, until)
    if observed is None:
        return
    played, blocks = observed
    until, n_missed = played.clock.tick, max(0, n_missed - plan.inputs.agent_every_s + 1)
    # Steps are the whole run's, whichever shard is played: the first one brings them in.
    steps = played.steps if shard == plan.shards[0] else None
    after = msgspec.json.encode(played.clock)
    if not hot.commit(shard, before=before, after=after, blocks=blocks, steps=steps):
        hot.count("ticks_raced")
        return
    if settings.REQUEST_PROBES and plan.inputs.agent and not plan.inputs.is_scraped:
        answer_requested_probes(hot, played.span)
    hot.execute_all(note_stopping(stopped(plan, until, within_s=until - clock.tick), now_s=until))
    lateness_s = time.time() - until
    hot.gauge("tick_lateness_s", lateness_s)
    hot.count("ticks", len(blocks))
    hot.count("ticks_late", n_missed + (lateness_s > LATE_AFTER_S))


def observe(
    hot: HotStore, plan: Plan, shard: str, clock: RunClock, until: int
) -> tuple[PlayedShard, tuple[Block, ...]] | None:
    """Play a shard to its newest report, and return it with the blocks it reports.

    None where no report is over yet: agents report every few seconds at most input tiers.
    """
    inputs = plan.inputs
    if inputs.is_full:
        played = play(plan, shard, clock, until)
        return played, tuple(played.span.blocks())
    phase = plan.shards.index(shard)
    last = next_report(inputs, phase, until) - inputs.agent_every_s
    if last <= clock.tick:
        return None
    played = play(plan, shard, clock, last)
    if not inputs.agent:
        return played, ()
    before = hot.window(shard, HELD, start=clock.tick, end=clock.tick).of(played.span.nodes)
    last_values = {name: values[0] for name, values in before.values.items() if values.shape[2]}
    return played, tuple(reported_live(inputs, played.span, phase, last_values).blocks())


def answer_requested_probes(hot: HotStore, truth: Span) -> None:
    """Let the simulated agents of some nodes answer the probes that were requested of them.

    A probe measures the newest second. A device that is down, and a node that is silent, answers
    nothing.
    """
    agents = read_sidecars(hot, "agent", truth.nodes)
    if PROBED not in truth.values or not len(truth.ticks):
        return
    newest = truth.values[PROBED][-1]
    ports = [{"device": f"efa{i}", "index": i} for i in range(newest.shape[1])]
    unknown = [node for node in truth.nodes if node not in agents]
    sent: list[tuple[str, dict[str, object]]] = [(n, {"agent": {}, "efa": ports}) for n in unknown]
    for node, requests in read_agent_requests(hot, ["probe"], truth.nodes).items():
        request = requests["probe"]
        measured = enumerate(newest[truth.nodes.index(node)].tolist())
        latency_s = {f"efa{i}": value_s for i, value_s in measured if math.isfinite(value_s)}
        if latency_s and (agents.get(node, {}).get("probe") or {}).get("id") != request["id"]:
            sent.append(
                (node, {"agent": {"probe": {"id": request["id"], "latency_s": latency_s}}})
            )
    save_sidecars(hot, sent)


@shared_task(ignore_result=True, expires=60)
def roll_up() -> None:
    """Store the latest complete minutes. Idempotent."""
    hot = hot_store()
    end = (int(time.time()) - SETTLE_S) // 60 * 60
    # After an outage of everything, from where it was left, as far as the hot tier still has it.
    left_at = int(hot.execute("GET", ROLLED_UP_TO) or end)
    oldest = -(-(end - settings.HOT_KEEP_S) // 60) * 60
    start = max(oldest, min(end - ROLL_UP_LAST_S, left_at))
    for shard in hot.shards():
        durable.write_rollups(hot.window(shard, (), start=start, end=end - 1))
    for run in {*hot.plans(), *hot.active_runs(since_s=start)}:
        durable.write_steps(hot.steps(run, since_s=start, until_s=end))
    fold_late(hot, now_s=time.time())
    hot.execute("SET", ROLLED_UP_TO, end)


@shared_task(ignore_result=True, expires=600)
def forget() -> None:
    """Delete what is older than the retention."""
    durable.delete_older_than(settings.DURABLE_KEEP_DAYS)
