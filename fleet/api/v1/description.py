"""The API's description: what ninja knows of it, the doors beside it, and how it says no."""

from typing import Any

from fleet.api.v1.access import scope_of
from fleet.api.v1.doors import DOORS, SCHEMAS
from fleet.api.v1.fields import Problem

ABOUT = """\
Runs, nodes, series, alerts, silences, annotations and tokens of a fleet that trains; trials and
their schedules, prices, budgets and dollars, compiles, preflights and support checks.

Send `Authorization: Bearer <token>`, or the session cookie of a person who has signed in; with
the cookie, changes need the CSRF token as `X-CSRFToken` too. Every operation says which scope
it needs. Lists come by the page: follow `next` and `prev`. What is read carries an `ETag`; send
it as `If-None-Match` and what has not changed is answered 304. Moments are ISO 8601 in UTC;
names end in their units (`_s` seconds, `_bytes`, `_ratio` 0 to 1). Whatever is unknown is null,
never 0. Refusals are problem documents (RFC 9457), and nothing is kept of what is refused.
"""
Document = dict[str, Any]
PROBLEM = {"$ref": "#/components/schemas/Problem"}
SAID = {
    "400": "A field or parameter cannot be, or is not known; `field` names it.",
    "401": "Nobody knows who asks.",
    "403": "Who asks may not.",
    "404": "There is no such thing.",
    "405": "Not by this method; `Allow` names those that do.",
    "409": "It cannot be done as things stand.",
    "412": "It has changed since (`If-Match`).",
    "413": "The body is too large.",
    "415": "It is not packed as understood: only gzip is.",
    "429": "Too many requests; `Retry-After` says when to ask again.",
    "503": "A store is away; `Retry-After` says when to ask again.",
}
READING = ("400", "401", "403", "404", "405", "429", "503")
CHANGING = (*READING, "409", "412", "413")
TAG = {"ETag": {"description": "Tag of exactly this body.", "schema": {"type": "string"}}}


def described(schema: Document) -> Document:
    """Return the whole description, from what ninja derives of types."""
    document = dict(schema)
    for path in document["paths"].values():
        for method, operation in path.items():
            _finish(operation, is_read=method == "get")
    document["paths"] |= DOORS
    components = document["components"]
    components["schemas"] |= SCHEMAS
    components["schemas"]["Problem"] = Problem.model_json_schema(mode="serialization")
    components["responses"] = {
        status: {
            "description": said,
            "content": {"application/problem+json": {"schema": PROBLEM}},
        }
        for status, said in SAID.items()
    }
    components["securitySchemes"] = {
        "bearer": {"type": "http", "scheme": "bearer", "description": "A token of trnwatch."},
        "session": {"type": "apiKey", "in": "cookie", "name": "trnwatch_session"},
    }
    document["security"] = [{"bearer": []}, {"session": []}]
    return {name: _without_null_defaults(part) for name, part in document.items()}


def _finish(operation: Document, *, is_read: bool) -> None:
    """Add to an operation what it has in common with the others."""
    scope = scope_of(operation)
    about = operation.get("description", "")
    operation["description"] = f"{about}\n\nNeeds scope `{scope}`." if scope else about
    for parameter in operation["parameters"]:
        parameter.setdefault("description", "Which one: its name, or its number.")
        # Of a parameter OpenAPI wants one example, or a table of them; ninja gives a list.
        if examples := parameter.pop("examples", []):
            parameter["example"] = examples[0]
    responses = operation["responses"] = {str(k): v for k, v in operation["responses"].items()}
    # What is read may be impossible as things stand, too: then the operation's own words say so.
    conflicts = ("409",) if "409" in about else ()
    for status in (*READING, *conflicts) if is_read else CHANGING:
        responses.setdefault(status, {"$ref": f"#/components/responses/{status}"})
    if is_read:
        responses["200"]["headers"] = TAG
        responses["304"] = {"description": "It has not changed (`If-None-Match`)."}
    elif operation["operationId"].startswith("alert_"):
        said = "The `version` of the alert in quotes: act only if nothing has happened since."
        operation["parameters"].append(_header("If-Match", said))


def _header(name: str, said: str) -> Document:
    return {
        "in": "header",
        "name": name,
        "required": False,
        "description": said,
        "schema": {"type": "string"},
    }


def _without_null_defaults(node: Any) -> Any:
    """Leave out defaults of null: where a parameter is left out, it is not null but absent."""
    if isinstance(node, dict):
        return {
            key: _without_null_defaults(value)
            for key, value in node.items()
            if not (key == "default" and value is None)
        }
    return [_without_null_defaults(each) for each in node] if isinstance(node, list) else node
