"""An alert as a person would say it: what, where, since when, how bad, and why."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import isfinite
from typing import Any

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from fleet import formatting
from fleet.alerts.evidence import LINKS, Culprit, Evidence, cause_name, part_name
from fleet.alerts.text import (
    NOTHING,
    blamed,
    capital,
    clause,
    figure_of,
    opening,
    relation,
    run_link,
    scaled_down,
)
from fleet.formatting import (
    count,
    counted,
    duration,
    figure,
    listed,
    percent,
    seconds,
    unit_of,
    usd,
)
from fleet.models import Alert

# Steps differ by as much of themselves: a smaller loss is none.
NOISE_RATIO = 0.01


@dataclass(frozen=True, slots=True)
class Loss:
    """What an alert has cost: seconds of work, whole steps and dollars, and how that was found."""

    lost_s: float
    n_steps: float
    usd: float | None
    how: str

    @property
    def is_none(self) -> bool:
        """Whether nothing was lost beyond what steps differ by anyway."""
        return not self.lost_s

    @property
    def short(self) -> str:
        """Return it in a few words, for a row of a list."""
        if self.is_none:
            return "no step"
        steps = counted(self.n_steps, "step")
        return steps if self.usd is None else f"{usd(self.usd)}, {steps}"


def loss(alert: Alert) -> Loss | None:
    """Return what an alert has cost, as fleet/costs.py measured it; None where nobody can tell."""
    cost = alert.cost
    lost_s, span_s = _number(cost, "lost_s"), _number(cost, "span_s")
    n_steps, dollars = _number(cost, "n_steps"), _number(cost, "usd")
    if lost_s is None or span_s is None or n_steps is None:
        return None
    if lost_s <= NOISE_RATIO * span_s:
        lost_s, n_steps, dollars = 0.0, 0.0, None if dollars is None else 0.0
    return Loss(lost_s, n_steps, dollars, _how(cost))


def _number(cost: dict[str, Any], name: str) -> float | None:
    value = cost.get(name)
    return float(value) if isinstance(value, int | float) and isfinite(value) else None


def _how(cost: dict[str, Any]) -> str:
    """Say how a loss was computed, with every figure that went into it."""
    span_s, paused_s = cost["span_s"], cost.get("paused_s", 0.0)
    n_done, usual_s = cost["n_done"], cost["usual_s"]
    before = f"the median of the {counted(cost['n_before'], 'step')} before"
    could = max(0.0, span_s - paused_s) / usual_s
    planned = ""
    if paused_s >= 1:
        planned = f" {duration(paused_s)} of checkpoints and evaluation are not counted."
    return (
        f"{counted(n_done, 'step')} ended in the {duration(span_s)} since the last healthy one; "
        f"at {seconds(usual_s)} each, {before}, there would have been {count(could)}."
        f"{planned}{_price(cost)}{_others(cost)}"
    )


def _price(cost: dict[str, Any]) -> str:
    per_hour = _number(cost, "usd_per_hour")
    if per_hour is None:
        return " No price is known for its nodes."
    return f" {counted(cost['n_nodes'], 'node')} cost {usd(per_hour)} an hour."


def _others(cost: dict[str, Any]) -> str:
    n_others = int(_number(cost, "n_others") or 0)
    if not n_others:
        return ""
    alerts, was = ("alert", "was") if n_others == 1 else ("alerts", "were")
    return (
        f" {n_others} other {alerts} of this run {was} open meanwhile: that loss is in here too."
    )


# Rules whose clause or opening already names the cause, and its figure.
SELF_TOLD = frozenset(
    {
        *("monitoring_blind", "node_silent", "ecc_uncorrected", "recompile"),
        *("cost_drift", "budget_overrun", "preflight"),
    }
)
CLOSE_RATIO = 0.02


@dataclass(frozen=True, slots=True)
class AlertText:
    """An alert in words."""

    alert: Alert
    headline: SafeString
    blame: SafeString
    story: SafeString
    cause: str
    lasted: timedelta
    lost: Loss | None
    part: str


def told(alert: Alert, *, now: datetime, share_ratio: float | None = None) -> AlertText:
    """Put an alert in words, short and long; ``share_ratio`` is what its run's share is now."""
    return AlertText(
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
    return _joined([*sentences, _sentences_price(alert)])


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


def _sentences_price(alert: Alert) -> SafeString:
    """Say what was lost, in dollars and in steps."""
    lost = loss(alert)
    if lost is None:
        return NOTHING
    so_far = " so far" if alert.is_open else ""
    if lost.is_none:
        return format_html("<b>No step</b> lost{}.", so_far)
    steps = formatting.counted(lost.n_steps, "step")
    if lost.usd is None:
        return format_html("<b>{}</b> lost{}.", steps, so_far)
    return format_html("<b>{}</b> and <b>{}</b> lost{}.", usd(lost.usd), steps, so_far)


def _joined(sentences: list[SafeString]) -> SafeString:
    return format_html_join(" ", "{}", ((each,) for each in sentences if each))


Fact = tuple[str, SafeString]

LABELS: Mapping[str, str] = {
    "resolve": "Resolves below",
    "n_errors": "Errors",
    "usd_per_hour": "Dollars per hour",
    "n_graphs": "Graphs",
    "key_changes": "Changed in the key",
}
# Figures that stand in the sentence, in a row of their own, or in a chart.
TOLD_ELSEWHERE = frozenset(
    {
        *("share_ratio", "wait_ratio", "transfer_ratio", "step", "step_s", "baseline_step_s"),
        *("phase_s", "baseline_phase_s", "onset_s", "since_s", "window", "last_ratio", "kind"),
        *("last_seen_s", "host_by_node", "wait_by_worker", "charts", "ruled_out", "culprit"),
        *("budget", "used_up_s", "ends_s", "usd_per_mtok", "expected_usd_per_mtok"),
        *("doubt", "started_s"),
        *("node_s_per_mtok", "expected_node_s_per_mtok"),
        *("tokens", "phase", "quiet_s", "worst_share_ratio", "lost_s", "end_s"),
    }
)


def facts(alert: Alert, *, recurring: str = "") -> list[Fact]:
    """Return what is known of an alert; ``recurring`` says how often it came lately."""
    evidence = Evidence(alert.evidence)
    found: Iterable[tuple[str, SafeString | str | None]] = (
        ("Culprit", _culprit(alert)),
        ("Cause", None if alert.run is None and alert.node is None else cause_name(alert.cause)),
        ("Measured", _measured(evidence.culprit)),
        ("Before" if evidence.culprit.n_peers == 0 else "Peers", _peers(evidence.culprit)),
        ("Threshold", _threshold(evidence.culprit)),
        ("Share", _share(evidence)),
        ("Step", _step(evidence)),
        ("Phase", _phase(evidence)),
        ("Onset", _onset(alert)),
        ("Score", f"{alert.score:.1f} times what it takes to fire" if alert.score >= 1 else None),
        ("Comes last", percent_of(evidence, "last_ratio")),
        *_facts_others(evidence),
        ("Recurring", recurring),
    )
    return [(name, format_html("{}", value)) for name, value in found if value]


def _facts_others(evidence: Evidence) -> Iterable[tuple[str, str]]:
    """Tell of figures that only some rules have, by their names alone."""
    for key, value in evidence.figures.items():
        if key in TOLD_ELSEWHERE:
            continue
        if isinstance(value, list) and all(isinstance(each, str) for each in value):
            yield _label(key), ", ".join(value)
        elif (number := evidence.number(key)) is not None:
            unit = unit_of(key) or ("count" if isinstance(value, int) else None)
            yield _label(key.removesuffix(f"_{unit}")), figure(number, unit)


def _label(key: str) -> str:
    return LABELS.get(key) or key.replace("_", " ").capitalize()


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
    if culprit.n_peers == 0:
        return figure(culprit.peers_median, culprit.unit)
    of = "" if culprit.n_peers is None else f", {counted(culprit.n_peers, 'peer')}"
    return f"{figure(culprit.peers_median, culprit.unit)} median{of}"


def _threshold(culprit: Culprit) -> str | None:
    return None if culprit.limit is None else figure(culprit.limit, culprit.unit)


def _phase(evidence: Evidence) -> str | None:
    """Say how long what takes the time takes, and took before."""
    now_s, before_s = evidence.number("phase_s"), evidence.number("baseline_phase_s")
    kind = str(evidence.figures.get("kind") or "")
    if now_s is None or before_s is None or not kind:
        return None
    return f"{kind} {seconds(now_s)}, was {seconds(before_s)}"


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
