"""The evidence of an alert as a list: names and figures, and what was ruled out."""

from collections.abc import Iterable
from datetime import timedelta

from django.db.models import QuerySet
from django.utils.html import format_html
from django.utils.safestring import SafeString

from fleet.models import Alert
from fleet.templatetags.units import count, duration, percent, seconds
from fleet.words.causes import cause_name, part_name
from fleet.words.evidence import Culprit, Evidence
from fleet.words.wording import counted, figure

Fact = tuple[str, SafeString]

WEEK = timedelta(days=7)
ORDINALS = {2: "second", 3: "third", 4: "fourth", 5: "fifth"}


def facts(alert: Alert, *, n_before: int) -> list[Fact]:
    """Return what is known of an alert; ``n_before`` like ones fired within the last week."""
    evidence = Evidence(alert.evidence)
    found: Iterable[tuple[str, SafeString | str | None]] = (
        ("Culprit", _culprit(alert)),
        ("Cause", None if alert.run is None and alert.node is None else cause_name(alert.cause)),
        ("Measured", _measured(evidence.culprit)),
        ("Peers", _peers(evidence.culprit)),
        ("Share", _share(evidence)),
        ("Step", _step(evidence)),
        ("Onset", _onset(alert)),
        ("Score", f"{alert.score:.1f} times what it takes to fire"),
        ("Comes last", percent_of(evidence, "last_ratio")),
        ("Changed", ", ".join(evidence.names("changed"))),
        ("Not heard of", ", ".join(evidence.names("unreported"))),
        ("Silent too", ", ".join(evidence.names("also_silent"))),
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


def percent_of(evidence: Evidence, key: str) -> str | None:
    """Return in how many of the steps it was so; only where somebody is waited for."""
    ratio = evidence.number(key)
    return f"in {percent(ratio, 0)} of the steps" if ratio and evidence.is_waiting else None


def ruled_out(alert: Alert) -> list[tuple[str, str]]:
    """Return the causes that do not hold, each with its figure beside that of its peers."""
    return [
        (cause_name(cause), _beside(look))
        for cause, look in Evidence(alert.evidence).ruled_out.items()
    ]


def _beside(look: Culprit) -> str:
    if look.value is None or look.peers_median is None:
        return "does not stand out"
    return f"{figure(look.value, look.unit)}, peers {figure(look.peers_median, look.unit)}"


def _recurring(alert: Alert, n_before: int) -> str | None:
    if not n_before:
        return None
    nth = ORDINALS.get(n_before + 1, f"{n_before + 1}th")
    return f"{nth} time this week on this {'node' if alert.node else 'run'}"
