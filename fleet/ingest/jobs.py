"""Two jobs with one run name: the later one is refused while the earlier one makes steps.

A process claims its rank. In a restart the process before it is gone, so the later of two that
both make steps belongs to another job. What is known of each process is in Redis, by rank: all web
processes agree.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from fleet.ingest.runs import MAX_KNOWN
from fleet.models import Node, Run
from fleet.runs.state import OTHER_JOB, sessions_key, state_of, workers_key
from telemetry.ingest.lines import RefusedError
from telemetry.ingest.step_reports import EndLine, StepLine, WorkerLine
from telemetry.store.connection import pairs
from telemetry.store.hot import HotStore

# So often a process is compared with the others of its rank.
COMPARED_EVERY_S = 10.0
# A step that ended so long after the other process began proves that both live.
MARGIN_S = 5.0
# Heartbeats of a process that may be of another job are not kept while the earlier one was heard
# so recently, for so long: it takes a step of the earlier one to know.
HEARD_S, WAITS_S = 30.0, 60.0
# A process that was silent for so long, while another one made steps, begins again; one that is
# silent for longer has no claim.
SILENT_S, ALIVE_S = 120.0, 300.0
# The other ranks of a refused job are refused for so long after one was compared.
MARKED_S, KEEP_S = 30.0, 3600
# Workers of one job are at the same step, within so many steps and so much time.
SLACK_STEPS, SLACK_S = 2.0, 3.0


class OtherJobError(RefusedError):
    """A report is of another job than the one that has the run's name."""

    def __init__(self, run: str, reason: str) -> None:
        super().__init__("run", reason)
        self.run = run


class Claim(msgspec.Struct, array_like=True, gc=False, frozen=True):
    """A process that has a rank: since when, when it was last heard, and its newest step."""

    worker: str
    node: str
    session: str
    n_workers: int
    first_s: float
    heard_s: float
    step: int = -1
    stepped_s: float = -math.inf
    step_s: float = math.inf
    is_refused: bool = False

    @property
    def job(self) -> str:
        return f"{self.session} {self.n_workers}"

    def outlives(self, later: "Claim") -> bool:
        """Whether it makes steps although a later process has its rank: that is of another job.

        Processes of one job that do not know their ranks are at the same step.
        """
        if self.stepped_s <= later.first_s + MARGIN_S:
            return False
        if self.session != later.session or max(self.n_workers, later.n_workers) > 1:
            return True
        n_steps = (later.stepped_s - self.stepped_s) / later.step_s
        slack = SLACK_STEPS + SLACK_S / later.step_s
        return later.step >= 0 and abs(later.step - self.step - n_steps) > slack


@dataclass(slots=True)
class KnownProcess:
    """What this web process knows of a training process."""

    compared_s: float = -math.inf
    refused: str = ""
    is_waiting: bool = False
    step: int = -1
    stepped_s: float = -math.inf
    step_s: float = math.inf


@dataclass(slots=True)
class JobGuard:
    """Decides which reports belong to the job that has the run's name."""

    _known: dict[tuple[str, str, str], KnownProcess] = field(default_factory=dict)

    def admits(
        self, hot: HotStore, report: WorkerLine, session: str, *, now_s: float, delay_s: float
    ) -> bool:
        """Whether to keep a report, whose ``session`` is as its sender names it.

        False: whether it is another job's is not known yet. Raises OtherJobError if it is.
        ``delay_s`` is by how much its clock is behind ours.
        """
        if report.rank is None:
            return True
        key = (report.run, report.worker, report.boot or session)
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= MAX_KNOWN:
                self._known.clear()
            known = self._known[key] = KnownProcess()
        if isinstance(report, StepLine) and report.step >= known.step:
            known.step, known.step_s = report.step, report.step_s
            known.stepped_s = min(now_s, report.ended_at + delay_s)
        if known.is_waiting or not 0 <= now_s - known.compared_s < COMPARED_EVERY_S:
            known.compared_s = now_s
            mine = Claim(
                worker=report.worker,
                node=report.runs_on,
                session=session,
                n_workers=report.n_workers or 0,
                first_s=now_s,
                heard_s=now_s,
                step=known.step,
                stepped_s=known.stepped_s,
                step_s=known.step_s,
            )
            was_refused, name = known.refused, name_of(report, session)
            known.refused, known.is_waiting = compare(hot, report.run, report.rank, name, mine)
            if known.refused and not was_refused:
                forget_member(hot, report)
        if isinstance(report, EndLine) and not report.failed:
            # One that failed is likely to come back.
            hot.execute("HDEL", claims_key(report.run, report.rank), name_of(report, session))
        if known.refused:
            raise OtherJobError(report.run, known.refused)
        return not known.is_waiting or isinstance(report, StepLine)


def claims_key(run: str, rank: int) -> str:
    return f"steps-in:claims:{run}\n{rank}"


def name_of(report: WorkerLine, session: str) -> str:
    return f"{report.worker} {report.boot or session}"


def forget_member(hot: HotStore, report: WorkerLine) -> None:
    """Take a worker of another job out of the run, where it was before that was known."""
    key = workers_key(report.run, report.session)
    if not hot.execute("HDEL", key, report.worker):
        return
    if not hot.execute("EXISTS", key):
        hot.execute("ZREM", sessions_key(report.run), report.session)
    if (state := state_of(hot, report.run)) is None:
        return
    if all(member.node != report.runs_on for member in state.members.values()):
        Node.objects.filter(name=report.runs_on, run__name=report.run).update(run=None)
    of_start = Run.objects.filter(name=report.run, session=state.session)
    of_start.update(n_workers=state.n_workers)


def continued(before: Claim, now: Claim, rivals: Iterable[Claim]) -> Claim:
    """Return a claim of now with what is known of it; other web processes may know more steps."""
    if before.stepped_s > now.stepped_s:
        steps = {name: getattr(before, name) for name in ("step", "stepped_s", "step_s")}
        now = msgspec.structs.replace(now, **steps)
    begins_again = any(each.stepped_s > before.heard_s + SILENT_S for each in rivals)
    return now if begins_again else msgspec.structs.replace(now, first_s=before.first_s)


def compare(hot: HotStore, run: str, rank: int, name: str, mine: Claim) -> tuple[str, bool]:
    """Store a claim; return why it is refused, if it is, and whether that is not known yet."""
    key, marks, now_s = claims_key(run, rank), f"steps-in:other-jobs:{run}", mine.heard_s
    stored, mark = hot.execute_all([("HGETALL", key), ("HGET", marks, mine.job)])
    claims = {
        each.decode(): msgspec.msgpack.decode(packed, type=Claim) for each, packed in pairs(stored)
    }
    before = claims.pop(name, None)
    gone = [each for each, claim in claims.items() if now_s - claim.heard_s > ALIVE_S]
    rivals = {
        each: claim
        for each, claim in claims.items()
        # Processes of a node that do not know their rank have names of their own.
        if (claim.node != mine.node or claim.worker == mine.worker)
        and not (claim.is_refused or each in gone)
    }
    was_refused = before is not None and before.is_refused
    if before is not None:
        mine = continued(before, mine, rivals.values())
    # Of two that came at once, one by its name.
    older = [
        claim
        for each, claim in rivals.items()
        if was_refused or (claim.first_s, each) < (mine.first_s, name)
    ]
    rival = next((each for each in older if was_refused or each.outlives(mine)), None)
    reason = ""
    if rival is not None:
        reason = (
            f"{run} {OTHER_JOB}, whose rank {rank} on {rival.node} makes steps now. "
            "Set TRNWATCH_RUN for one of them; if they are one job, set RANK and WORLD_SIZE"
        )
    elif mark is not None:
        until_s, of_job = msgspec.msgpack.decode(mark, type=tuple[float, str])
        reason = of_job if now_s < until_s else ""
    is_heard = any(e.worker != mine.worker and now_s - e.heard_s <= HEARD_S for e in older)
    mine = msgspec.structs.replace(mine, is_refused=bool(reason))
    commands: list[tuple[object, ...]] = [
        ("HSET", key, name, msgspec.msgpack.encode(mine)),
        ("EXPIRE", key, KEEP_S),
        *(("HDEL", key, each) for each in gone),
    ]
    if rival is not None and all(each.job != mine.job for each in rivals.values()):
        packed = msgspec.msgpack.encode((now_s + MARKED_S, reason))
        commands += [("HSET", marks, mine.job, packed), ("EXPIRE", marks, KEEP_S)]
    hot.execute_all(commands)
    return reason, not reason and is_heard and now_s - mine.first_s < WAITS_S
