"""The doors that nodes and jobs report by, described from the very types they read lines with."""

from typing import Any

import msgspec

from fleet.ingest.nodes import TAKES
from telemetry.ingest import schemas, step_reports
from telemetry.ingest.columns import ColumnsLine

Document = dict[str, Any]
REF = "#/components/schemas/{name}"
(STEP_LINE, PLAIN_LINE, COLUMNS_LINE), SCHEMAS = msgspec.json.schema_components(
    [step_reports.StepReport, schemas.MonitorLine, ColumnsLine], ref_template=REF
)
NODE_LINE = {"anyOf": [PLAIN_LINE, COLUMNS_LINE]}
WHOLE = {"type": "integer", "minimum": 0}
OUTCOME: Document = {
    "type": "object",
    "required": ["accepted", "repeated", "clock_skew_s", "n_refused", "refused"],
    "properties": {
        "node": {"type": ["string", "null"], "description": "Whose lines they were (of nodes)."},
        "accepted": WHOLE | {"description": "Lines that were taken."},
        "repeated": WHOLE | {"description": "Lines that had been taken before: no harm is done."},
        "late": WHOLE | {"description": "Lines too old for the charts' seconds (of nodes)."},
        "clock_skew_s": {
            "type": "number",
            "description": "Seconds added to the sender's times: above 0 if its clock is behind.",
        },
        "n_refused": WHOLE | {"description": "Lines that were not taken."},
        "refused": {
            "type": "array",
            "description": "The first of them: which line, which field, and why.",
            "items": {
                "type": "object",
                "properties": {
                    "line": WHOLE | {"description": "Its number, from 1."},
                    "field": {"type": "string", "description": "What to mend."},
                    "reason": {"type": "string", "description": "Why."},
                },
            },
        },
        "takes": {
            "type": "array",
            "description": "Forms of lines that are understood beside the plain one (of nodes).",
            "items": {"type": "string", "enum": list(TAKES)},
        },
    },
}
NODE: Document = {
    "in": "query",
    "name": "node",
    "description": "Name of the node; left out, the lines name their instance.",
    "schema": {"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9._-]{0,79}$"},
}
LIVE: Document = {
    "in": "query",
    "name": "live",
    "description": "1: lines are taken as they come, for as long as the connection lasts.",
    "schema": {"type": "string", "enum": ["0", "1"]},
}
SENT_AT: Document = {
    "in": "header",
    "name": "X-Trnwatch-At",
    "description": "When it is sent, by the sender's clock, in Unix seconds: tells its skew.",
    "schema": {"type": "number"},
}
PREFER_WAIT: Document = {
    "in": "header",
    "name": "Prefer",
    "description": "wait=1: it may be served together with what comes within a second.",
    "schema": {"type": "string", "pattern": r"^wait=\d{1,4}$"},
}
REFUSALS = ("400", "401", "403", "405", "413", "415", "429", "503")


def _ingest_path(
    name: str, summary: str, about: str, line: Document, *parameters: Document
) -> Document:
    """Describe one door."""
    lines = {
        "schema": {"type": "string", "description": "A JSON object per line."},
        "x-line-schema": line,
    }
    # Whatever its type is said to be, a body is lines; of one of them JSON is the right name.
    body = {"application/json": {"schema": line}, "application/x-ndjson": lines}
    refused = {status: {"$ref": f"#/components/responses/{status}"} for status in REFUSALS}
    told = {"description": "Taken, but for what is named.", "content": {}}
    told["content"] = {"application/json": {"schema": OUTCOME}}
    return {
        "post": {
            "operationId": f"ingest_{name}",
            "tags": ["ingest"],
            "summary": summary,
            "description": f"{about}\n\nLines are JSON, one object each, at most 10,000; "
            "`Content-Encoding: gzip` is understood. `x-line-schema` describes a line.\n\n"
            "Needs scope `ingest`.",
            "security": [{"bearer": ["ingest"]}],
            "parameters": list(parameters),
            "requestBody": {"required": True, "content": body},
            "responses": {"200": told} | refused,
        }
    }


INGEST_PATHS: Document = {
    "/api/v1/ingest/neuron-monitor": _ingest_path(
        "neuron_monitor",
        "Report a node",
        "Takes what neuron-monitor prints, as it is or in an envelope.",
        NODE_LINE,
        NODE,
        LIVE,
        SENT_AT,
        PREFER_WAIT,
    ),
    "/api/v1/ingest/efa": _ingest_path(
        "efa",
        "Report a node's links",
        "Takes EFA counters and the driver's figures, which neuron-monitor lacks.",
        NODE_LINE,
        NODE,
        SENT_AT,
        PREFER_WAIT,
    ),
    "/api/v1/ingest/steps": _ingest_path(
        "steps",
        "Report a job's steps",
        "Takes what a training job says: what it is, its steps by worker, and its end.",
        STEP_LINE,
        SENT_AT,
    ),
}
