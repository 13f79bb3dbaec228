"""How an alert's story opens: since when, who, and what it does that it should not."""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime

from django.utils.html import format_html
from django.utils.safestring import SafeString

from fleet import formatting
from fleet.alerts.evidence import CAUSES, SINGLE_CORE, Culprit, Evidence, cause_name, part_name
from fleet.formatting import at, count, counted, duration, listed, percent, seconds, usd
from fleet.models import Alert

BY = {"estimate": "estimated", "own": "in its first hours"}


def drift_clause(alert: Alert) -> SafeString:
    """Say by how much a run's tokens cost more."""
    ratio = Evidence(alert.evidence).number("ratio")
    verb = "pays" if alert.is_open else "paid"
    by = BY.get(str(alert.evidence.get("expected_by")), "expected")
    more = "more" if ratio is None else f"{percent(ratio, 0)} more"
    return format_html("{} {} {} per token than {}", alert.run or "a run", verb, more, by)


def drift_opening(alert: Alert, now: datetime) -> SafeString:
    """Say what a run's tokens cost, and what they should."""
    evidence = Evidence(alert.evidence)
    cost, expected = evidence.number("usd_per_mtok"), evidence.number("expected_usd_per_mtok")
    figures = (
        format_html(": 1M tokens cost {} in place of {}", usd(cost), usd(expected))
        if cost is not None and expected is not None
        else ""
    )
    text = "For hours <b>{}</b>{}. No other alert says why."
    return format_html(text, drift_clause(alert), figures)


def overrun_clause(alert: Alert) -> SafeString:
    """Say which budget will not do."""
    verb = "will" if alert.is_open else "was to"
    whose = alert.evidence.get("whose", "?")
    return format_html("The budget of {} {} be overrun", whose, verb)


def overrun_opening(alert: Alert, now: datetime) -> SafeString:
    """Say what a budget holds, what is spent, and when it will be used up."""
    evidence = Evidence(alert.evidence)
    used_up_s = evidence.number("used_up_s")
    spent, holds = evidence.number("spent_usd"), evidence.number("budget_usd")
    return format_html(
        "<b>{}</b>: {} of {} were spent when this was last said, <b class='bad-text'>{}</b> {} "
        "forecast{}.",
        overrun_clause(alert),
        usd(spent),
        usd(holds),
        usd(evidence.number("forecast_usd")),
        "are" if alert.is_open else "were",
        f"; it is used up on {day_of(used_up_s)}" if used_up_s and alert.is_open else "",
    )


def day_of(unix_s: float) -> str:
    """Return a moment as a day and a time, UTC."""
    at = datetime.fromtimestamp(unix_s, UTC)
    return f"{at:%-d %b %H:%M} UTC"


def preflight_clause(alert: Alert) -> SafeString:
    """Say which run began without one."""
    return format_html("{} started without a preflight", alert.run or "a run")


def preflight_opening(alert: Alert, now: datetime) -> SafeString:
    """Say when it began, what was missing, and what to do about it."""
    started_s = Evidence(alert.evidence).number("started_s")
    return format_html(
        "<b>{}</b>{}. {} {}",
        preflight_clause(alert),
        f" on {day_of(started_s)}, though it requires one" if started_s is not None else "",
        alert.evidence.get("doubt", ""),
        "Nothing is broken yet: probe its nodes when it next restarts." if alert.is_open else "",
    )


# Rule: what is said while it lasts, and once it is over. {where} is the part, or the node.
CLAUSES: Mapping[str, tuple[str, str]] = {
    "input_stall": ("{run} waits for its input", "{run} waited for its input"),
    "checkpoint_slow": (
        "{run} is slow to write checkpoints",
        "{run} was slow to write checkpoints",
    ),
    "core_slow": ("{where} computes slowly", "{where} computed slowly"),
    "throttle": ("{where} is throttled", "{where} was throttled"),
    "single_core": (
        "{where} is throttled, or its only core is slow",
        "{where} was throttled, or its only core was slow",
    ),
    "hbm_slow": ("{where} has slow memory", "{where} had slow memory"),
    "efa_latency": ("{where} answers late", "{where} answered late"),
    "efa_loss": ("{where} loses packets", "{where} lost packets"),
    "efa_down": ("{where} is down", "{where} was down"),
    "efa_degraded": ("{where} carries traffic badly", "{where} carried traffic badly"),
    "hang": ("{run} hangs: no step ends", "{run} hung: no step ended"),
    "recompile": ("{run} compiles again", "{run} compiled again"),
    "exec_errors": ("{where} fails to execute", "{where} failed to execute"),
    "node_idle": ("{node} is paid for and idle", "{node} was paid for and idle"),
    "node_silent": ("{node} has gone silent", "{node} was silent"),
    "node_crash": ("{node} has crashed", "{node} had crashed"),
    "ecc_uncorrected": (
        "{where} counts uncorrected memory errors",
        "{where} counted uncorrected memory errors",
    ),
    "monitoring_blind": (
        "Monitoring is blind: no node is heard of",
        "Monitoring was blind: no node was heard of",
    ),
}
# Rules whose clause follows from the cause, where there is one for it.
BY_CAUSE = frozenset({"core_slow", "efa_degraded", "node_silent"})


def clause(
    alert: Alert, *, node: SafeString | None = None, run: SafeString | None = None
) -> SafeString:
    """Say in one clause what is wrong and where; ``node`` and ``run`` are how to write them."""
    special = SPECIAL.get(alert.rule)
    if special is not None:
        return special(alert)
    if alert.rule == "node_idle" and alert.node is None:
        return _idle(alert)
    key = alert.cause if alert.rule in BY_CAUSE and alert.cause in CLAUSES else alert.rule
    if key == "throttle" and alert.node and alert.node.cores_per_device == 1:
        key = "single_core"
    lasts, over = CLAUSES.get(key, ("", ""))
    template = lasts if alert.is_open else over
    if not template:
        return format_html("{} on {}", alert.rule.replace("_", " "), _subject(alert))
    name = node or format_html("{}", alert.node or _subject(alert))
    said = format_html(
        template,
        run=run or alert.run or _subject(alert),
        node=name,
        where=_where(alert, name),
    )
    return said if node else capital(said)


def _where(alert: Alert, name: SafeString) -> SafeString:
    """Name the part and the node it is in, or whatever is known of them."""
    if alert.device is None:
        return name
    return format_html("{} {} of {}", part_name(alert.cause) or "device", alert.device, name)


def _subject(alert: Alert) -> str:
    return alert.subject.partition(":")[2] or alert.subject


def _idle(alert: Alert) -> SafeString:
    nodes = Evidence(alert.evidence).names("nodes")
    are = "is" if len(nodes) == 1 else "are"
    are = are if alert.is_open else {"is": "was", "are": "were"}[are]
    return format_html(
        "{} of {} {} paid for and idle",
        counted(len(nodes), "node"),
        alert.run or _subject(alert),
        are,
    )


def _share(alert: Alert) -> SafeString:
    share = percent(Evidence(alert.evidence).number("share_ratio"))
    verb = "spends" if alert.is_open else "spent"
    return format_html("{} {} {} of each step in all-reduce", alert.run, verb, share)


def _slow(alert: Alert) -> SafeString:
    evidence = Evidence(alert.evidence)
    step_s, usual_s = evidence.number("step_s"), evidence.number("baseline_step_s")
    verb = "takes" if alert.is_open else "took"
    if step_s is None or usual_s is None:
        return format_html("{} {} longer for each step", alert.run or _subject(alert), verb)
    return format_html(
        "{} {} {} for each step in place of {}",
        alert.run or _subject(alert),
        verb,
        seconds(step_s),
        seconds(usual_s),
    )


SPECIAL: Mapping[str, Callable[[Alert], SafeString]] = {
    "allreduce_share": _share,
    "step_slow": _slow,
    "cost_drift": drift_clause,
    "budget_overrun": overrun_clause,
    "preflight": preflight_clause,
}


def capital(text: SafeString) -> SafeString:
    """Write the first letter large, where it is one of ours: names stay as they are."""
    is_ours = text.startswith(("core ", "device ", "the ", "a ", "busy ", "its "))
    return SafeString(text[:1].upper() + text[1:]) if is_ours else text


NOTHING = SafeString("")
# A figure that is not plain from its cause says what it is: a slow core is the busy one.
SAID_OF: Mapping[str, str] = {
    "core_utilization_ratio": "busy ",
    "vcpu_usage_ratio": "its host is busy ",
}


def run_link(alert: Alert) -> SafeString:
    """Link the run an alert is about."""
    if alert.run is None:
        return SafeString("a run")
    return format_html('<a href="{}">{}</a>', alert.run.get_absolute_url(), alert.run.name)


def node_link(alert: Alert) -> SafeString:
    """Link the node an alert blames."""
    if alert.node is None:
        return SafeString("one node")
    return format_html('<a href="{}">{}</a>', alert.node.get_absolute_url(), alert.node.name)


def blamed(alert: Alert) -> SafeString:
    """Name the cause and where it sits; the part only where one is known."""
    template = CAUSES.get(alert.cause)
    if template is None:
        return format_html("{}", cause_name(alert.cause))
    if alert.cause == "throttle" and alert.node and alert.node.cores_per_device == 1:
        template = SINGLE_CORE
    if "{node}" in template and alert.node is None:
        return format_html("{} across the run", cause_name(alert.cause))
    if alert.device is None:
        for part in ("EFA device {device} of ", "device {device} of ", "core {device} of "):
            template = template.replace(part, "")
    return format_html(template, device=alert.device, node=node_link(alert))


def figure_of(culprit: Culprit) -> SafeString:
    """Set the culprit's figure against that of its peers: ``: 142 µs against 17 µs``."""
    if culprit.value is None:
        return NOTHING
    value = SAID_OF.get(culprit.metric or "", "") + formatting.figure(culprit.value, culprit.unit)
    if culprit.peers_median is None:
        return format_html(": {}", value)
    peers = formatting.figure(culprit.peers_median, culprit.unit)
    if culprit.n_peers == 0:
        return format_html(": {} against {} before", value, peers)
    return format_html(": {} against {} on its peers", value, peers)


# Shares that differ by less are one share.
SAME_SHARE = 0.005


def opening(alert: Alert, *, now: datetime, share_ratio: float | None = None) -> SafeString:
    """Say since when, who, and what is wrong; ``share_ratio`` is what the run's share is now."""
    if alert.rule == "allreduce_share":
        return format_html("{} {}", since(alert, now=now), _openings_share(alert, share_ratio))
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


def _openings_share(alert: Alert, share_ratio: float | None) -> SafeString:
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


def _openings_slow(alert: Alert, now: datetime) -> SafeString:
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


def _openings_idle(alert: Alert, now: datetime) -> SafeString:
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
    "step_slow": _openings_slow,
    "hang": _hang,
    "node_idle": _openings_idle,
    "node_silent": _silent,
    "ecc_uncorrected": _ecc,
    "monitoring_blind": _blind,
    "cost_drift": drift_opening,
    "budget_overrun": overrun_opening,
    "preflight": preflight_opening,
}
