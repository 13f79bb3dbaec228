"""Tags of what was answered: who has it already is not sent it again."""

import hashlib

from django.http import HttpRequest, HttpResponse
from django.utils.cache import patch_vary_headers
from django.utils.http import parse_etags

from fleet.problem import ProblemError

TAG_BYTES = 16


def tag_of(body: bytes) -> str:
    """Return the strong entity tag of a body."""
    return f'"{hashlib.blake2b(body, digest_size=TAG_BYTES).hexdigest()}"'


def with_tag(request: HttpRequest, response: HttpResponse) -> HttpResponse:
    """Tag an answer to GET, or say that it has not changed."""
    tag = tag_of(response.content)
    held = parse_etags(request.headers.get("If-None-Match", ""))
    # If-None-Match compares weakly: a proxy that packs the body may have weakened the tag.
    if held == ["*"] or tag in {each.removeprefix("W/") for each in held}:
        response = HttpResponse(status=304)
        del response["Content-Type"]
    response["ETag"] = tag
    response["Cache-Control"] = "private, no-cache"
    patch_vary_headers(response, ["Authorization", "Cookie"])
    return response


def check_unchanged(request: HttpRequest, version: str) -> None:
    """Refuse to act on what is no longer as the caller saw it (If-Match)."""
    header = request.headers.get("If-Match")
    if header is None:
        return
    wanted = parse_etags(header)
    if wanted != ["*"] and f'"{version}"' not in wanted:
        detail = f'It has changed: its version is "{version}" now. Read it again, then decide.'
        raise ProblemError(412, detail, field="If-Match", version=version)
