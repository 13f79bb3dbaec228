"""Lives of real jobs, report by report: which alerts fire, after how long, and what is wrong.

Eight nodes of a simulated run send what agents and worker hooks would, in played time, through
ingest, watchers and alerts. Each life has a habit or an accident of healthy jobs. Then a core of a
node slows down: that must be named, and nothing before it may page.
"""

import json
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import msgspec
import numpy as np
from django.conf import settings
from django.core.management import call_command
from redis import Redis

from bench.installation import ROOT
from bench.table import print_table
from fleet.alerts.evaluate import WATCHES
from fleet.alerts.watchers import watch_runs
from fleet.ingest.nodes import NodeIngest, store_batches
from fleet.ingest.phases import update_reported_runs
from fleet.ingest.steps import StepIngest
from fleet.models import Alert
from telemetry.agent.sender import CATCH_UP_S, MAX_LINES
from telemetry.blocks import FloatArray
from telemetry.ingest.lines import Refusals
from telemetry.simulate.inputs import tier_named
from telemetry.simulate.plan import Fault, Plan, RunSpec
from telemetry.simulate.shard import play, start_clock
from telemetry.steps import StepBatch
from telemetry.store.hot import HotStore
from tests.helpers import NOON_S, Clock
from trnwatch.wire import backoff_s

N, DEVICES, CORES, EFAS = 8, 16, 2, 8  # nodes; of a trn1.32xlarge
ALL = tuple(range(N))
FAULT_S, FAULT_SLOT, UNTIL_S, NAMED_WITHIN_S = 720, 2, 840, 60
AGENT_SENDS_EVERY_S, BEATS_EVERY_S, WATCHED_EVERY_S, KEEP_S = 5, 10, 2, 900
SEED = 5
FOREVER = math.inf
RUN = RunSpec(
    name="n",
    model="llama2-7b",
    instance="trn1.32xlarge",
    nodes=N,
    tp=8,
    seq_len=4096,
    global_batch=128,
    compile_s=0,
)
ABOUT = {"model": RUN.model, "tp": RUN.tp, "seq_len": RUN.seq_len, "global_batch": 128}
# What the slow core may be called: waiting cores are busy, and hooks alone see no node.
SLOW = ("slow_compute", "slow_core", "throttle", "hbm_slow", "unknown")
SAMPLE = ROOT / "tests/telemetry/ingest/data/trn1.32xlarge.ndjson"
NOTHING = np.zeros(1)
EFA = {
    "tx_bytes": "efa_tx_bytes_per_s",
    "rx_bytes": "efa_rx_bytes_per_s",
    "tx_pkts": "efa_tx_packets_per_s",
    "retrans_pkts": "efa_retransmits_per_s",
    "rx_drops": "efa_drops_per_s",
}


@dataclass(frozen=True, slots=True)
class Start:
    """One start of a job: when, its nodes in order of rank, and how its steps are numbered."""

    from_s: float = 0
    until_s: float = FOREVER
    slots: Sequence[int] = ALL
    session: str = "auto"
    shift: int = 0
    run: str = "real"
    ends: bool = False


@dataclass(slots=True)
class Steps:
    """What a habit changes: arrays (n_steps, n_workers) of seconds, and tokens (n_steps,).

    ``compute`` is a factor. ``own`` is what a worker does beside its step while others wait, and
    no hook sees; ``parts`` are what hooks see, by field of the report.
    """

    compute: FloatArray
    own: FloatArray
    tokens: FloatArray
    parts: dict[str, FloatArray] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Life:
    """A habit or an accident. ``allows`` are alerts it may raise, as "cause severity".

    ``heard`` are the spans in which each node's agent runs; processes with ``tags`` name their run
    there. ``pauses`` are those in which jobs stand still, ``away`` those in which trnwatch does.
    Nothing arrives then, nor of ``cut_slots`` while ``cut_off``; each sender tries again as a
    real one does.
    """

    text: str
    starts: Sequence[Start] = (Start(),)
    heard: Mapping[int, Sequence[tuple[float, float]]] = field(default_factory=dict)
    skew_s: Callable[[int, float], float] = lambda slot, at_s: 0.0
    hooks: Sequence[int] = ALL
    agents: bool = True
    tags: bool = False
    every_s: int = 1
    away: tuple[float, float] = (FOREVER, FOREVER)
    cut_off: tuple[float, float] = (FOREVER, FOREVER)
    cut_slots: Sequence[int] = ALL
    pauses: tuple[float, float] = (FOREVER, FOREVER)
    emptied_s: float = FOREVER
    replaced: tuple[int, float] = (-1, FOREVER)
    habit: Callable[[Steps], None] | None = None
    allows: Sequence[str] = ()
    tier: str = "agent_collectives"
    refuses: bool = False


ENDED = ("workers_ended warn",)


def accumulates(steps: Steps) -> None:
    """Four micro-batches, eight from step 60 on, four again from 120 on."""
    steps.compute[60:120] *= 2
    steps.tokens[60:120] *= 2


def evaluates(steps: Steps) -> None:
    steps.parts["other_s"] = np.zeros_like(steps.own)
    steps.parts["other_s"][24::25] = 30.0


def saves_on_first_rank(steps: Steps) -> None:
    """Save under `if rank == 0`, for longer than a hang needs; the others wait for it."""
    steps.parts["checkpoint_s"] = np.zeros_like(steps.own)
    steps.parts["checkpoint_s"][39::60, 0] = 90.0


def saves_while_training(steps: Steps) -> None:
    steps.own[19::20] += 0.3
    steps.compute[20::20] *= 1.06


def logs_on_first_rank(steps: Steps) -> None:
    steps.own[9::10, 0] += 0.6


def restarts_loaders(steps: Steps) -> None:
    steps.parts["input_s"] = np.zeros_like(steps.own)
    steps.parts["input_s"][39::40] = 8.0


def compiles_again(steps: Steps) -> None:
    """Meet new shapes: often at first, then seldom; all workers compile at once."""
    steps.own[[3, 5, 9, 60, 130]] += 45.0


def profiles(steps: Steps) -> None:
    steps.own[49::50] += 6.0
    steps.compute[48::50] *= 1.3


def warms_up(steps: Steps) -> None:
    """Batches grow with the schedule: from a quarter to the whole over forty steps."""
    grows = np.clip(0.25 + 0.75 * np.arange(len(steps.tokens)) / 40, None, 1.0)
    steps.compute *= grows[:, None]
    steps.tokens *= grows


def varies_batches(steps: Steps) -> None:
    """Batches of sequences that are not packed: each step has other tokens, and takes as long."""
    share = 1.0 + 0.1 * np.random.default_rng(SEED).standard_normal(len(steps.tokens))
    steps.compute *= share[:, None]
    steps.tokens *= share


HOOKS = Life("", agents=False, tier="hooks_only")
LIVES = {
    "plain": Life("nothing happens"),
    "late_agents": Life(
        "agents begin one by one", heard={i: [(30 + 25 * i, FOREVER)] for i in ALL}
    ),
    "rolling_agents": Life(
        "agents are updated one by one, 40 s each",
        heard={i: [(0, 200 + 45 * i), (240 + 45 * i, FOREVER)] for i in ALL},
        allows=("node_silent warn",),
    ),
    "restart_ranks": Life(
        "a restart gives other ranks",
        (Start(until_s=300), Start(380, slots=(7, 1, 5, 3, 4, 2, 6, 0), shift=-20)),
        allows=ENDED,
    ),
    "replacement": Life(
        "a node dies, the job resumes with another",
        (Start(until_s=300), Start(400, shift=-20)),
        heard={6: [(0, 305), (330, FOREVER)]},
        replaced=(6, 310),
        allows=("node_crash page", "node_silent warn", *ENDED),
    ),
    "preemption": Life(
        "preempted, resumes on other nodes",
        (Start(until_s=250, slots=(0, 1, 2, 3)), Start(400, slots=(4, 2, 5, 6), shift=-20)),
        allows=ENDED,
    ),
    "elastic": Life(
        "8, 6 and again 8 nodes",
        (
            Start(until_s=220),
            Start(260, 420, slots=(0, 1, 2, 3, 4, 5), shift=-10),
            Start(460, shift=-20),
        ),
        allows=ENDED,
    ),
    "watcher_restart": Life("watchers stop for a minute", away=(400, 460)),
    "outage": Life("trnwatch is away for three minutes", away=(300, 480)),
    # That nothing is heard pages: the rule monitoring_blind.
    "cut_off": Life(
        "no report arrives for two minutes", cut_off=(300, 420), allows=("unknown page", *ENDED)
    ),
    "brief_cut_off": Life("no report arrives for 10 s", cut_off=(300, 310)),
    "rack_cut_off": Life(
        "a rack of two nodes is cut off for a minute",
        cut_off=(300, 360),
        cut_slots=(0, 1),
        allows=("node_silent page", "node_silent warn"),
    ),
    "emptied": Life("Redis loses everything", emptied_s=400),
    "two_jobs": Life(
        "one job after the other", (Start(until_s=300, ends=True), Start(350, run="second"))
    ),
    "one_name": Life(
        "two jobs with one name",
        (Start(slots=(0, 1, 2, 3)), Start(200, slots=(4, 5, 6, 7), shift=-40)),
        refuses=True,
    ),
    "slow_reports": Life("reports come each 30 s", every_s=30),
    "silent_worker": Life("one worker has no hooks", hooks=(0, 1, 2, 3, 4, 6, 7)),
    "first_rank": Life("rank 0 alone has hooks, all processes tags", hooks=(0,), tags=True),
    "clocks": Life(
        "two clocks are wrong", skew_s=lambda slot, at_s: {4: 90.0, 2: -45.0}.get(slot, 0.0)
    ),
    "clock_set": Life(
        "a clock is set", skew_s=lambda slot, at_s: 40.0 if slot == 4 and at_s < 400 else 0.0
    ),
    "stopped": Life("SIGSTOP for two minutes", pauses=(300, 420), allows=("hang page", *ENDED)),
    "accumulation": replace(HOOKS, text="accumulation of changing depth", habit=accumulates),
    "evaluation": replace(HOOKS, text="evaluates each 25 steps", habit=evaluates),
    "rank_saves": replace(HOOKS, text="rank 0 saves for all", habit=saves_on_first_rank),
    "async_checkpoints": replace(HOOKS, text="saves while it trains", habit=saves_while_training),
    "logging": replace(HOOKS, text="rank 0 logs each ten steps", habit=logs_on_first_rank),
    "schedule": replace(HOOKS, text="warm-up by batch size", habit=warms_up),
    "batches": replace(HOOKS, text="each step has other tokens", habit=varies_batches),
    "epochs": replace(HOOKS, text="loaders restart each 40 steps", habit=restarts_loaders),
    "recompiles": replace(HOOKS, text="compiles new shapes", habit=compiles_again),
    "profiler": replace(HOOKS, text="profiles each 50th step", habit=profiles),
    "hooks_stopped": replace(
        HOOKS, text="SIGSTOP for two minutes", pauses=(300, 420), allows=("hang page", *ENDED)
    ),
    "hooks_cut_off": replace(
        HOOKS, text="no report arrives for two minutes", cut_off=(300, 420), allows=ENDED
    ),
    "hooks_outage": replace(HOOKS, text="trnwatch is away for three minutes", away=(300, 480)),
    "hooks_clocks": replace(
        HOOKS,
        text="two clocks are wrong",
        skew_s=lambda slot, at_s: {4: 90.0, 2: -45.0}.get(slot, 0.0),
    ),
}
for name in ("preemption", "elastic"):
    LIVES[f"hooks_{name}"] = replace(LIVES[name], agents=False, tier="hooks_only")


@dataclass(slots=True)
class Sender:
    """One sender of a node: its ``lines`` wait until it tries at ``next_s``, a second of the life.

    A request takes ``max_lines``; the rest follows after ``CATCH_UP_S``.
    """

    every_s: float
    next_s: float
    max_lines: int | None = None
    lines: list[bytes] = field(default_factory=list)
    n_failed: int = 0

    def take(self, s: int, jitter: Callable[[], float], *, is_cut_off: bool) -> list[bytes]:
        """Return the lines that arrive now."""
        if s < self.next_s:
            return []
        if is_cut_off and self.lines:
            self.n_failed += 1
            self.next_s = s + max(self.every_s, backoff_s(self.n_failed, jitter=jitter))
            return []
        self.n_failed, sent = 0, self.lines[: self.max_lines]
        self.lines = self.lines[len(sent) :]
        self.next_s = s + (CATCH_UP_S if self.lines else self.every_s)
        return sent


class Player:
    """Plays one life; ``fired`` are its alerts: second, "cause severity", and node."""

    def __init__(
        self, life: Life, hot: HotStore, clock: Clock, *, tier: str = "", until_s: int = UNTIL_S
    ) -> None:
        self.life, self.hot, self.clock, self.until_s = life, hot, clock, until_s
        self.began = int(clock.now_s)
        self.inputs = msgspec.structs.replace(
            tier_named(tier or life.tier), clock_skew_s=0, lost_ratio=0
        )
        slow = Fault(
            kind="slow_core",
            node=RUN.node_name(FAULT_SLOT),
            device=5,
            start_s=FAULT_S,
            duration_s=9000,
            magnitude=1.4,
        )
        # What habits change is not known to simulated hardware.
        faults = (slow,) if life.agents else ()
        plan = Plan(run=RUN, seed=SEED, epoch_s=self.began, faults=faults, inputs=self.inputs)
        [shard] = plan.shards
        played = play(plan, shard, start_clock(plan), self.began + until_s)
        self.span = played.span
        self._time_steps(played.steps)
        self.names = [f"trn-{i:02d}" for i in ALL]
        self.fired: list[tuple[int, str, str]] = []
        self.refused: dict[str, str] = {}
        self.hooks = {i: Sender(life.every_s, life.every_s) for i in ALL}
        every_s = AGENT_SENDS_EVERY_S
        self.agents = {i: Sender(every_s, every_s - i % every_s, MAX_LINES) for i in ALL}
        self.jitter = random.Random(SEED).random
        self.sent_s: dict[tuple[int, int], float] = {}
        self._shown: dict[int, str] = {}
        self._begin()

    def _begin(self) -> None:
        """Start the processes of trnwatch: what they know is in the stores."""
        WATCHES.clear()
        self.steps_in = StepIngest(self.clock)
        self.nodes_in = NodeIngest(keep_s=KEEP_S, late_s=86_400, monotonic=self.clock)

    def _time_steps(self, steps: StepBatch) -> None:
        """Add the habit and the pause to the simulated steps; compute when each ends."""
        parts = {name: values.copy() for name, values in steps.phases.items()}
        shape = parts["compute_s"].shape
        habit = Steps(np.ones(shape), np.zeros(shape), steps.tokens.copy())
        if self.life.habit is not None:
            self.life.habit(habit)
        parts["compute_s"] = parts["compute_s"] * habit.compute + habit.own
        # The others wait; without timed exchanges that is part of their compute.
        waits = "wait_s" if np.isfinite(parts["wait_s"]).any() else "compute_s"
        works_s = parts["compute_s"].copy()
        parts[waits] += habit.own.max(axis=1, keepdims=True) - habit.own
        for name, seconds in habit.parts.items():
            parts[name] = np.nan_to_num(parts[name]) + seconds
            parts[waits] += seconds.max(axis=1, keepdims=True) - seconds
        longest_s = np.nansum([*parts.values()], axis=0).max(axis=1)
        ended_s = steps.ended_at_s - self.began
        if not self.life.agents:
            first_s = float(ended_s[0] - longest_s[0])
            slow = np.where(first_s + np.cumsum(longest_s) > FAULT_S, 1.3, 1.0)
            parts["compute_s"] += (slow[:, None] - 1.0) * works_s
            ended_s = first_s + np.cumsum(np.nansum([*parts.values()], axis=0).max(axis=1))
        stopped_s, on_s = self.life.pauses
        kept = (ended_s < stopped_s) | (ended_s >= on_s)
        if kept[-1] and not kept.all():
            # The step in progress goes on after it.
            [*_, last] = np.flatnonzero(~kept)
            parts["compute_s"][last + 1] += ended_s[last] - ended_s[kept.argmin() - 1]
        self.parts = {name: values[kept] for name, values in parts.items()}
        self.ended_s, self.tokens = ended_s[kept], habit.tokens[kept]

    def play(self) -> "Player":
        hot, life, done = self.hot, self.life, 0
        self._watch_from(self.began - KEEP_S)
        for s in range(1, self.until_s):
            now_s = self.clock.now_s = float(self.began + s)
            if s == life.away[1]:
                self._begin()
            if s == life.emptied_s:
                hot.execute("FLUSHDB")
                self._watch_from(now_s)
            if s == life.replaced[1]:
                self.names[life.replaced[0]] = "trn-99"
            ended = int(np.searchsorted(self.ended_s, s, side="right"))
            self._write_steps(s, range(done, ended))
            self._write_hardware(s)
            done = ended
            self._send_hardware(s)
            self._send_steps(s)
            if s % WATCHED_EVERY_S == 0 and not life.away[0] <= s < life.away[1]:
                at = datetime.fromtimestamp(now_s + 0.5, UTC)
                update_reported_runs(hot, now=at)
                watch_runs(hot, now=at)
                self._note_alerts(s)
        return self

    def _watch_from(self, at_s: float) -> None:
        self.hot.gauge("listening_since_s", at_s)
        self.hot.gauge("watched_at_s", self.clock.now_s)

    def _note_alerts(self, s: int) -> None:
        for alert in Alert.objects.open().select_related("node"):
            what = f"{alert.cause} {alert.get_severity_display()}"
            if self._shown.get(alert.pk) != what:
                self._shown[alert.pk] = what
                self.fired.append((s, what, alert.node.name if alert.node else ""))

    def _write_steps(self, s: int, ended: range) -> None:
        stopped_s, on_s = self.life.pauses
        for k, start in enumerate(self.life.starts):
            slots = [slot for slot in start.slots if slot in self.life.hooks]
            if s == max(1, start.from_s):
                about = {"instance_type": RUN.instance, "n_nodes": len(start.slots), **ABOUT}
                self._add(start, slots[0], {"kind": "run", **about})
            for i in ended:
                step_s = np.nansum([values[i] for values in self.parts.values()], axis=0)
                began_s = self.ended_s[i] - step_s.max()
                if start.from_s <= began_s and self.ended_s[i] <= start.until_s:
                    for slot in slots:
                        who = self._worker(k, start, slot)
                        self._add(start, slot, who | self._step(i, start, slot, step_s[slot]))
                        self.sent_s[k, slot] = s
            is_heard = start.from_s <= s < start.until_s and not stopped_s <= s < on_s
            for slot in slots if is_heard else ():
                # As the package: of a process that reported nothing for so long.
                if s - self.sent_s.get((k, slot), -FOREVER) >= BEATS_EVERY_S:
                    at = self.clock.now_s + self.life.skew_s(slot, s)
                    name, since_s = self._activity(slot, s)
                    doing = {"at": at, "activity": name, "activity_s": s - since_s}
                    self._add(start, slot, self._worker(k, start, slot) | {"kind": "beat"} | doing)
                    self.sent_s[k, slot] = s
            if start.ends and s == start.until_s:
                for slot in slots:
                    self._add(start, slot, self._worker(k, start, slot) | {"kind": "end"})

    def _activity(self, slot: int, s: int) -> tuple[str, float]:
        """Return what a worker does at a second, and since when.

        The parts that hooks see end its step.
        """
        i = int(np.searchsorted(self.ended_s, s, side="right"))
        for name in ("other", "checkpoint") if i < len(self.ended_s) else ():
            part_s = float(np.nan_to_num(self.parts[f"{name}_s"][i, slot]))
            if part_s and self.ended_s[i] - s < part_s:
                return name, float(self.ended_s[i]) - part_s
        return "step", float(self.ended_s[i - 1]) if i else 0.0

    def _add(self, start: Start, slot: int, line: Mapping[str, object]) -> None:
        of = {"run": start.run, "session": start.session}
        self.hooks[slot].lines.append(json.dumps(of | dict(line)).encode())

    def _worker(self, k: int, start: Start, slot: int) -> dict[str, object]:
        return {
            "worker": self.names[slot],
            "node": self.names[slot],
            "boot": f"process-{k}-{slot}",
            "rank": [*start.slots].index(slot),
            "n_workers": len(start.slots),
        }

    def _step(self, i: int, start: Start, slot: int, step_s: float) -> dict[str, object]:
        part = {name: float(values[i, slot]) for name, values in self.parts.items()}
        timed = {name: part[name] for name in ("input_s", "checkpoint_s", "other_s")}
        timed["collective_s"] = part["wait_s"] + part["transfer_s"]
        ended_s = self.ended_s[i]
        return {
            "kind": "step",
            "step": i + 1 + start.shift,
            "ended_at": self.began + ended_s + self.life.skew_s(slot, ended_s),
            "step_s": float(step_s),
            "tokens": float(self.tokens[i]),
        } | {name: seconds for name, seconds in timed.items() if math.isfinite(seconds)}

    def _send_steps(self, s: int) -> None:
        for slot, sender in self.hooks.items():
            if lines := sender.take(s, self.jitter, is_cut_off=self._is_cut_off(slot, s)):
                outcome = self.steps_in.deliver(self.hot, lines, **self._sent(slot, s))
                self._note_refused(slot, outcome)

    def _is_cut_off(self, slot: int, s: int) -> bool:
        spans = [self.life.away, *([self.life.cut_off] if slot in self.life.cut_slots else [])]
        return any(from_s <= s < until_s for from_s, until_s in spans)

    def _sent(self, slot: int, s: int) -> dict[str, Any]:
        now_s = self.clock.now_s
        sent_s = now_s + 0.005 + self.life.skew_s(slot, s)
        return {"arrived_s": now_s + 0.01, "sent_s": sent_s, "up_s": 50_000.0 + s}

    def _note_refused(self, slot: int, outcome: Refusals) -> None:
        for each in outcome.refused:
            self.refused[self.names[slot]] = str(each)

    def _write_hardware(self, s: int) -> None:
        row = self.began + s - int(self.span.ticks[0])
        for slot in ALL if self.life.agents else ():
            spans = self.life.heard.get(slot, [(0, FOREVER)])
            measured = self.span.values["core_utilization_ratio"][row, slot]
            if any(a <= s < z for a, z in spans) and np.isfinite(measured).any():
                busy = any(t.from_s <= s < t.until_s and slot in t.slots for t in self.life.starts)
                busy = busy and not self.life.pauses[0] <= s < self.life.pauses[1]
                values = {name: each[row, slot] for name, each in self.span.values.items()}
                line = node_report(self.names[slot], values, self.inputs.agent_every_s, busy=busy)
                for process in line["report"]["neuron_runtime_data"] if self.life.tags else ():
                    process["neuron_runtime_tag"] = f"run={self.life.starts[0].run}"
                at = self.clock.now_s + self.life.skew_s(slot, s)
                line |= {"at": at, "seq": s, "stream": f"stream-{self.names[slot]}"}
                self.agents[slot].lines.append(json.dumps(line).encode())

    def _send_hardware(self, s: int) -> None:
        batches = []
        for slot, sender in self.agents.items():
            if lines := sender.take(s, self.jitter, is_cut_off=self._is_cut_off(slot, s)):
                batch = self.nodes_in.deliver(lines, node=self.names[slot], **self._sent(slot, s))
                self._note_refused(slot, batch)
                batches.append(batch)
        if batches:
            store_batches(self.hot, batches)

    def wrong(self) -> tuple[list[str], float | None]:
        """Return what is wrong, and after how long the fault was named."""
        wrong, named_s = [], None
        culprit = self.names[FAULT_SLOT] if self.life.agents else ""
        for at_s, what, node in self.fired:
            cause, severity = what.split()
            is_fault = at_s > FAULT_S and cause in SLOW and node in {culprit, ""}
            if is_fault and named_s is None and node == culprit:
                named_s = at_s - FAULT_S
            if not is_fault and what not in self.life.allows:
                place = f" at {node}" if node else ""
                wrong.append(f"false {severity}: {cause}{place} after {at_s} s")
        if self.until_s > FAULT_S + NAMED_WITHIN_S and (named_s or math.inf) > NAMED_WITHIN_S:
            wrong.append("the slow core was not named")
        if self.life.refuses and not self.refused:
            wrong.append("nothing was refused")
        if not self.life.refuses:
            wrong += [f"refused of {name}: {why}" for name, why in self.refused.items()]
        return wrong, named_s


def node_report(
    name: str, values: Mapping[str, FloatArray], period_s: int, *, busy: bool
) -> dict[str, Any]:
    """Return what an agent reports of a node's values (n_parts,): a recorded report with these."""

    def of(metric: str, part: int = 0) -> float:
        parts = values.get(metric, NOTHING)
        value = float(parts[min(part, len(parts) - 1)])
        return value if math.isfinite(value) else 0.0

    report = json.loads(SAMPLE.read_bytes().splitlines()[0])
    report["neuron_runtime_data"] = report["neuron_runtime_data"][:1] * busy
    for process in report["neuron_runtime_data"]:
        counters, executions, memory = (
            process["report"][group]
            for group in ("neuroncore_counters", "execution_stats", "memory_used")
        )
        cores: dict[str, dict[str, float]] = {str(c): {} for c in range(DEVICES * CORES)}
        counters["neuroncores_in_use"] = cores
        held = memory["neuron_runtime_used_bytes"]["usage_breakdown"]["neuroncore_memory_usage"]
        for c, core in cores.items():
            percent = min(100.0, 100 * of("core_utilization_ratio", int(c)))
            core |= {"neuroncore_utilization": percent}
            core |= {"flops": int(of("core_flops_per_s", int(c)))}
            used = of("device_memory_used_bytes", int(c) // CORES) / CORES
            held[c] = held["0"] | {"tensors": int(used)}
        done = period_s * (of("executions_completed_per_s") or 10.0)
        executions["execution_summary"]["completed"] = round(done)
        latencies = {f"p{p}": of(f"execution_latency_p{p}_s") for p in (50, 99, 100)}
        executions["latency_stats"]["total_latency"] = latencies
        for group in process["report"].values():
            if isinstance(group, dict):
                group["period"] = float(period_s)
    system = report["system_data"]
    for d, device in enumerate(system["neuron_hw_counters"]["neuron_devices"]):
        device |= {counter: int(of(counter, d)) for counter in device if "ecc" in counter}
    user = 100 * of("vcpu_usage_ratio") if busy else 1.0
    system["vcpu_usage"]["average_usage"] |= {"user": user, "idle": 100.0 - user}
    report["instance_info"] |= {"instance_id": f"i-{name}", "instance_name": name}
    links = [
        {"device": f"rdmap{i}", "index": i, "port": 1}
        | {
            "increase": {
                of_efa: int(busy * period_s * of(metric, i)) for of_efa, metric in EFA.items()
            }
        }
        for i in range(EFAS)
    ]
    return {"efa": {"period": float(period_s), "devices": links}, "report": report}


def measure(env: Mapping[str, str], *, life: str = "", tier: str = "") -> dict[str, Any]:
    """Play the lives named, by comma, or all; print what fired in each, and what is wrong.

    ``tier`` is that of lives with agents; others have hooks alone.
    """
    rows, played = [], []
    for name in life.split(",") if life else LIVES:
        of = LIVES[name]
        clock = Clock(float(NOON_S))
        hot = HotStore(Redis.from_url(settings.REDIS_URL), now=clock)
        hot.execute("FLUSHDB")
        call_command("flush", interactive=False, verbosity=0)
        player = Player(of, hot, clock, tier=tier if of.agents else "").play()
        wrong, named_s = player.wrong()
        alerts = [
            dict(
                zip(
                    ("after_s", "cause", "severity", "node"), (s, *what.split(), node), strict=True
                )
            )
            for s, what, node in player.fired
        ]
        played.append(
            {"life": name, "text": of.text, "alerts": alerts, "named_after_s": named_s}
            | {"refused": player.refused, "wrong": wrong}
        )
        fired = [f"{what} {node} {s} s" for s, what, node in player.fired]
        rows.append((f"{name}: {of.text}", "; ".join([*(f"WRONG: {w}" for w in wrong), *fired])))
    print_table(f"Lives of real jobs; a core slows down after {FAULT_S} s", rows)
    return {
        "bench": "lives",
        "tier": tier or None,
        "n_wrong": sum(bool(each["wrong"]) for each in played),
        "lives": played,
    }
