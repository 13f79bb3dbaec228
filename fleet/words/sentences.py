"""An alert as a person would say it: what, where, since when, how bad, and why."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from fleet.models import Alert
from fleet.templatetags.units import seconds, usd
from fleet.words import wording
from fleet.words.causes import LINKS, cause_name, part_name
from fleet.words.clauses import capital, clause
from fleet.words.culprits import NOTHING, blamed, figure_of, run_link
from fleet.words.evidence import Evidence
from fleet.words.losses import Loss, loss
from fleet.words.openings import opening, relation, scaled_down
from fleet.words.wording import listed

# Rules whose clause or opening already names the cause, and its figure.
SELF_TOLD = frozenset(
    {
        *("monitoring_blind", "node_silent", "ecc_uncorrected", "recompile"),
        *("cost_drift", "budget_overrun", "preflight"),
    }
)
CLOSE_RATIO = 0.02


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
    part: str


def told(alert: Alert, *, now: datetime, share_ratio: float | None = None) -> Told:
    """Put an alert in words, short and long; ``share_ratio`` is what its run's share is now."""
    return Told(
        alert,
        clause(alert),
        blame(alert),
        story(alert, now=now, share_ratio=share_ratio),
        cause=cause_name(alert.cause),
        lasted=alert.lasted(now),
        lost=loss(alert),
        part=part_name(alert.cause) or "device",
    )


def blame(alert: Alert) -> SafeString:
    """Say the likely cause in one short sentence; nothing where there is no more to say."""
    evidence = Evidence(alert.evidence)
    if _is_of_node(alert):
        return _figure_and_run(alert)
    if alert.rule in SELF_TOLD:
        return NOTHING
    if alert.rule == "node_idle":
        return format_html("{}Idle: {}.", scaled_down(alert), listed(evidence.names("nodes")))
    if evidence.is_layout:
        return SafeString("Nothing is broken: the run is laid out to communicate this much.")
    if alert.cause == "unknown":
        return SafeString("No cause stands out.")
    # Whatever comes first is a word of ours, or the tag of a link.
    cause = blamed(alert)
    return format_html(
        "{}{}.", SafeString(cause[:1].upper() + cause[1:]), figure_of(evidence.culprit)
    )


def _is_of_node(alert: Alert) -> bool:
    """Whether the alert is about a part of a node, which its clause names with what it does."""
    return alert.subject.startswith("node:") and alert.node is not None


def _figure_and_run(alert: Alert) -> SafeString:
    """Say the figure and whom it slows: of a node, everything else stands in the clause."""
    figure = figure_of(Evidence(alert.evidence).culprit).removeprefix(": ")
    is_told = bool(figure) and alert.rule not in SELF_TOLD
    told = [capital(SafeString(f"{figure}."))] if is_told else []
    if alert.run is not None:
        told.append(format_html("It {} {}.", relation(alert), run_link(alert)))
    return _joined(told)


def story(alert: Alert, *, now: datetime, share_ratio: float | None = None) -> SafeString:
    """Say all of it: what, where, since when, how bad, why, and what it has cost."""
    sentences = [opening(alert, now=now, share_ratio=share_ratio)]
    if alert.rule not in SELF_TOLD:
        is_told = _is_of_node(alert) or (alert.rule == alert.cause and alert.node is None)
        cause = NOTHING if is_told else _cause(alert)
        sentences += [cause, _how_it_shows(alert), _pace(alert)]
    return _joined([*sentences, _price(alert)])


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
    if alert.rule != "allreduce_share":
        return NOTHING
    if evidence.number("wait_ratio") is None or evidence.is_layout:
        return NOTHING
    everyone = f"All {alert.run.n_nodes} nodes" if alert.run else "All nodes"
    if not evidence.is_waiting or alert.cause in LINKS:
        return format_html(
            "{} arrive at the collective together; the transfer itself is slow.", everyone
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
    if step_s is None or healthy_s is None or alert.rule == "step_slow":
        return NOTHING
    if abs(step_s - healthy_s) <= CLOSE_RATIO * healthy_s:
        text = "Steps {} no longer than before."
        return format_html(text, "take" if alert.is_open else "took")
    return format_html(
        "Each step {} {} in place of {}.",
        "takes" if alert.is_open else "took",
        seconds(step_s),
        seconds(healthy_s),
    )


def _price(alert: Alert) -> SafeString:
    """Say what was lost, in dollars and in steps."""
    lost = loss(alert)
    if lost is None:
        return NOTHING
    so_far = " so far" if alert.is_open else ""
    if lost.is_none:
        return format_html("<b>No step</b> lost{}.", so_far)
    steps = wording.counted(lost.n_steps, "step")
    if lost.usd is None:
        return format_html("<b>{}</b> lost{}.", steps, so_far)
    return format_html("<b>{}</b> and <b>{}</b> lost{}.", usd(lost.usd), steps, so_far)


def _joined(sentences: list[SafeString]) -> SafeString:
    return format_html_join(" ", "{}", ((each,) for each in sentences if each))
