"""The evidence of an alert as a list: names and figures, and what was ruled out."""

from collections.abc import Iterable
from datetime import timedelta

from django.db.models import QuerySet
from django.utils.html import format_html
from django.utils.safestring import SafeString

from fleet.causes import cause_name, part_name
from fleet.evidence import Culprit, Evidence
from fleet.models import Alert
from fleet.templatetags.units import count, duration, percent, seconds
from fleet.wording import counted, figure

Fact = tuple[str, SafeString]

WEEK = timedelta(days=7)
ORDINALS = {2: "second", 3: "third", 4: "fourth", 5: "fifth"}


def facts(alert: Alert, *, n_before: int) -> list[Fact]:
    """Return what is known of an alert; ``n_before`` like ones fired within the last week."""
    evidence = Evidence(alert.evidence)
    found: Iterable[tuple[str, SafeString | str | None]] = (
        ("Culprit", _culprit(alert)),
        ("Cause", cause_name(alert.cause)),
        ("Measured", _measured(evidence.culprit)),
        ("Peers", _peers(evidence.culprit)),
        ("Share", _share(evidence)),
        ("Step", _step(evidence)),
        ("Onset", _onset(alert)),
        ("Evidence", f"{alert.score:.1f} times what it takes to fire"),
        ("Confidence", _confidence(evidence)),
        ("Ruled out", ", ".join(map(cause_name, evidence.ruled_out)) or None),
        ("Recurring", _recurring(alert, n_before)),
    )
    return [(name, format_html("{}", value)) for name, value in found if value]


def like(alert: Alert) -> QuerySet[Alert]:
    """Find the alerts of the week before that say the same of the same machine."""
    same = Alert.objects.filter(
        rule=alert.rule, cause=alert.cause, subject=alert.subject, node=alert.node
    )
    return same.filter(fired_at__lt=alert.fired_at, fired_at__gte=alert.fired_at - WEEK)


def _culprit(alert: Alert) -> SafeString | None:
    if alert.node is None:
        return None
    part = part_name(alert.cause)
    where = f", {part} {alert.device}" if part and alert.device is not None else ""
    return format_html(
        '<a class="mono" href="{}">{}</a>{}', alert.node.get_absolute_url(), alert.node, where
    )


def _measured(culprit: Culprit) -> str | None:
    return None if culprit.value is None else figure(culprit.value, culprit.unit)


def _peers(culprit: Culprit) -> str | None:
    if culprit.peers_median is None:
        return None
    of = "" if culprit.n_peers is None else f", {counted(culprit.n_peers, 'peer')}"
    return f"{figure(culprit.peers_median, culprit.unit)} median{of}"


def _share(evidence: Evidence) -> str | None:
    wait, transfer = evidence.number("wait_ratio"), evidence.number("transfer_ratio")
    if wait is None or transfer is None:
        return None
    return f"transferring {percent(transfer)}, waiting {percent(wait)}"


def _step(evidence: Evidence) -> str | None:
    step_s, healthy_s = evidence.number("step_s"), evidence.number("baseline_step_s")
    if step_s is None:
        return None
    number = evidence.number("step")
    text = seconds(step_s) if healthy_s is None else f"{seconds(step_s)}, was {seconds(healthy_s)}"
    return text if number is None else f"{text}, at step {count(number)}"


def _onset(alert: Alert) -> SafeString:
    before = alert.fired_at - alert.onset_at
    return format_html("{} before it fired", duration(before))


def _confidence(evidence: Evidence) -> str | None:
    confidence = evidence.number("confidence")
    return None if confidence is None else f"{confidence:.2f}"


def _recurring(alert: Alert, n_before: int) -> str | None:
    if not n_before:
        return None
    nth = ORDINALS.get(n_before + 1, f"{n_before + 1}th")
    return f"{nth} time this week on this {'node' if alert.node else 'run'}"
