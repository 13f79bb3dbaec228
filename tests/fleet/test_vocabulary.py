"""Pages, messages, documents and code use the words of monitoring."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FILES = (
    "README.md",
    "CONTRIBUTING.md",
    "docs/annotations.md",
    "docs/api.md",
    "docs/costs.md",
    "docs/faults.md",
    "docs/logs.md",
    "docs/long-term.md",
    "docs/operations.md",
    "docs/physics.md",
    "docs/preflight.md",
    "docs/real-nodes.md",
    "docs/schedule.md",
    "docs/step-reports.md",
    "docs/support-check.md",
    "docs/traces.md",
    "docs/trials.md",
    "docs/runbooks/*.md",
    "docs/metrics.md",
    "docs/prometheus.md",
    "fleet/charts/**/*.py",
    "fleet/checks/**/*.py",
    "fleet/metrics/**/*.py",
    "fleet/metrics/*.toml",
    "telemetry/catalog/**/*.py",
    "telemetry/checks/**/*.py",
    "telemetry/exporter/**/*.py",
    "telemetry/long_term/**/*.py",
    "telemetry/statistics/**/*.py",
    "fleet/access/**/*.py",
    "fleet/api/**/*.py",
    "fleet/costs/**/*.py",
    "fleet/management/**/*.py",
    "fleet/pages/**/*.py",
    "fleet/runs/**/*.py",
    "fleet/simulation/**/*.py",
    "fleet/trials/**/*.py",
    "telemetry/agent/**/*.py",
    "templates/alerts/**/*.html",
    "templates/*.html",
    "templates/charts/**/*.html",
    "templates/checks/**/*.html",
    "templates/costs/**/*.html",
    "templates/nodes/**/*.html",
    "templates/pages/**/*.html",
    "templates/runs/**/*.html",
    "templates/simulation/**/*.html",
    "templates/trials/**/*.html",
    "fleet/static/fleet/*.js",
    "docs/alerts.md",
    "docs/decisions/*.md",
    "docs/notifications.md",
    "fleet/alerts/**/*.py",
    "fleet/notifications/**/*.py",
    "fleet/ops/**/*.py",
    "templates/alerts/**/*.md",
    "templates/notifications/**/*.html",
    "templates/notifications/**/*.txt",
    "fleet/ingest/**/*.py",
    "telemetry/ingest/**/*.py",
    "telemetry/store/**/*.py",
    "trnwatch/**/*.py",
)
# Phrase (a regular expression) and what to write instead.
PHRASES = {
    r"(?i)\b(the demo|nobody) has it\b": "Acknowledged by demo; Unacknowledged",
    r"(?i)\bnot yet taken\b|\btaken by\b": "Unacknowledged; Acknowledged by",
    r"(?i)\bgive it back\b|\bgiven back\b": "Unacknowledge",
    r"Give to…": "Assign to…",
    r"(?i)\bcall(ed)? it over\b": "Resolve manually",
    r"(?i)\bwhat you see is of\b": "Showing data from",
    r"(?i)\bslowed with it\b": "Also affected",
    r"(?i)\ball of it \(runbook\)": "Full runbook",
    r"Step by step": "Time range",
    r"(?i)\blost, unannounced\b": "Unplanned compile time",
    r"(?i)\bpaid meanwhile\b": "cost",
    r"(?i)\bcompiled again by accident\b": "Unplanned recompilation",
    r"(?i)\bEFA link answers slowly\b": "High EFA latency",
    r"(?i)\b(cause|place) (named )?right(ly)?\b": "Cause correct; Location correct",
    r"(?i)\bput there by\b": "Started by",
    r"(?i)\bit will be asked whether\b": "Confirm: …",
    r"(?i)\bno like run\b": "No comparable run",
    r"(?i)\bone of them may come\b": "Use only one of the pair",
    r"(?i)\breckoned with\b": "Assumptions",
    r"(?i)\btell the end as well\b": "Also notify on resolve",
    r"(?i)\bwhat it takes to fire\b": "firing threshold",
    r"(?i)\bwithout news\b": "with no recent data",
    r"(?i)\bworked out\b": "Updated; calculated",
    r">Money<|: money\b": "Cost",
    r"(?i)\bat its end\b": "Projected total",
    r"Hand-over": "Shift handover",
    r"(?i)\b(nobody|whoever|whom|lest|nought|in vain|for want of|of one's own)\b": "plain English",
    r"(?i)\b(is|are|be) to blame\b|\bas it was\b|\bat the least\b": "plain English",
    r"(?i)\bnot told\b|\bit is told\b|\btells of\b": "unknown; reported",
}


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Yield line and text: of Python the strings that are no docstrings, of others each line."""
    if path.suffix != ".py":
        yield from enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        return
    tree = ast.parse(path.read_text(encoding="utf-8"))
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    constants = (node for node in ast.walk(tree) if isinstance(node, ast.Constant))
    for node in constants:
        if isinstance(node.value, str) and id(node) not in docstrings:
            yield node.lineno, node.value


def test_no_text_uses_a_private_word() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {match.group()!r}, better: {instead}"
        for pattern in FILES
        for path in sorted(ROOT.glob(pattern))
        for number, text in texts(path)
        for phrase, instead in PHRASES.items()
        if (match := re.search(phrase, text))
    ]

    assert found == []
