"""What is wrong and where, in one clause: what lists, notifications and titles say of an alert."""

from collections.abc import Callable, Mapping

from django.utils.html import format_html
from django.utils.safestring import SafeString

from fleet.models import Alert
from fleet.templatetags.units import percent, seconds
from fleet.words.budgets import drift_clause, overrun_clause
from fleet.words.causes import part_name
from fleet.words.evidence import Evidence
from fleet.words.preflights import preflight_clause
from fleet.words.wording import counted

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
