"""The evidence of an alert as a list: names and figures, and what was ruled out."""

from collections.abc import Iterable, Mapping

from django.utils.html import format_html
from django.utils.safestring import SafeString

from fleet.models import Alert
from fleet.templatetags.units import count, duration, percent, seconds
from fleet.words.causes import cause_name, part_name
from fleet.words.evidence import Culprit, Evidence
from fleet.words.wording import counted, figure, unit_of

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
        *_others(evidence),
        ("Recurring", recurring),
    )
    return [(name, format_html("{}", value)) for name, value in found if value]


def _others(evidence: Evidence) -> Iterable[tuple[str, str]]:
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
