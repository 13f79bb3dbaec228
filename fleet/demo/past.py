"""A past for the demo: the same physics, store, detection and alerts, played ahead of time."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise

import msgspec
import numpy as np

from fleet.announced import announced
from fleet.charts.freezing import freeze
from fleet.models import InjectedFault, Run
from fleet.replaying import Replay
from fleet.simulated.following import follow
from fleet.simulated.plans import plan_of
from telemetry.blocks import Span
from telemetry.simulate.shard import Played, play, start_clock
from telemetry.steps import StepBatch
from telemetry.store import durable
from telemetry.store.hot import HotStore
from telemetry.store.playback import Playback

# Quiet hours are thinned to this; around a fault, and while hot, every second is played.
THINNED_S = 10
# An alert's charts begin 300 s before its onset, a close stretch at a whole minute.
BEFORE_FAULT_S = 400
AFTER_FAULT_S = 300
JUDGE_EVERY_S = 5
JUDGE_OPEN_EVERY_S = 20
CARRIED_STEPS = 60


@dataclass(frozen=True, slots=True)
class Stretch:
    """Some of a run's past; a close one is played second by second and watched."""

    start: int
    end: int
    is_close: bool


def stretches(
    start: int, end: int, faults: Sequence[InjectedFault], *, hot_s: int
) -> list[Stretch]:
    """Cut a past at whole minutes into quiet stretches and close ones around each fault.

    A minute is never split, so that each is rolled up from one stretch.
    """
    # One minute more than there are: where the last of them would end.
    minutes = np.arange(start // 60 * 60, end + 61, 60)
    close = minutes >= (end - hot_s) // 60 * 60
    for fault in faults:
        begins, ends = fault.starts_at.timestamp(), fault.ends_at.timestamp()
        close |= (minutes >= begins - BEFORE_FAULT_S) & (minutes < ends + AFTER_FAULT_S)
    cuts = [0, *(np.flatnonzero(np.diff(close)) + 1), len(minutes) - 1]
    return [
        Stretch(max(start, int(minutes[a])), min(end, int(minutes[b]) - 1), bool(close[a]))
        for a, b in pairwise(cuts)
    ]


def live_through(
    hot: HotStore, run: Run, faults: Sequence[InjectedFault], *, now: datetime
) -> None:
    """Play a run from its start to now: rollups, steps, alerts, and at last its clocks."""
    plan, end = plan_of(run, faults, announced(run)), int(now.timestamp())
    clocks = dict.fromkeys(plan.shards, start_clock(plan))
    earlier = StepBatch.empty(run.name, plan.run.node_names)
    for stretch in stretches(plan.epoch_s, end, faults, hot_s=hot.keep_s):
        every_s = 1 if stretch.is_close else THINNED_S
        played = [play(plan, s, clocks[s], stretch.end, every_s=every_s) for s in plan.shards]
        clocks = {s: p.clock for s, p in zip(plan.shards, played, strict=True)}
        _keep(hot, played, is_hot=stretch.end >= end)
        steps = StepBatch.joined([earlier, played[0].steps])
        if stretch.is_close:
            _watch(run, Playback(Span.beside([p.span for p in played]), steps), stretch)
        earlier = steps.last(CARRIED_STEPS)
    for shard, clock in clocks.items():
        hot.commit(shard, before=None, after=msgspec.json.encode(clock), blocks=(), steps=None)
    follow(run, clocks[plan.shards[0]])
    run.clock = msgspec.to_builtins(clocks)
    run.save()


def _keep(hot: HotStore, played: Sequence[Played], *, is_hot: bool) -> None:
    """Store one stretch: for good, and where live pages look if it is recent."""
    for each in played:
        durable.write_rollups(each.span)
        if is_hot:
            hot.append(each.span.blocks())
    durable.write_steps(played[0].steps)
    if is_hot:
        hot.append_steps(played[0].steps)


def _watch(run: Run, played: Playback, stretch: Stretch) -> None:
    """Watch a close stretch as the live fleet is watched, and freeze what it shows."""
    replay, fired = Replay(played, [run]), []
    played.second = stretch.start
    while (second := played.second + _until_next_look(replay)) < stretch.end:
        played.second = second
        fired += replay.look(second)
    played.second = stretch.end
    for alert in {alert.pk: alert for alert in fired if not alert.is_open}.values():
        freeze(played, alert, now=datetime.fromtimestamp(stretch.end, UTC))


def _until_next_look(replay: Replay) -> int:
    return JUDGE_OPEN_EVERY_S if replay.open_rules else JUDGE_EVERY_S
