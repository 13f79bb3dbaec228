"""What each operation of the API needs: said once, for its gate and for its description."""

from typing import Any

ANYBODY = ""


# How large a body may be where an operation says nothing else.
USUAL_BYTES = 16_384
MOST_BYTES = "x-body-limit-bytes"


def needs(scope: str, *, most_bytes: int = USUAL_BYTES) -> dict[str, Any]:
    """Return what an operation says of who may call it, for its ``openapi_extra``.

    People need a role that has the scope; an empty scope is anybody who is known. A body may
    have as many bytes as ``most_bytes``, and never more than Django reads.
    """
    scopes = [scope] if scope else []
    limit = {} if most_bytes == USUAL_BYTES else {MOST_BYTES: most_bytes}
    return {"security": [{"bearer": scopes}, {"session": scopes}], **limit}


def scope_of(extra: dict[str, Any] | None) -> str:
    """Return the scope that an operation needs, by its ``openapi_extra``."""
    scopes = (extra or {}).get("security", [{}])[0].get("bearer", [])
    return scopes[0] if scopes else ANYBODY


def limit_of(extra: dict[str, Any] | None) -> int:
    """Return how many bytes the body of an operation may have."""
    return int((extra or {}).get(MOST_BYTES, USUAL_BYTES))
