"""An alert as a person would say it: what, where, since when, how bad, and why."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from fleet import wording
from fleet.causes import CAUSES, cause_name
from fleet.evidence import Culprit, Evidence, Loss, loss
from fleet.models import Alert
from fleet.templatetags.units import duration, percent, seconds, usd

NOTHING = SafeString("")


@dataclass(frozen=True, slots=True)
class Told:
    """An alert in words."""

    alert: Alert
    headline: SafeString
    blame: SafeString
    story: SafeString
    cause: str
    lasted: timedelta
    lost: Loss | None


def told(alert: Alert, *, now: datetime) -> Told:
    """Put an alert in words, short and long."""
    return Told(
        alert,
        headline(alert),
        blame(alert),
        story(alert, now=now),
        cause=cause_name(alert.cause),
        lasted=alert.lasted(now),
        lost=loss(alert, now=now),
    )


def headline(alert: Alert) -> SafeString:
    """Say in one clause what is wrong and where."""
    evidence = Evidence(alert.evidence)
    match alert.rule:
        case "allreduce_share":
            share = percent(evidence.number("share_ratio"))
            return format_html("{} spends {} of each step in all-reduce", alert.run, share)
        case "node_silent":
            return format_html("{} has gone silent", alert.node or alert.subject)
        case "ecc_uncorrected":
            return format_html("{} counts uncorrected ECC errors", alert.node or alert.subject)
        case "monitoring_blind":
            return format_html("Monitoring is blind: no node is heard of")
    return format_html("{} on {}", alert.rule.replace("_", " "), alert.subject.partition(":")[2])


def blame(alert: Alert) -> SafeString:
    """Say the likely cause in one short sentence; nothing where there is no more to say."""
    if alert.rule != "allreduce_share":
        return NOTHING
    if alert.cause == "unknown":
        return format_html("No cause stands out yet.")
    figure = _figure(Evidence(alert.evidence).culprit)
    return format_html("{}{}.", _capital(_blamed(alert)), figure)


def story(alert: Alert, *, now: datetime) -> SafeString:
    """Say all of it: what, where, since when, how bad, why, and what it has cost."""
    tell = STORIES.get(alert.rule, _other_story)
    return format_html("{} {}", tell(alert, now), _price(alert, now))


def _share_story(alert: Alert, now: datetime) -> SafeString:
    evidence = Evidence(alert.evidence)
    limit = evidence.number("limit_ratio")
    if limit is None and alert.run is not None:
        limit = alert.run.allreduce_limit_ratio
    what = format_html(
        "<b>{}</b> {} <b class='bad-text'>{}</b> of each step in gradient all-reduce, "
        "above the {} limit.",
        _run(alert),
        "spends" if alert.is_open else "spent",
        percent(evidence.number("share_ratio")),
        percent(limit, 0),
    )
    return _joined([what, _cause(alert), _how_it_shows(alert), _pace(alert)])


def _cause(alert: Alert) -> SafeString:
    if alert.cause == "unknown":
        return format_html(
            "The cause is <b>unknown</b>: no worker, link or memory stands out from its peers."
        )
    figure = _figure(Evidence(alert.evidence).culprit)
    return format_html("The likely cause is <b>{}</b>{}.", _blamed(alert), figure)


def _figure(culprit: Culprit) -> SafeString:
    """Set the culprit's figure against that of its peers: ``: 142 µs against 17 µs``."""
    if culprit.value is None:
        return NOTHING
    value = wording.figure(culprit.value, culprit.unit)
    if culprit.peers_median is None:
        return format_html(": {}", value)
    peers = wording.figure(culprit.peers_median, culprit.unit)
    return format_html(": {} against {} on its peers", value, peers)


def _how_it_shows(alert: Alert) -> SafeString:
    """Say whether the bytes are slow or somebody is late: the two must not be confused."""
    evidence = Evidence(alert.evidence)
    if evidence.number("wait_ratio") is None and "kind" not in evidence.figures:
        return NOTHING
    everyone = f"all {alert.run.n_nodes} nodes" if alert.run else "all nodes"
    if not evidence.is_waiting:
        return format_html(
            "Nobody arrives late: the bytes themselves move slowly, for {}.", everyone
        )
    if alert.node is None:
        return format_html("The bytes move as fast as ever; workers wait for each other.")
    return format_html(
        "The bytes move as fast as ever: {} for <b>{}</b>, which waits least.",
        _waiters(alert),
        alert.node.name,
    )


def _waiters(alert: Alert) -> str:
    n_victims = len(alert.victims) or (alert.run.n_nodes - 1 if alert.run else 0)
    return "its peer waits" if n_victims == 1 else f"{n_victims:,} other nodes wait"


def _pace(alert: Alert) -> SafeString:
    evidence = Evidence(alert.evidence)
    step_s, healthy_s = evidence.number("step_s"), evidence.number("baseline_step_s")
    if step_s is None or healthy_s is None:
        return NOTHING
    return format_html(
        "Each step {} {} in place of {}.",
        "takes" if alert.is_open else "took",
        seconds(step_s),
        seconds(healthy_s),
    )


def _silent_story(alert: Alert, now: datetime) -> SafeString:
    lasted = duration(alert.lasted(now))
    said = "has said nothing for" if alert.is_open else "said nothing for"
    what = format_html("<b>{}</b> {} <b class='bad-text'>{}</b>.", _link(alert), said, lasted)
    if alert.run is None:
        return what
    steps_go_on = Evidence(alert.evidence).figures.get("run_trains_on")
    if steps_go_on is None:
        return _joined([what, format_html("It belongs to {}.", _run(alert))])
    verdict = (
        "goes on, so the agent is the likelier fault than the node"
        if steps_go_on
        else "has stopped as well: the node itself may be gone"
    )
    return _joined([what, format_html("Its run {} {}.", _run(alert), verdict)])


def _ecc_story(alert: Alert, now: datetime) -> SafeString:
    figures = Evidence(alert.evidence)
    n_errors = figures.number("rise")
    count = "uncorrected memory errors"
    if n_errors is not None:
        count = wording.counted(n_errors, "uncorrected memory error")
    part = "" if alert.device is None else f"Device {alert.device} of "
    return format_html(
        "{}<b>{}</b> counted <b class='bad-text'>{}</b>. "
        "What it computed since may be wrong: plan to replace the node.",
        part,
        _link(alert),
        count,
    )


def _blind_story(alert: Alert, now: datetime) -> SafeString:
    return format_html(
        "<b>Monitoring is blind</b>: no node has been heard of for <b class='bad-text'>{}</b>. "
        "What is broken is more likely the monitoring than the fleet; "
        "until it is mended no other alert can fire or resolve.",
        duration(alert.lasted(now)),
    )


def _other_story(alert: Alert, now: datetime) -> SafeString:
    return format_html("<b>{}</b>, for {}.", headline(alert), duration(alert.lasted(now)))


STORIES = {
    "allreduce_share": _share_story,
    "node_silent": _silent_story,
    "ecc_uncorrected": _ecc_story,
    "monitoring_blind": _blind_story,
}


def _price(alert: Alert, now: datetime) -> SafeString:
    """Say what the slower steps have cost, in dollars and in steps."""
    lost = loss(alert, now=now)
    if lost is None:
        return NOTHING
    return format_html(
        "<b>{}</b> and <b>{}</b> lost{}.",
        usd(lost.usd),
        wording.counted(lost.n_steps, "step"),
        " so far" if alert.is_open else "",
    )


def _run(alert: Alert) -> SafeString:
    if alert.run is None:
        return format_html("a run")
    return format_html('<a href="{}">{}</a>', alert.run.get_absolute_url(), alert.run.name)


def _link(alert: Alert) -> SafeString:
    if alert.node is None:
        return format_html("one node")
    return format_html('<a href="{}">{}</a>', alert.node.get_absolute_url(), alert.node.name)


def _blamed(alert: Alert) -> SafeString:
    """Name the cause and where it sits; the device only where one is known."""
    template = CAUSES.get(alert.cause, f"{cause_name(alert.cause)} on {{node}}")
    if alert.device is None:
        for part in ("EFA device {device} of ", "device {device} of ", "core {device} of "):
            template = template.replace(part, "")
    return format_html(template, device=alert.device, node=_link(alert))


def _capital(text: SafeString) -> SafeString:
    return SafeString(text[:1].upper() + text[1:]) if text[:1].isalpha() else text


def _joined(sentences: list[SafeString]) -> SafeString:
    return format_html_join(" ", "{}", ((each,) for each in sentences if each))
