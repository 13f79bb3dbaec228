"""What each operation of the API needs: said once, for its gate and for its description."""

from typing import Any

ANYBODY = ""


def needs(scope: str) -> dict[str, Any]:
    """Return what an operation says of who may call it, for its ``openapi_extra``.

    People need a role that has the scope; an empty scope is anybody who is known.
    """
    scopes = [scope] if scope else []
    return {"security": [{"bearer": scopes}, {"session": scopes}]}


def scope_of(extra: dict[str, Any] | None) -> str:
    """Return the scope that an operation needs, by its ``openapi_extra``."""
    scopes = (extra or {}).get("security", [{}])[0].get("bearer", [])
    return scopes[0] if scopes else ANYBODY
