"""How an alert's story opens: since when, who, and what it does that it should not."""

from collections.abc import Callable, Mapping
from datetime import datetime

from django.utils.html import format_html
from django.utils.safestring import SafeString

from fleet.models import Alert
from fleet.templatetags.times import at
from fleet.templatetags.units import count, duration, percent, seconds
from fleet.words.budgets import drift_opening, overrun_opening
from fleet.words.clauses import clause
from fleet.words.culprits import NOTHING, figure_of, node_link, run_link
from fleet.words.evidence import Evidence
from fleet.words.preflights import preflight_opening
from fleet.words.wording import counted, listed

# Shares that differ by less are one share.
SAME_SHARE = 0.005


def opening(alert: Alert, *, now: datetime, share_ratio: float | None = None) -> SafeString:
    """Say since when, who, and what is wrong; ``share_ratio`` is what the run's share is now."""
    if alert.rule == "allreduce_share":
        return format_html("{} {}", since(alert, now=now), _share(alert, share_ratio))
    tell = OPENINGS.get(alert.rule, _part if alert.subject.startswith("node:") else None)
    said = tell(alert, now) if tell else NOTHING
    if said:
        return said
    # Where nothing more special is to blame, the figure belongs to what is wrong.
    is_whole = alert.rule == alert.cause and alert.node is None
    figure = figure_of(Evidence(alert.evidence).culprit) if is_whole else NOTHING
    run = run_link(alert) if alert.run else None
    return format_html("{} <b>{}</b>{}.", since(alert, now=now), clause(alert, run=run), figure)


def _part(alert: Alert, now: datetime) -> SafeString:
    """Say what a part of a node does, its figure beside its peers', and whose it is."""
    if alert.node is None:
        return NOTHING
    said = format_html(
        "{} <b>{}</b>{}.",
        since(alert, now=now),
        clause(alert, node=node_link(alert)),
        figure_of(Evidence(alert.evidence).culprit),
    )
    if alert.run is None:
        return said
    return format_html("{} It {} {}.", said, relation(alert), run_link(alert))


def relation(alert: Alert) -> str:
    """Say what the alert's node is to its run: part of it, or what slows it."""
    lasts, over = ("slows", "slowed") if alert.victims else ("belongs to", "belonged to")
    return lasts if alert.is_open else over


def _compile(alert: Alert, now: datetime) -> SafeString:
    changed = Evidence(alert.evidence).names("key_changes")
    return format_html(
        "{} <b>{}</b> {} to <b>compile its graphs again</b>, which nobody had announced.{}",
        since(alert, now=now),
        run_link(alert),
        "stands still" if alert.is_open else "stood still",
        f" What changed: {'; '.join(changed)}." if changed else "",
    )


def since(alert: Alert, *, now: datetime) -> SafeString:
    """Say when it began, and when it was over."""
    form = "clock" if (now - alert.onset_at).total_seconds() < 12 * 3600 else "day"
    if alert.resolved_at is None:
        return format_html("Since {}", at(alert.onset_at, form))
    lasted = duration(alert.lasted(now))
    return format_html("From {} on, for {},", at(alert.onset_at, form), lasted)


def _share(alert: Alert, share_ratio: float | None) -> SafeString:
    evidence = Evidence(alert.evidence)
    told = [evidence.number("worst_share_ratio"), evidence.number("share_ratio"), share_ratio]
    worst = max((share for share in told if share is not None), default=None)
    limit = evidence.number("limit_ratio")
    if limit is None and alert.run is not None:
        limit = alert.run.allreduce_limit_ratio
    return format_html(
        "<b>{}</b> {} <b class='bad-text'>{}</b> of each step in gradient all-reduce{}the limit "
        "{} {}.",
        run_link(alert),
        "spends" if alert.is_open else "spent",
        percent(worst),
        _now(worst, share_ratio if alert.is_open else None),
        "is" if alert.is_open else "was",
        percent(limit, 0),
    )


def _now(worst: float | None, now: float | None) -> str:
    """Set the share at its worst beside that of now, where it has become less."""
    if worst is None or now is None or worst - now < SAME_SHARE:
        return "; "
    return f" at its worst, {percent(now)} now; "


def _slow(alert: Alert, now: datetime) -> SafeString:
    evidence = Evidence(alert.evidence)
    step_s, usual_s = evidence.number("step_s"), evidence.number("baseline_step_s")
    if step_s is None or usual_s is None:
        return NOTHING
    return format_html(
        "{} <b>{}</b> {} <b class='bad-text'>{}</b> for each step in place of {}.",
        since(alert, now=now),
        run_link(alert),
        "takes" if alert.is_open else "took",
        seconds(step_s),
        seconds(usual_s),
    )


def _hang(alert: Alert, now: datetime) -> SafeString:
    lasted = duration(alert.lasted(now))
    done = "has finished" if alert.is_open else "finished"
    text = "{} <b>{}</b> {} <b class='bad-text'>no step for {}</b>."
    if not alert.is_open:
        return format_html(
            "At {} <b>{}</b> hung: it {} <b>no step for {}</b>.",
            at(alert.onset_at, "clock"),
            run_link(alert),
            done,
            lasted,
        )
    return format_html(text, since(alert, now=now), run_link(alert), done, lasted)


def _idle(alert: Alert, now: datetime) -> SafeString:
    lasted = duration(alert.lasted(now))
    if alert.node is None:
        return _idle_together(alert, lasted)
    was = "has been" if alert.is_open else "was"
    text = "<b>{}</b> {} <b class='bad-text'>idle for {}</b>: it is paid for, and no core works."
    return format_html(text, node_link(alert), was, lasted)


def _idle_together(alert: Alert, lasted: str) -> SafeString:
    """Say which nodes are idle, and which change of scale left them so."""
    nodes = Evidence(alert.evidence).names("nodes")
    is_one = len(nodes) == 1
    was = ("has been" if is_one else "have been") if alert.is_open else "was" if is_one else "were"
    text = (
        "<b>{}</b> of {} {} <b class='bad-text'>idle for {}</b>: paid for, and no core works. "
        "{}Idle: {}."
    )
    return format_html(
        text,
        counted(len(nodes), "node"),
        run_link(alert),
        was,
        lasted,
        scaled_down(alert),
        listed(nodes),
    )


def scaled_down(alert: Alert) -> SafeString:
    """Say which change of scale left nodes idle; nothing where none was seen."""
    told = Evidence(alert.evidence).figures.get("scaled_down")
    if not isinstance(told, Mapping):
        return NOTHING
    return format_html(
        "The run was scaled down from {} to {} nodes at {}. ",
        told.get("n_before"),
        told.get("n_after"),
        at(told.get("at_s"), "day"),
    )


def _silent(alert: Alert, now: datetime) -> SafeString:
    lasted = duration(alert.lasted(now))
    said = "has said nothing for" if alert.is_open else "said nothing for"
    what = format_html("<b>{}</b> {} <b class='bad-text'>{}</b>.", node_link(alert), said, lasted)
    steps_go_on = Evidence(alert.evidence).figures.get("steps_go_on")
    if alert.run is None:
        return what
    if steps_go_on is None:
        return format_html("{} It belongs to {}.", what, run_link(alert))
    verdict = (
        "goes on, so the agent is the likelier fault than the node"
        if steps_go_on
        else "has stopped as well: the node itself may be gone"
    )
    if not alert.is_open:
        verdict = (
            "went on" if steps_go_on else "stopped as well: the node itself may have been gone"
        )
    return format_html("{} Its run {} {}.", what, run_link(alert), verdict)


def _ecc(alert: Alert, now: datetime) -> SafeString:
    n_errors = Evidence(alert.evidence).number("n_errors")
    known = "" if n_errors is None else f", {count(n_errors)} when this fired"
    part = "" if alert.device is None else f"device {alert.device} of "
    return format_html(
        "{} {}<b>{}</b> {} <b class='bad-text'>uncorrected memory errors</b>{}. "
        "What it computed since may be wrong: plan to replace the node.",
        since(alert, now=now),
        part,
        node_link(alert),
        "counts" if alert.is_open else "counted",
        known,
    )


def _blind(alert: Alert, now: datetime) -> SafeString:
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


OPENINGS: Mapping[str, Callable[[Alert, datetime], SafeString]] = {
    "recompile": _compile,
    "step_slow": _slow,
    "hang": _hang,
    "node_idle": _idle,
    "node_silent": _silent,
    "ecc_uncorrected": _ecc,
    "monitoring_blind": _blind,
    "cost_drift": drift_opening,
    "budget_overrun": overrun_opening,
    "preflight": preflight_opening,
}
