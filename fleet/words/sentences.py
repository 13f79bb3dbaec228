"""An alert as a person would say it: what, where, since when, how bad, and why."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from fleet.models import Alert
from fleet.templatetags.units import duration, percent, seconds, usd
from fleet.words import wording
from fleet.words.causes import cause_name
from fleet.words.culprits import NOTHING, blamed, figure_of, node_link, run_link
from fleet.words.evidence import Evidence, Loss, loss


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
            verb = "spends" if alert.is_open else "spent"
            return format_html("{} {} {} of each step in all-reduce", alert.run, verb, share)
        case "node_silent":
            verb = "has gone silent" if alert.is_open else "was silent"
            return format_html("{} {}", alert.node or alert.subject, verb)
        case "ecc_uncorrected":
            return format_html("{} counts uncorrected ECC errors", alert.node or alert.subject)
        case "monitoring_blind":
            verb = "is" if alert.is_open else "was"
            return format_html("Monitoring {} blind: no node {} heard of", verb, verb)
    return format_html("{} on {}", alert.rule.replace("_", " "), alert.subject.partition(":")[2])


def blame(alert: Alert) -> SafeString:
    """Say the likely cause in one short sentence; nothing where there is no more to say."""
    if alert.rule != "allreduce_share":
        return NOTHING
    if Evidence(alert.evidence).is_layout:
        return SafeString("Nothing is broken: the run is laid out to communicate this much.")
    if alert.cause == "unknown":
        return SafeString("No cause stands out.")
    figure = figure_of(Evidence(alert.evidence).culprit)
    return format_html("{}{}.", _capital(blamed(alert)), figure)


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
        run_link(alert),
        "spends" if alert.is_open else "spent",
        percent(evidence.number("share_ratio")),
        percent(limit, 0),
    )
    return _joined([what, _cause(alert), _how_it_shows(alert), _pace(alert)])


def _cause(alert: Alert) -> SafeString:
    evidence = Evidence(alert.evidence)
    if evidence.is_layout:
        return SafeString(
            "<b>Nothing is broken</b>: with its layout and batch the run communicates this much."
        )
    if alert.cause == "unknown":
        return SafeString(
            "The cause is <b>unknown</b>: no worker, link or memory stands out from its peers."
        )
    figure = figure_of(evidence.culprit)
    return format_html("The likely cause is <b>{}</b>{}.", blamed(alert), figure)


def _how_it_shows(alert: Alert) -> SafeString:
    """Say whether the bytes are slow or somebody is late: the two must not be confused."""
    evidence = Evidence(alert.evidence)
    if evidence.number("wait_ratio") is None or evidence.is_layout:
        return NOTHING
    everyone = f"all {alert.run.n_nodes} nodes" if alert.run else "all nodes"
    if not evidence.is_waiting:
        return format_html(
            "Nobody arrives late: the bytes themselves move slowly, for {}.", everyone
        )
    if alert.node is None:
        return SafeString("The bytes move as fast as ever; workers wait for each other.")
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
    what = format_html("<b>{}</b> {} <b class='bad-text'>{}</b>.", node_link(alert), said, lasted)
    if alert.run is None:
        return what
    steps_go_on = Evidence(alert.evidence).figures.get("run_trains_on")
    if steps_go_on is None:
        return _joined([what, format_html("It belongs to {}.", run_link(alert))])
    verdict = (
        "goes on, so the agent is the likelier fault than the node"
        if steps_go_on
        else "has stopped as well: the node itself may be gone"
    )
    return _joined([what, format_html("Its run {} {}.", run_link(alert), verdict)])


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
        node_link(alert),
        count,
    )


def _blind_story(alert: Alert, now: datetime) -> SafeString:
    lasted = duration(alert.lasted(now))
    if not alert.is_open:
        return format_html(
            "<b>Monitoring was blind</b>: no node was heard of for <b>{}</b>. "
            "What happened meanwhile is not known.",
            lasted,
        )
    return format_html(
        "<b>Monitoring is blind</b>: no node has been heard of for <b class='bad-text'>{}</b>. "
        "What is broken is more likely the monitoring than the fleet; "
        "until it is mended no other alert can fire or resolve.",
        lasted,
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


def _capital(text: SafeString) -> SafeString:
    return SafeString(text[:1].upper() + text[1:]) if text[:1].isalpha() else text


def _joined(sentences: list[SafeString]) -> SafeString:
    return format_html_join(" ", "{}", ((each,) for each in sentences if each))
