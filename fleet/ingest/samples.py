"""Samples of many readings a second: requested by a person, answered by the node's agent."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import msgspec
from django.db import IntegrityError, transaction

from fleet.formatting import duration
from fleet.models import Node, SampleRequest
from fleet.runs.agent_requests import LiveAgents, is_allowed
from telemetry.errors import FieldError
from telemetry.ingest.lines import RefusedError
from telemetry.ingest.samples import SampleAnswer, read_sample, sample_id
from telemetry.simulate.inputs import live_inputs
from telemetry.store.connection import Connection
from telemetry.store.node_state import read_sidecars
from telemetry.store.reading import SCRAPES

# The samples of a node that are stored; older ones keep who requested them.
KEPT_PER_NODE = 10
# An agent refuses another sample so soon after the start of the last one.
MIN_BETWEEN = timedelta(minutes=1)
UNDER_WAY = (SampleRequest.State.WAITING, SampleRequest.State.SAMPLING)
NO_ANSWER = f"no answer within {duration(SampleRequest.WAIT.total_seconds())}"


def refusal_of(
    hot: Connection, node: Node, newest: SampleRequest | None, *, is_up: bool, now: datetime
) -> str:
    """Return why no sample of a node can be requested now; empty if one can be.

    ``newest`` is the last request of the node.
    """
    if not is_allowed("sample"):
        return "This installation requests no samples (TRNWATCH_REQUEST_SAMPLES=0)."
    if not is_up:
        return f"{node.name} does not report."
    if not _has_agent(hot, node):
        return f"{node.name} has no agent, which takes the sample."
    if newest is not None and newest.state(now) in UNDER_WAY:
        return f"A sample of {node.name} is under way, requested by {newest.requested_by}."
    if newest is not None and newest.started_at and now - newest.started_at < MIN_BETWEEN:
        left_s = (newest.started_at + MIN_BETWEEN - now).total_seconds()
        return f"A node is sampled at most once a minute. Try again in {max(1, round(left_s))} s."
    return ""


def _has_agent(hot: Connection, node: Node) -> bool:
    if node.source == Node.Source.SIMULATED:
        inputs = live_inputs(node.run.plan.get("tier", "")) if node.run and node.run.plan else None
        return inputs is not None and inputs.agent and not inputs.is_scraped
    has_reported = node.name in read_sidecars(hot, "agent", [node.name])
    return has_reported and not hot.execute("HEXISTS", SCRAPES, node.name)


def request_sample(
    hot: Connection, node: Node, *, by: str, is_up: bool, now: datetime
) -> SampleRequest:
    """Request a sample of a node's agent; raises FieldError where that is not possible now."""
    newest = node.sample_requests.first()
    if reason := refusal_of(hot, node, newest, is_up=is_up, now=now):
        raise FieldError("node", reason)
    # Who did not answer is asked no more.
    node.sample_requests.expired(now).update(answered_at=now, reason=NO_ANSWER)
    try:
        with transaction.atomic():
            row = SampleRequest.objects.create(node=node, requested_by=by[:150], requested_at=now)
    except IntegrityError:
        raise FieldError("node", f"A sample of {node.name} is under way.") from None
    LiveAgents(hot, now).hand_out(row)
    return row


@dataclass(frozen=True, slots=True)
class RecordedAnswer:
    """What an answer changed: its request, and why the answer was refused, if it was."""

    row: SampleRequest | None
    refused: RefusedError | None = None

    def update_request(self, hot: Connection, *, now: datetime) -> None:
        """Request no more what is answered; let others know that it has begun."""
        if self.row is None:
            return
        if self.row.answered_at is not None:
            LiveAgents(hot, now).take_back(self.row)
        else:
            LiveAgents(hot, now).hand_out(self.row)


def record_answer(name: str, answer: Mapping[str, object]) -> RecordedAnswer:
    """Store an agent's answer; the first one to a request counts.

    An answer that cannot be read ends its request, with the reason.
    """
    now = datetime.now(UTC)
    try:
        number = sample_id(answer)
    except RefusedError as refused:
        return RecordedAnswer(None, refused)
    row = SampleRequest.objects.select_related("node").filter(pk=number, node__name=name).first()
    if row is None:
        reason = f"{number} is not a request of a sample of {name}"
        return RecordedAnswer(None, RefusedError("agent.sample.id", reason))
    if row.answered_at is not None:
        return RecordedAnswer(row)
    try:
        read = read_sample(answer)
    except RefusedError as refused:
        row.finish(now, reason=f"the answer was refused: {refused}"[:300])
        return RecordedAnswer(row, refused)
    if read.state is not None:
        is_first = row.started_at is None
        row.started_at = row.started_at or now
        if is_first:
            waiting = SampleRequest.objects.unfinished().filter(pk=row.pk, started_at=None)
            waiting.update(started_at=now)
        return RecordedAnswer(row if is_first else None)
    packed = None if read.reason else msgspec.msgpack.encode(read)
    row.finish(now, reason=(read.reason or "")[:300], answer=packed)
    kept = row.node.sample_requests.exclude(answer=None)
    oldest = list(kept.values_list("pk", flat=True)[KEPT_PER_NODE:])
    SampleRequest.objects.filter(pk__in=oldest).update(answer=None)
    return RecordedAnswer(row)


def load_sample(row: SampleRequest) -> SampleAnswer | None:
    """Return a stored sample; None where there is none, or it was removed."""
    if row.answer is None:
        return None
    return msgspec.msgpack.decode(bytes(row.answer), type=SampleAnswer)


def forget_samples(*, keep_days: int, now: datetime) -> int:
    """Delete samples older than the retention of the durable tier; return how many."""
    old = SampleRequest.objects.filter(requested_at__lt=now - timedelta(days=keep_days))
    return old.delete()[0]
