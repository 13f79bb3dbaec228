"""Step reports: one JSON object per line, and the validation of each."""

import re
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from telemetry.ingest.lines import RefusedError, explain
from telemetry.ingest.schemas import Labels

QUOTED = re.compile(r" field `([^`]*)`")
# What a name must be, for the answer to one that is not.
NAME_RULES = {
    "run": "letters, digits, dashes and underscores, at most 60",
    "session": "letters, digits, dots, colons, dashes and underscores, at most 60",
    "node": "letters, digits, dots, dashes and underscores, at most 80",
}
MAX_LINE_BYTES = 65_536
MAX_WORKERS = 65_536
MAX_COLLECTIVES = 512
# The phases may add up to slightly more than the step, because their clocks are read in turn.
SLACK_RATIO, SLACK_S = 1e-3, 1e-3

Seconds = Annotated[float, Meta(ge=0, le=1e6)]
UnixSeconds = Annotated[float, Meta(ge=0, le=1e11)]
Tokens = Annotated[float, Meta(ge=0, le=1e15)]
Reason = Annotated[str, Meta(max_length=200, pattern=r"^[^\x00-\x1f\x7f]*$")]
RunName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{1,60}$")]
Session = Annotated[str, Meta(pattern=r"^[A-Za-z0-9._:-]{1,60}$")]
NodeName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,79}$")]
Worker = Annotated[
    str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,79}(/[A-Za-z0-9._-]{1,39})?$", max_length=99)
]
Group = Annotated[str, Meta(pattern=r"^[A-Za-z0-9._:-]{0,40}$")]
Flags = Annotated[str, Meta(max_length=500, pattern=r"^[^\x00-\x1f\x7f]*$")]
PositiveInt = Annotated[int, Meta(ge=1, le=2_000_000_000)]
PositiveInt64 = Annotated[int, Meta(ge=1, le=10**18)]
Index = Annotated[int, Meta(ge=0, le=MAX_WORKERS)]
WorkerCount = Annotated[int, Meta(ge=1, le=MAX_WORKERS)]
# JSON has no numbers that are not finite. Losses are of 32 bit.
MAX_LOSS = 3.4e38
NotFinite = Literal["NaN", "Infinity", "-Infinity"]
Loss = Annotated[float, Meta(ge=-MAX_LOSS, le=MAX_LOSS)] | NotFinite
# As Python and others write them without quotes.
BARE = re.compile(rb'("loss"\s*:\s*)"?([-+]?)(nan|inf(?:inity)?)"?(?=\s*[,}])', re.IGNORECASE)
Span = Annotated[float, Meta(gt=0, le=1e6)]
Each = Annotated[list[Seconds], Meta(max_length=MAX_COLLECTIVES)]
Moments = Annotated[list[UnixSeconds], Meta(max_length=MAX_COLLECTIVES)]


class StepReportLine(Struct, forbid_unknown_fields=True, kw_only=True, tag_field="kind", gc=False):
    """The fields of every line: the run, and the start of the job."""

    run: RunName
    session: Session = "default"


class RunLine(StepReportLine, tag="run", kw_only=True, gc=False):
    """Facts of a run; missing ones stay unchanged.

    ``labels`` are what the surroundings say of the job, ``node_labels`` of the sender's ``node``.
    """

    at: UnixSeconds | None = None
    team: Annotated[str, Meta(max_length=40)] | None = None
    purpose: Annotated[str, Meta(max_length=200)] | None = None
    model: Annotated[str, Meta(min_length=1, max_length=60)] | None = None
    params: Annotated[float, Meta(gt=0, le=1e15)] | None = None
    layers: PositiveInt | None = None
    hidden: PositiveInt | None = None
    instance_type: Annotated[str, Meta(min_length=1, max_length=40)] | None = None
    n_nodes: WorkerCount | None = None
    n_workers: WorkerCount | None = None
    tp: WorkerCount | None = None
    pp: WorkerCount | None = None
    cp: WorkerCount | None = None
    micro_batch: PositiveInt | None = None
    recompute: Literal["none", "selective", "full"] | None = None
    seq_len: PositiveInt | None = None
    global_batch: PositiveInt | None = None
    precision: Annotated[str, Meta(min_length=1, max_length=10)] | None = None
    compiler_flags: Flags | None = None
    compiler_version: Annotated[str, Meta(max_length=60)] | None = None
    sdk_version: Annotated[str, Meta(max_length=40)] | None = None
    optimizer: Annotated[str, Meta(min_length=1, max_length=40)] | None = None
    requires_preflight: bool | None = None
    tokens_per_epoch: PositiveInt64 | None = None
    planned_tokens: PositiveInt64 | None = None
    usd_per_node_hour: Annotated[float, Meta(ge=0, le=1e5)] | None = None
    labels: Labels | None = None
    node: NodeName | None = None
    node_labels: Labels | None = None


class WorkerLine(StepReportLine, kw_only=True, gc=False):
    """The sending worker: its node, and the group with which it exchanges gradients.

    ``boot`` identifies a start of its process if no launcher numbers the starts of the job.
    """

    worker: Worker
    boot: Session | None = None
    node: NodeName | None = None
    rank: Index | None = None
    stage: Index | None = None
    group: Group = ""
    n_workers: WorkerCount | None = None

    @property
    def runs_on(self) -> str:
        """The node as named, else the part of the worker's name before the first slash."""
        return self.node or self.worker.partition("/")[0]


class StepLine(WorkerLine, tag="step", kw_only=True, gc=False):
    """One step of one worker, which ended at ``ended_at`` by its clock.

    ``collective_s`` is the exposed gradient exchange, in total or for each one; ``arrived_at`` is
    when the worker arrived at each. ``executing_s``, ``barrier_s`` and ``collective_trace_s`` are
    from the Neuron runtime's trace: executing graphs, and of that at barriers, and in collectives
    of any kind, which may overlap with compute; from NCCL Inspector, in gradient exchanges.
    ``other_comm_s`` is the time in communication that exchanges no gradients, where the source
    distinguishes it. ``tokens`` are the whole run's in this step, ``loss`` is the worker's: a
    number, or "NaN", "Infinity" or "-Infinity".
    """

    step: Annotated[int, Meta(ge=0, le=1_000_000_000_000)]
    ended_at: UnixSeconds
    step_s: Span
    collective_s: Seconds | Each | None = None
    arrived_at: UnixSeconds | Moments | None = None
    input_s: Seconds | None = None
    checkpoint_s: Seconds | None = None
    other_s: Seconds | None = None
    executing_s: Seconds | None = None
    barrier_s: Seconds | None = None
    collective_trace_s: Seconds | None = None
    other_comm_s: Seconds | None = None
    tokens: Tokens | None = None
    loss: Loss | None = None

    @property
    def collectives(self) -> list[float] | None:
        """Seconds in each gradient exchange; None if not reported."""
        seconds = self.collective_s
        return [seconds] if isinstance(seconds, float) else seconds

    @property
    def arrivals(self) -> list[float] | None:
        """When the worker arrived at each exchange; None if not reported."""
        seconds = self.arrived_at
        return [seconds] if isinstance(seconds, float) else seconds


class BeatLine(WorkerLine, tag="beat", kw_only=True, gc=False):
    """A heartbeat; the worker has dropped ``n_dropped`` reports so far.

    ``runtime_trace`` is "on" with a trace of the Neuron runtime, "on: " and the source with
    another, "on request" where an alert may request one, or why the worker has none.
    ``activity`` is what it does, for ``activity_s`` seconds so far: step, input, checkpoint, other
    or compile.
    """

    at: UnixSeconds | None = None
    n_dropped: Annotated[int, Meta(ge=0)] = 0
    runtime_trace: Reason = ""
    activity: Annotated[str, Meta(max_length=20, pattern="^[a-z_]*$")] = ""
    activity_s: Seconds = 0.0


class CompileLine(WorkerLine, tag="compile", kw_only=True, gc=False):
    """One graph that the worker requested: found in the cache, compiled, or failed.

    ``at`` is when it was found or began to compile; ``seconds`` is the duration.
    """

    module: Annotated[str, Meta(max_length=120, pattern=r"^[0-9A-Za-z_.+-]*$")] = ""
    outcome: Literal["hit", "miss", "fail"]
    at: UnixSeconds
    seconds: Seconds | None = None
    compiler: Annotated[str, Meta(max_length=60)] = ""
    flags: Flags = ""
    cache: Flags = ""
    shape: Annotated[str, Meta(max_length=200)] = ""
    planned: bool = False


class EndLine(WorkerLine, tag="end", kw_only=True, gc=False):
    """The worker has finished or failed."""

    at: UnixSeconds | None = None
    failed: bool = False
    reason: Reason = ""


StepReport = RunLine | StepLine | BeatLine | CompileLine | EndLine
_LINE = msgspec.json.Decoder(StepReport)


def read_step_line(line: bytes) -> StepReport:
    """Read one line.

    Raises RefusedError, with the field, if it is invalid or its parts do not add up.
    """
    if len(line) > MAX_LINE_BYTES:
        raise RefusedError("", f"{len(line):,} bytes; a line has at most {MAX_LINE_BYTES:,}")
    try:
        report: StepReport = _LINE.decode(BARE.sub(_quoted, line))
    except msgspec.MsgspecError as error:
        refused = explain(error, line, StepLine)
        # A missing or unknown field is only quoted in the reason.
        quoted = QUOTED.search(refused.reason)
        field = refused.field or (quoted[1][:40] if quoted else "")
        reason = refused.reason
        if field in NAME_RULES:
            reason += f"; give a name of {NAME_RULES[field]}"
        raise RefusedError(field, reason) from error
    except UnicodeDecodeError as error:
        raise RefusedError("", "is not UTF-8") from error
    except RecursionError as error:
        raise RefusedError("", "is nested too deeply") from error
    if isinstance(report, StepLine):
        _check(report)
    return report


def _quoted(found: re.Match[bytes]) -> bytes:
    if found[3][:1] in b"nN":
        return found[1] + b'"NaN"'
    return found[1] + (b'"-Infinity"' if found[2] == b"-" else b'"Infinity"')


def _check(report: StepLine) -> None:
    seconds, arrivals = report.collectives, report.arrivals
    if arrivals is not None and len(arrivals) != len(seconds or ()):
        raise RefusedError("arrived_at", "must have one time for each of collective_s")
    parts = sum(seconds or ()) + sum(
        part or 0.0 for part in (report.input_s, report.checkpoint_s, report.other_s)
    )
    if parts > report.step_s * (1 + SLACK_RATIO) + SLACK_S:
        reason = f"is {report.step_s:g}, but its parts add up to {parts:g} s"
        raise RefusedError("step_s", reason)
    for name in ("executing_s", "barrier_s", "collective_trace_s", "other_comm_s"):
        part = getattr(report, name)
        if part is not None and part > report.step_s * (1 + SLACK_RATIO) + SLACK_S:
            raise RefusedError(name, f"is {part:g}, more than the step's {report.step_s:g} s")
