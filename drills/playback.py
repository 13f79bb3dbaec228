"""Scenarios played ahead of time: what nodes and jobs report, and the alerts about it."""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import lru_cache, partial
from typing import Any, Literal

import numpy as np

from drills.observation import (
    ACTIVITIES,
    TRACE_STARTS_S,
    arrival_s,
    arrived_until,
    least_of_rounds,
    newest_heartbeats,
    observed,
    played_activities,
    report_phases,
    traced_steps,
)
from drills.recording import LatePlayback
from drills.scenario import Scenario
from fleet.alerts.probe_requests import advance_probes
from fleet.alerts.trace_requests import advance_traces
from fleet.models import Alert, AlertEvent, ProbeRequest, Run, TraceRequest
from fleet.simulation.replay import Replay, private_database
from fleet.simulation.runs import create_run, follow
from fleet.simulation.scoring import Firing, firing_of
from telemetry import catalog
from telemetry.agent.sources import MIN_BETWEEN_REQUESTS_S, N_ROUNDS, REQUESTED_APART_S
from telemetry.blocks import METRICS, FloatArray, IntArray, Span
from telemetry.detect.quantities import METRICS_READ
from telemetry.ingest.timing import AHEAD_S
from telemetry.simulate.background import reports_of, stopped
from telemetry.simulate.inputs import Inputs
from telemetry.simulate.observation import PROBED, next_report
from telemetry.simulate.plan import Plan
from telemetry.simulate.shard import clock_at, play
from telemetry.simulate.timeline import RunClock, start_clock
from telemetry.steps import StepBatch, WorkerState
from telemetry.store.packing import decode, encode
from telemetry.store.reading import AGENT_RESTART_S, StepState, recent_of

SETTLED_S = 60.0


class Firings:
    def __init__(self, epoch_s: float) -> None:
        self._epoch_s = epoch_s
        self._burning: dict[int, Firing] = {}
        self._n_refired: dict[int, int] = {}
        self._all: list[Firing] = []

    def note(self, changed: Iterable[Alert], *, at_s: float) -> None:
        """Take note of alerts that have just changed.

        An alert that re-fires counts as another firing; so does one that names another culprit.
        """
        for alert in {alert.pk: alert for alert in changed}.values():
            firing = self._burning.get(alert.pk)
            n_refired = alert.events.filter(kind=AlertEvent.Kind.REFIRED).count()
            is_back = n_refired > self._n_refired.get(alert.pk, 0)
            self._n_refired[alert.pk] = n_refired
            if firing is not None and (is_back or is_new_event(firing, alert, at_s=at_s)):
                firing.resolved_s = at_s
                firing = None
            if firing is not None:
                update_firing(firing, alert)
            elif alert.is_open:
                firing = firing_of(alert, epoch_s=self._epoch_s, fired_s=at_s)
                self._burning[alert.pk] = firing
                self._all.append(firing)
            if firing is not None and firing.accused and firing.located_s is None:
                firing.located_s = at_s
            if not alert.is_open and alert.pk in self._burning:
                self._burning.pop(alert.pk).resolved_s = at_s

    def all(self) -> list[Firing]:
        """Return every firing; active ones are updated from their alerts first."""
        for alert in Alert.objects.filter(pk__in=self._burning).select_related("run", "node"):
            update_firing(self._burning[alert.pk], alert)
        return list(self._all)


def is_new_event(firing: Firing, alert: Alert, *, at_s: float) -> bool:
    """Whether an alert names another culprit than before.

    A cause that is refined within the first minute counts from the start. What had no cause
    and could wait for longer, and is urgent now, is a new notification.
    """
    node = alert.node.name if alert.node else None
    is_urgent = alert.severity < firing.severity and at_s - firing.fired_s >= SETTLED_S
    if alert.is_open and is_urgent and firing.cause == "unknown" != alert.cause:
        return True
    if not alert.is_open or "unknown" in {firing.cause, alert.cause}:
        return False
    if (firing.cause, firing.node) == (alert.cause, node):
        return False
    if firing.cause == alert.cause and set(firing.accused).intersection(alert.nodes):
        return False
    is_elsewhere = None not in {firing.node, node} and firing.node != node
    return is_elsewhere or at_s - firing.fired_s >= SETTLED_S


def update_firing(firing: Firing, alert: Alert) -> None:
    now = firing_of(alert, epoch_s=0.0, fired_s=firing.fired_s)
    for name in ("rule", "cause", "severity", "run", "node", "device", "score", "victims"):
        setattr(firing, name, getattr(now, name))
    # An alert about several nodes loses them one by one; a firing lists all that it accused.
    firing.nodes = tuple(dict.fromkeys((*firing.nodes, *now.nodes)))
    firing.runs = tuple(dict.fromkeys((*firing.runs, *now.runs)))


# How long the hot tier stores seconds, and how much is played at a time.
KEEP_S = 900

STRETCH_S = 300

# What is observed at a second depends on this many seconds before its report, as does the answer
# of an agent.
OBSERVED_FROM_S = 120

# No rule reads these, half of all values: a drill does not keep them, unless they are compared.
UNREAD = frozenset(
    {
        "core_flops_per_s",
        "device_memory_used_bytes",
        "efa_drops_per_s",
        "efa_rx_bytes_per_s",
        "efa_unresponsive_per_s",
        "host_memory_used_bytes",
        "mem_ecc_corrected",
        "sram_ecc_corrected",
    }
) - set(METRICS_READ)

# How long an agent runs its probe command.
PROBE_TAKES_S = 1 + (N_ROUNDS - 1) * int(REQUESTED_APART_S)


class PlayedRun:
    """One simulated run: its clocks, and the last minutes of its observed metrics."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.clocks = dict.fromkeys(plan.shards, start_clock(plan))
        self.playback: LatePlayback | None = None
        self._recent: Span | None = None
        self._latency_s: Span | None = None
        self._phases = report_phases(plan.seed, plan.run.node_names)
        self._background = reports_of(plan)
        # Asked for several times a second, of one second after the other.
        self._arrived: Callable[[int], IntArray] | None = None
        if not plan.inputs.is_full:
            arrived = partial(
                arrived_until, plan.inputs, self._phases, background=self._background
            )
            self._arrived = lru_cache(1)(arrived)
        # What each worker does: (n_ticks, n_nodes), up to a second.
        self._doing, self._doing_until = np.zeros((0, plan.run.nodes), int), 0
        # Of the same shape: the row of the newest heartbeat, and the row in which the activity
        # began.
        self._heard = self._began = self._doing
        # The newest steps as a runtime's trace shows them, and when one was requested.
        self._traced: StepBatch | None = None
        self._trace_s = (math.inf, math.inf)

    def play(self, until: int) -> Iterator[RunClock]:
        """Play on until a second; yields the clock at every change of phase, in order.

        A report that is not over by then is played to its end.
        """
        inputs, before = self.plan.inputs, self.clocks[self.plan.shards[0]]
        ahead = until + inputs.agent_every_s - 1
        played = [play(self.plan, shard, clock, ahead) for shard, clock in self.clocks.items()]
        self.clocks = {p.span.shard: p.clock for p in played}
        truth = Span.join_nodes([as_read(p.span) for p in played])
        if inputs.probe_on_request and PROBED in truth.values:
            latency_s = Span("", truth.ticks, truth.nodes, {PROBED: truth.values[PROBED]})
            pieces = [piece for piece in (self._latency_s, latency_s) if piece is not None]
            whole = Span.join_times(pieces) or latency_s
            self._latency_s = whole.between(before.tick - OBSERVED_FROM_S, ahead)
        doing = played_activities(self.plan, before, ahead)
        self._doing = np.concatenate([self._doing, doing])[-KEEP_S:]
        self._doing_until = ahead
        self._listen()
        hardware, steps = as_stored(self._observed(truth, until)), exact(played[0].steps)
        if inputs.trace_on_request:
            self._traced = exact(traced_steps(self.plan, before, ahead))
            steps = self._with_traces(steps)
        known_s = None if inputs.is_full else arrival_s(self.plan, steps)
        if self.playback is None:
            self.playback = LatePlayback(
                hardware, steps, keep_s=KEEP_S, arrived=self._arrived, steps_known_s=known_s
            )
        else:
            self.playback = self.playback.followed_by(
                hardware, steps, keep_s=KEEP_S, steps_known_s=known_s
            )
        yield from phases(self.plan, before, self.clocks[self.plan.shards[0]])

    def _listen(self) -> None:
        """Note all heartbeats and changes of activity at once: rules ask each second."""
        doing = self._doing
        rows = np.arange(len(doing))
        ticks = self._doing_until + 1 - len(doing) + rows
        self._heard = newest_heartbeats(self.plan, ticks, doing >= 0)
        began = np.zeros_like(doing)
        began[1:] = np.where(doing[1:] != doing[:-1], rows[1:, None], 0)
        self._began = np.maximum.accumulate(began, axis=0)

    def next_report(self, node: str, after: int) -> int:
        """Return the second at which the next report of a node's agent ends."""
        phase = int(self._phases[self.plan.run.node_names.index(node)])
        return next_report(self.plan.inputs, phase, after)

    def probe(self, node: str, second: int) -> dict[str, float]:
        """Measure the latency of a node's EFA devices; one that is down is left out.

        Only an agent that is asked for a probe may call it.
        """
        if self._latency_s is None:
            return {}
        rounds = self._latency_s.between(second + 1 - PROBE_TAKES_S, second).of([node])
        values = least_of_rounds(rounds.values[PROBED], apart_s=REQUESTED_APART_S)[-1]
        measured = enumerate(values.reshape(-1).tolist())
        return {f"efa{i}": value_s for i, value_s in measured if math.isfinite(value_s)}

    def trace(self, second: int, until_s: float) -> None:
        """Read the runtime's trace from a request on, for the steps that it covers whole."""
        if self._traced is not None and self.playback is not None:
            self._trace_s = (second + TRACE_STARTS_S, until_s)
            newest = self.playback.newest_steps(len(self._traced))
            self.playback.replace_newest(self._with_traces(newest))

    def _with_traces(self, steps: StepBatch) -> StepBatch:
        """Return the newest steps, with the trace's phases where it was requested."""
        if self._traced is None or math.isinf(self._trace_s[0]):
            return steps
        since_s, until_s = self._trace_s
        began_s = steps.ended_at_s - steps.step_s
        is_traced = ((began_s >= since_s) & (steps.ended_at_s <= until_s))[:, None]
        phases = {
            name: np.where(is_traced, self._traced.phases[name], values)
            for name, values in steps.phases.items()
        }
        return replace(steps, phases=phases)

    def workers(self, second: int) -> dict[str, WorkerState]:
        first = self._doing_until + 1 - len(self._doing)
        newest = self._heard[second - first]
        alive = np.flatnonzero(newest >= 0)
        rows, names = newest[alive], self.plan.run.node_names
        heard = (first + rows).astype(float).tolist()
        since = (first + self._began[rows, alive]).astype(float).tolist()
        doing = self._doing[rows, alive].tolist()
        return {
            names[i]: WorkerState(names[i], heard_s, ACTIVITIES[code], since_s)
            for i, heard_s, code, since_s in zip(alive.tolist(), heard, doing, since, strict=True)
        }

    def _observed(self, truth: Span, until: int) -> Span:
        """Return what is observed of the seconds from the last call up to ``until``."""
        inputs = self.plan.inputs
        if inputs.is_full:
            return truth
        newest = -1 if self.playback is None else int(self.playback.second)
        pieces = [piece for piece in (self._recent, truth) if piece is not None]
        whole = Span.join_times(pieces) or truth
        oldest = until - OBSERVED_FROM_S - 2 * inputs.agent_every_s
        self._recent = whole.between(oldest, int(whole.ticks[-1]))
        seen = observed(inputs, whole, self._phases, background=self._background)
        return seen.between(newest + 1, until)


class ScenarioPlayback:
    """All runs of a scenario at one second, as detection reads them; a Source."""

    keep_s = KEEP_S

    def __init__(self, plans: Sequence[Plan]) -> None:
        self.acts = {plan.run.name: PlayedRun(plan) for plan in plans}
        self._run_of = {shard: plan.run.name for plan in plans for shard in plan.shards}

    def play(self, until: int) -> dict[int, list[tuple[str, RunClock]]]:
        """Advance every run; return which run enters a phase at which second."""
        entered: dict[int, list[tuple[str, RunClock]]] = {}
        for name, act in self.acts.items():
            for clock in act.play(until):
                entered.setdefault(clock.tick, []).append((name, clock))
        return entered

    def turn_to(self, second: int) -> None:
        """Set the second that counts as the present."""
        for playback in self._playbacks():
            playback.second = second

    def _playbacks(self) -> list[LatePlayback]:
        return [act.playback for act in self.acts.values() if act.playback is not None]

    def _of(self, run: str) -> LatePlayback | None:
        return self.acts[run].playback if run in self.acts else None

    def newest(self) -> dict[str, int]:
        return {
            shard: playback.second
            for shard, run in self._run_of.items()
            if (playback := self._of(run)) is not None
        }

    def newest_step_at(self, run: str) -> float | None:
        playback = self._of(run)
        return None if playback is None else playback.newest_step_at(run)

    def last_seen(self) -> dict[str, int]:
        seen: dict[str, int] = {}
        for playback in self._playbacks():
            seen |= playback.last_seen()
        return seen

    def quiet_s(self) -> dict[str, int]:
        return {
            name: AGENT_RESTART_S
            for act in self.acts.values()
            if act.playback is not None
            for name in stopped(act.plan, act.playback.second, within_s=AGENT_RESTART_S)
        }

    def workers(self, run: str) -> dict[str, WorkerState]:
        playback = self._of(run)
        return {} if playback is None else self.acts[run].workers(playback.second)

    def window(
        self,
        shards: Sequence[str] | str,
        metrics: Sequence[str] = (),
        *,
        start: int,
        end: int,
        only: Collection[str] | None = None,
    ) -> Span:
        """Return metrics of all nodes of the runs that these shards belong to."""
        del only
        _check_kept(metrics)
        names = (shards,) if isinstance(shards, str) else tuple(shards)
        runs = dict.fromkeys(self._run_of[name] for name in names if name in self._run_of)
        known = [playback for run in runs if (playback := self._of(run)) is not None]
        if not known:
            ticks = np.arange(start, end + 1)
            return Span("", ticks, (), {name: np.zeros((len(ticks), 0, 0)) for name in metrics})
        if len(known) == 1:
            return known[0].window(names, metrics, start=start, end=end)
        return Span.join_nodes([p.window(names, metrics, start=start, end=end) for p in known])

    def moments(
        self, shards: Sequence[str], metrics: Sequence[str], *, ticks: Sequence[int]
    ) -> Span:
        """Return metrics of all nodes of the runs at single ticks; unknown ones left out."""
        _check_kept(metrics)
        runs = dict.fromkeys(self._run_of[name] for name in shards if name in self._run_of)
        spans = [
            playback.moments(shards, metrics, ticks=ticks)
            for run in runs
            if (playback := self._of(run)) is not None
        ]
        if len(spans) == 1:
            return spans[0]
        known = {tick for span in spans for tick in span.ticks.tolist()}
        kept = [tick for tick in ticks if tick in known]
        if not kept:
            return Span("", np.zeros(0, int), (), {name: np.zeros((0, 0, 0)) for name in metrics})
        return Span.join_nodes([span.at(kept) for span in spans])

    def steps(self, run: str, *, since_s: float, until_s: float = math.inf) -> StepBatch:
        """Return a run's steps that ended in [since_s, until_s)."""
        playback = self._of(run)
        if playback is None:
            return StepBatch.empty(run)
        return playback.steps(run, since_s=since_s, until_s=until_s)

    def recent_steps(
        self, run: str, *, since_s: float, at_least: int, state: StepState | None = None
    ) -> StepBatch:
        del state
        return recent_of(self, run, since_s=since_s, at_least=at_least)


@dataclass(slots=True)
class RequestedProbe:
    """A probe that an agent was asked for: when it measures, and when the answer arrives."""

    number: int
    measured_s: int
    answers_s: int


class PlayedAgents:
    """The agents of a scenario's nodes, which answer requested probes as real agents do.

    An agent reads a request in the response to its next report, and its answer is in the first
    report after the probe. A node that does not report answers nothing.
    """

    def __init__(self, stage: ScenarioPlayback) -> None:
        self._act_of = {
            node: act
            for act in stage.acts.values()
            if act.plan.inputs.probe_on_request and act.plan.inputs.agent
            for node in act.plan.run.node_names
        }
        self._requested: dict[str, RequestedProbe] = {}
        self._measured_s: dict[str, int] = {}
        self._answers: dict[str, dict[str, Any]] = {}
        self.second = 0

    def read(
        self, kind: Literal["efa", "agent"], nodes: Collection[str]
    ) -> Mapping[str, dict[str, Any] | list[dict[str, Any]]]:
        known = [node for node in nodes if node in self._act_of]
        if kind == "efa":
            return {node: self._devices(node) for node in known}
        return {node: self._sent(node) for node in known}

    def hand_out(self, request: ProbeRequest) -> None:
        node = request.node
        act = self._act_of[node]
        asked_s = act.next_report(node, self.second)
        if asked_s - self.second <= request.WAIT.total_seconds():
            measured_s = asked_s + PROBE_TAKES_S
            answers_s = act.next_report(node, measured_s - 1)
            self._requested[node] = RequestedProbe(request.pk, measured_s, answers_s)

    def take_back(self, request: ProbeRequest) -> None:
        self._requested.pop(request.node, None)
        self._answers.pop(request.node, None)

    def _devices(self, node: str) -> list[dict[str, Any]]:
        n_efa = catalog.instance(self._act_of[node].plan.run.instance).n_efa
        return [{"device": f"efa{i}", "index": i} for i in range(n_efa)]

    def _sent(self, node: str) -> dict[str, Any]:
        """Return what the node's agent sent along with its last report."""
        wanted = self._requested.get(node)
        if wanted is not None and wanted.answers_s <= self.second:
            del self._requested[node]
            before_s = self._measured_s.get(node, -math.inf)
            if wanted.measured_s - before_s < MIN_BETWEEN_REQUESTS_S:
                answer: dict[str, Any] = {"reason": "requested again too soon"}
            else:
                self._measured_s[node] = wanted.measured_s
                answer = {"latency_s": self._act_of[node].probe(node, wanted.measured_s)}
            # A node that does not report measures nothing either.
            if answer.get("latency_s") or "reason" in answer:
                self._answers[node] = {"id": wanted.number, **answer}
        answer_now = self._answers.get(node)
        return {} if answer_now is None else {"probe": answer_now}


class PlayedReporters:
    """The reporters of a scenario's jobs, which trace on request as real ones do."""

    def __init__(self, stage: ScenarioPlayback) -> None:
        self._stage = stage
        self._until_s: dict[str, float] = {}
        self.second = 0

    def n_tracing(self, run: str) -> int:
        act = self._stage.acts[run]
        return act.plan.run.nodes if act.plan.inputs.trace_on_request else 0

    def hand_out(self, request: TraceRequest) -> None:
        run, until_s = request.subject, request.ends_at.timestamp()
        if self._until_s.get(run) != until_s:
            self._until_s[run] = until_s
            self._stage.acts[run].trace(self.second, until_s)

    def steps(self, run: str, *, since_s: float) -> StepBatch:
        return self._stage.steps(run, since_s=since_s)

    def problem(self, run: str) -> str:
        return ""


def phases(plan: Plan, before: RunClock, after: RunClock) -> Iterator[RunClock]:
    """Yield the clock at the first second of every phase entered between two clocks."""
    if _phase_of(before) == _phase_of(after):
        return
    if after.tick - before.tick == 1:
        yield after
        return
    middle = clock_at(plan, before, (before.tick + after.tick) // 2)
    yield from phases(plan, before, middle)
    yield from phases(plan, middle, after)


def _phase_of(clock: RunClock) -> tuple[str, float]:
    return clock.phase, clock.phase_since_s


def as_read(span: Span) -> Span:
    """Leave out the metrics that no rule reads."""
    values = {name: value for name, value in span.values.items() if name not in UNREAD}
    return Span(span.shard, span.ticks, span.nodes, values, span.every_s)


def _check_kept(metrics: Sequence[str]) -> None:
    if unread := UNREAD.intersection(metrics):
        msg = f"metrics: {sorted(unread)} are not kept. Take them out of UNREAD to read them"
        raise ValueError(msg)


def as_stored(span: Span) -> Span:
    """Round a span's values as the hot tier does."""
    values: dict[str, FloatArray] = {
        name: decode(encode(value, METRICS[name].packing), METRICS[name].packing)
        for name, value in span.values.items()
    }
    return Span(span.shard, span.ticks, span.nodes, values, span.every_s)


def exact(steps: StepBatch) -> StepBatch:
    """Return steps in the precision that the hot tier returns."""
    phases_s = {name: value.astype(np.float64) for name, value in steps.phases.items()}
    return replace(steps, phases=phases_s)


# Every scenario begins at the same second, so that its answer is the same tomorrow.
EPOCH = datetime(2026, 1, 1, tzinfo=UTC)

EPOCH_S = int(EPOCH.timestamp())


@dataclass(frozen=True, slots=True)
class PlayedScenario:
    plans: tuple[Plan, ...]
    firings: tuple[Firing, ...]


def play_scenario(scenario: Scenario, *, seed: int | None = None) -> PlayedScenario:
    """Play a scenario from its first second to its last, and watch it each second.

    Detection sees what nodes and training report, in a database where no fault is written
    down; what is wrong it must find out.
    """
    plans, duration_s = scenario.plans(epoch_s=EPOCH_S, seed=seed), int(scenario.duration_s)
    with private_database():
        runs = {plan.run.name: create_run(plan.run, started_at=EPOCH) for plan in plans}
        inputs = {plan.run.name: plan.inputs for plan in plans}
        stage, firings = ScenarioPlayback(plans), Firings(EPOCH_S)
        replay = Replay(stage, list(runs.values()), workers=stage.workers)
        agents = PlayedAgents(stage) if scenario.inputs.probe_on_request else None
        reporters = PlayedReporters(stage) if scenario.inputs.trace_on_request else None
        entered: dict[int, list[tuple[str, RunClock]]] = {}
        for start_s in range(0, duration_s, STRETCH_S):
            until = EPOCH_S + min(start_s + STRETCH_S, duration_s)
            entered |= stage.play(until)
            for second in range(EPOCH_S + start_s + (start_s > 0), until + 1):
                stage.turn_to(second)
                for name, clock in entered.get(second, ()):
                    follow_reported(runs[name], clock, inputs[name])
                    runs[name].save()
                for name, run in runs.items():
                    is_reported = inputs[name].step_reports and not inputs[name].is_full
                    if is_reported and run.phase == Run.Phase.COMPILING:
                        train_from_first_step(run, stage.steps(name, since_s=_since_s(run)))
                firings.note(replay.evaluate(second), at_s=second - EPOCH_S)
                if agents is not None and replay.open_rules:
                    agents.second = second
                    now = datetime.fromtimestamp(second, UTC)
                    if named := advance_probes(agents, now=now):
                        replay.read_open_alerts()
                        firings.note(named, at_s=second - EPOCH_S)
                if reporters is not None and replay.open_rules:
                    reporters.second = second
                    advance_traces(reporters, now=datetime.fromtimestamp(second, UTC))
        return PlayedScenario(plans, tuple(firings.all()))


def follow_reported(run: Run, clock: RunClock, inputs: Inputs) -> None:
    """Update a run from its clock, but its phase only by what is known at its inputs."""
    before, since = run.phase, run.phase_since
    follow(run, clock)
    run.phase = reported_phase(inputs, clock, before=before)
    if run.phase == before and not inputs.is_full:
        run.phase_since = since


def reported_phase(inputs: Inputs, clock: RunClock, *, before: str) -> str:
    """Return the phase that is known of a run: what its job or an annotation says.

    A job that reports steps says when it starts and ends; it compiles until its first step is
    over. Without step reports only an announced compile is known.
    """
    is_announced = clock.phase == "compiling" and clock.step > 0
    if inputs.is_full:
        return clock.phase
    if not inputs.step_reports:
        return clock.phase if is_announced else Run.Phase.TRAINING
    if clock.phase == "pending":
        return before
    starts = clock.phase in {"compiling", "warming_up", "training"}
    return Run.Phase.COMPILING if starts else clock.phase


def train_from_first_step(run: Run, steps: StepBatch) -> None:
    """Let a run train from the beginning of the first step that began since it started.

    A job needs longer than its clock may be off until its first step begins.
    """
    began_s = steps.ended_at_s - steps.step_s
    began_s = began_s[began_s >= _since_s(run) + AHEAD_S]
    if len(began_s):
        run.phase = Run.Phase.TRAINING
        run.phase_since = datetime.fromtimestamp(float(began_s[0]), UTC)
        run.save()


def _since_s(run: Run) -> float:
    return run.phase_since.timestamp()
