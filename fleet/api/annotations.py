"""What machines say happened: deploys, checkpoints, restarts, as JSON with a bearer token."""

import time
from datetime import UTC, datetime

import msgspec
from django.conf import settings
from django.db import DatabaseError
from django.http import HttpRequest, HttpResponse
from django.views.decorators.csrf import csrf_exempt
from redis.exceptions import RedisError

from fleet.annotating import AnnotationError, Said, annotate
from fleet.api.answers import too_often, unavailable
from fleet.api.bodies import check_announced, too_large
from fleet.models import Annotation, Token
from fleet.problem import ProblemError, problem
from fleet.throttling import RequestGate
from fleet.tokens import bearer, check_token
from telemetry.store.hot import open_store

LIMIT_BYTES = 16_384
# A moment as msgspec reads it: ISO 8601 with its zone, or Unix seconds.
Moment = datetime | float | None
gate = RequestGate()


class Body(msgspec.Struct, forbid_unknown_fields=True):
    """What is posted; ``at`` is now where it is left out."""

    kind: str
    text: str
    at: Moment = None
    ends_at: Moment = None
    run: str = ""
    node: str = ""


@csrf_exempt
def annotations(request: HttpRequest) -> HttpResponse:
    """Keep one annotation: 201 where it is new, 200 where it was said before."""
    if request.method != "POST":
        return problem(405, "Send the annotation by POST.", headers={"Allow": "POST"})
    try:
        token = _admitted(request)
        now = datetime.now(UTC)
        note, is_new = annotate(_said(_body(request), now=now), by=token.name, now=now)
    except ProblemError as error:
        return error.response()
    except AnnotationError as error:
        return problem(400, f"{error.field}: {error.message}.", field=error.field)
    except DatabaseError:
        return unavailable().response()
    body = msgspec.json.encode(_told(note))
    return HttpResponse(body, "application/json", status=201 if is_new else 200)


def _admitted(request: HttpRequest) -> Token:
    token = check_token(bearer(request.headers.get("Authorization", "")), Token.Scope.ANNOTATE)
    try:
        hot = open_store(settings.REDIS_URL, keep_s=settings.HOT_KEEP_S)
        left = gate.left(hot, {token.digest: 1}, now_s=time.time())
    except RedisError:
        # Without Redis nobody counts, and what happened is worth keeping all the same.
        return token
    if left[token.digest] < 0:
        raise too_often(settings.INGEST_REQUESTS_PER_MINUTE)
    return token


def _body(request: HttpRequest) -> Body:
    check_announced(request.META.get("CONTENT_LENGTH"), limit=LIMIT_BYTES)
    raw = request.read(LIMIT_BYTES + 1)
    if len(raw) > LIMIT_BYTES:
        raise too_large(LIMIT_BYTES)
    try:
        return msgspec.json.decode(raw, type=Body)
    except msgspec.ValidationError as error:
        reason, _, path = str(error).partition(" - at `$")
        field = path.strip("`.") or _named(reason)
        raise ProblemError(400, f"{reason}.", field=field) from error
    except msgspec.DecodeError as error:
        raise ProblemError(400, f"The body is no JSON: {error}.", field="body") from error


def _named(reason: str) -> str:
    """Return the field that a refusal quotes, or the body as a whole."""
    return reason.split("`")[-2] if " field `" in reason else "body"


def _said(body: Body, *, now: datetime) -> Said:
    at = _moment("at", body.at) or now
    ends_at = _moment("ends_at", body.ends_at)
    return Said(body.kind, body.text, at, ends_at, body.run, body.node)


def _moment(field: str, given: Moment) -> datetime | None:
    if isinstance(given, float):
        try:
            return datetime.fromtimestamp(given, UTC)
        except (ValueError, OverflowError, OSError):
            raise AnnotationError(field, "is no Unix second of this age") from None
    if given is not None and given.tzinfo is None:
        raise AnnotationError(field, "has no time zone; end it with Z or an offset")
    return given


def _told(note: Annotation) -> dict[str, object]:
    return {
        "id": note.pk,
        "at": note.at,
        "ends_at": note.ends_at,
        "kind": note.kind,
        "run": note.run.name if note.run else None,
        "node": note.node.name if note.node else None,
        "text": note.text,
        "by": note.by,
    }
