"""Matchers: conditions on alerts, as in Alertmanager, and the silences that use them."""

import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from operator import itemgetter
from typing import Any

import re2

from fleet.models import Alert, Node, Run, Silence
from fleet.models.filters import LABEL_NAME
from telemetry.errors import FieldError

FIELDS = ("rule", "cause", "severity", "run", "node", "team", "subject", "drill")
# A label of the alert's nodes and runs, such as `label.namespace`.
LABEL = re.compile(rf"label\.({LABEL_NAME})")
LABEL_FIELD = "label.NAME"
FIELDS_TEXT = ", ".join((*FIELDS, LABEL_FIELD))
OPS = ("=", "!=", "=~", "!~")
# The column of a silence and of a route has as many.
LONGEST_TEXT = 500
LONGEST_PATTERN = 200
MANY_PATTERNS = 1024
# Bytes of one compiled pattern. With so many kept, patterns take 64 MiB at most. What fits has at
# most 2,700 instructions (two thirds of the bytes, 16 each), and each character of a value costs
# at most one pass over them.
MOST_PATTERN_BYTES = 64 * 1024
MOST_NAMED_RUNS = 20

MATCHER = re.compile(
    r'\s*(?P<field>[^\s=!~",]+)\s*(?P<op>=~|!~|!=|=)\s*(?P<value>"[^"]*"|[^\s",]*)'
)
PLAIN = re.compile(r'[^\s",=!~][^\s",]*')
BETWEEN = re.compile(r"\s*,\s*|\s+")


@dataclass(frozen=True, slots=True)
class Matcher:
    """One condition on an alert: a field, an operator, a value or a pattern of the whole value."""

    field: str
    op: str
    value: str

    def __str__(self) -> str:
        value = self.value if PLAIN.fullmatch(self.value) else f'"{self.value}"'
        return f"{self.field}{self.op}{value}"

    def accepts(self, value: str) -> bool:
        if self.op in ("=", "!="):
            return (value == self.value) is (self.op == "=")
        return (_compiled(self.value).fullmatch(value) is not None) is (self.op == "=~")


def parse_matchers(text: str) -> tuple[Matcher, ...]:
    """Parse matchers: ``rule=allreduce_share team=~"blue|green" node!=trn-07``.

    Raises FieldError where the text is too long, a part is not a matcher, its field is unknown,
    or its pattern is invalid or too large.
    """
    matchers, at, text = [], 0, text.strip()
    if len(text) > LONGEST_TEXT:
        raise FieldError("matchers", f"is longer than {LONGEST_TEXT} characters. Shorten it.")
    while at < len(text):
        one = MATCHER.match(text, at)
        if one is None:
            raise FieldError(
                "matchers",
                f"{text[at : at + 40]!r} is not a matcher. Write field=value, "
                f"with one of {' '.join(OPS)} between them.",
            )
        field, op, value = one["field"], one["op"], one["value"].strip('"')
        if field not in FIELDS and not LABEL.fullmatch(field):
            raise FieldError(
                "matchers", f"{field[:40]!r} is not a field. Use one of {FIELDS_TEXT}."
            )
        if op in ("=~", "!~"):
            _check_pattern(field, value)
        matchers.append(Matcher(field, op, value))
        at = one.end()
        gap = BETWEEN.match(text, at)
        if gap is None and at < len(text):
            raise FieldError("matchers", f"put a space before {text[at : at + 40]!r}")
        at = gap.end() if gap else at
    return tuple(matchers)


def error_of(text: str) -> str:
    """Say why stored matchers are invalid; empty where they are valid.

    An earlier release may have accepted them: its patterns were Python's.
    """
    try:
        parse_matchers(text)
    except FieldError as error:
        return error.message
    return ""


def written(matchers: Iterable[Matcher]) -> str:
    """Write matchers in the form that ``parse_matchers`` reads."""
    return " ".join(map(str, matchers))


def matchers_of(alert: Alert) -> tuple[Matcher, ...]:
    """Build matchers for the problem of an alert, under any rule that detects it."""
    (rule,), (cause,), runs, nodes = itemgetter("rule", "cause", "run", "node")(fields_of(alert))
    same_rule = Matcher("rule", "=", rule)
    any_run = "|".join(map(re2.escape, runs))
    if len(nodes) == 1 and nodes[0]:
        return Matcher("node", "=", nodes[0]), Matcher("cause", "=", cause)
    if len(runs) == 1:
        return (same_rule, Matcher("run", "=", runs[0])) if runs[0] else (same_rule,)
    if len(runs) <= MOST_NAMED_RUNS and len(any_run) <= LONGEST_PATTERN:
        return same_rule, Matcher("run", "=~", any_run)
    return same_rule, Matcher("cause", "=", cause)


def matches(matchers: Iterable[Matcher], alert: Alert, *, whole: bool = False) -> bool:
    """Whether all matchers accept an alert; an empty list accepts every alert.

    An alert may name several runs or nodes. ``whole``: each of them must be accepted, as for a
    silence; otherwise one is enough, as for a route.
    """
    matchers, accept = tuple(matchers), all if whole else any
    fields = fields_of(alert) | labels_of(alert, {matcher.field for matcher in matchers})
    return all(accept(map(matcher.accepts, fields[matcher.field])) for matcher in matchers)


def fields_of(alert: Alert) -> dict[str, list[str]]:
    """Map each field of matchers to its values for an alert; one empty text where it has none."""
    kind, _, name = alert.subject.partition(":")
    team = alert.run.team if alert.run else ""
    teams = Run.objects.filter(name__in=alert.runs).values_list("team", flat=True)
    return {
        "rule": [alert.rule],
        "cause": [alert.cause],
        "severity": [alert.get_severity_display()],
        "run": alert.runs or [""],
        "node": alert.nodes or [name if kind == "node" else ""],
        "team": sorted({team, *teams}) if len(alert.runs) > 1 else [team],
        "subject": [alert.subject],
        "drill": ["yes" if alert.is_drill else "no"],
    }


def labels_of(alert: Alert, fields: Iterable[str]) -> dict[str, list[str]]:
    """Map each ``label.NAME`` among the fields to its values: one per node, else one per run.

    A node without the label has that of the alert's run, if there is one run.
    """
    names = {field: match[1] for field in fields if (match := LABEL.fullmatch(field))}
    if not names:
        return {}
    nodes = [alert.node] if alert.node else list(Node.objects.filter(name__in=alert.nodes))
    runs = [alert.run] if alert.run and len(alert.runs) == 1 else []
    if len(alert.runs) > 1:
        runs = list(Run.objects.filter(name__in=alert.runs))
    values = {}
    for field, name in names.items():
        of_runs = [run.labels.get(name, "") for run in runs]
        of_run = of_runs[0] if len(of_runs) == 1 else ""
        values[field] = [node.all_labels.get(name, of_run) for node in nodes] or of_runs or [""]
    return values


ParsedSilence = tuple[Silence, tuple[Matcher, ...]]


def active_silences(*, now: datetime) -> list[ParsedSilence]:
    """List the active silences with their matchers, the one that lasts longest first.

    A silence with invalid matchers silences nothing: rather one notification too many.
    """
    parsed = []
    for silence in Silence.objects.active(now).order_by("-ends_at", "-pk"):
        with suppress(FieldError):
            parsed.append((silence, parse_matchers(silence.matchers)))
    return parsed


def silences_of(alert: Alert, *, now: datetime) -> list[Silence]:
    """List the silences of an alert, the one that lasts longest first."""
    return matching_silences(active_silences(now=now), alert)


def matching_silences(silences: Iterable[ParsedSilence], alert: Alert) -> list[Silence]:
    return [silence for silence, matchers in silences if matches(matchers, alert, whole=True)]


def _check_pattern(field: str, pattern: str) -> None:
    """Refuse a pattern that is invalid, or that is larger than one may be."""
    if len(pattern) > LONGEST_PATTERN:
        raise FieldError(
            "matchers", f"{field}: the pattern is longer than {LONGEST_PATTERN} characters"
        )
    try:
        _compiled(pattern)
    except (re2.error, UnicodeError) as error:
        why = error.args[0] if isinstance(error, re2.error) else "not text"
        why = why.decode("utf-8", "replace") if isinstance(why, bytes) else str(why)
        raise FieldError(
            "matchers",
            f"{field}: the pattern {pattern!r} is invalid: {why}. Write it in RE2's syntax, "
            "as for Prometheus and Alertmanager, without large repetitions.",
        ) from error


def _options() -> Any:
    options = re2.Options()
    options.max_mem = MOST_PATTERN_BYTES
    # Without this, a refused pattern is also written to the standard error output.
    options.log_errors = False
    return options


OPTIONS = _options()


@lru_cache(MANY_PATTERNS)
def _compiled(pattern: str) -> Any:
    """Compile a pattern for RE2, whose time to match is linear in pattern and value."""
    return re2.compile(pattern, OPTIONS)
