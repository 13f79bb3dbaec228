"""The plain way in for nodes' lines: one body, one answer."""

import time

import msgspec
from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.views.decorators.csrf import csrf_exempt

from fleet.api.bodies import check_announced, too_large
from fleet.api.serving import Call, answer, serve
from fleet.problem import ProblemError, problem


@csrf_exempt
def ingest_neuron_monitor(request: HttpRequest) -> HttpResponse:
    """Take the reports of one node, and say what became of them."""
    return _taken(request, alone=False)


@csrf_exempt
def ingest_efa(request: HttpRequest) -> HttpResponse:
    """Take what one node says of its EFA devices and its driver, and say what became of it."""
    return _taken(request, alone=True)


def _taken(request: HttpRequest, *, alone: bool) -> HttpResponse:
    """Take the lines of one node."""
    if request.method != "POST":
        return problem(405, "Send the lines by POST.", headers={"Allow": "POST"})
    try:
        headers = {name.lower(): value for name, value in request.headers.items()}
        node = request.GET.get("node")
        call = Call(headers, node, _body(request), time.time(), alone=alone)
        serve([call])
        told = answer(call)
    except ProblemError as error:
        return error.response()
    return HttpResponse(msgspec.json.encode(told), content_type="application/json")


def _body(request: HttpRequest) -> bytes:
    """Read the body, if it is not too large."""
    limit = settings.INGEST_MAX_BODY_BYTES
    check_announced(request.META.get("CONTENT_LENGTH"), limit=limit)
    body = request.read(limit + 1)
    if len(body) > limit:
        raise too_large(limit)
    return body
