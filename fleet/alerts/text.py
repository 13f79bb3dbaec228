"""An alert as text: its evidence, the context of its templates, and the facts of its page.

The sentences are in ``templates/alerts``: ``_rule.html`` holds what every alert says, and
``<rule>.html`` what one rule says differently.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property, lru_cache
from html import unescape
from typing import Any

from django.template import TemplateDoesNotExist
from django.template.loader import get_template
from django.utils.html import strip_tags
from django.utils.safestring import SafeString

from fleet.alerts.causes import (
    CAUSES,
    LINKS,
    PART_NAMES,
    cause_name,
    device_number,
    part_text,
    shared_cause,
)
from fleet.alerts.evidence import WHOLE_STEP, Evidence, finite
from fleet.alerts.impact import (
    LOSS_NOISE_RATIO,
    Impact,
    impact_of,
    is_less,
    scatter_of,
    step_s_now,
)
from fleet.alerts.quality import share_text
from fleet.alerts.record import STEP_NOISE_RATIO, RecordedAlert, recorded
from fleet.alerts.runbooks import first_step
from fleet.formatting import (
    counted,
    figure,
    percent,
    render_line,
    render_lines,
    unit_of,
    usd,
)
from fleet.models import Alert, AlertEvent
from telemetry.detect import RULES, names_of
from telemetry.detect.causes import UNKNOWN

# The longest that a first message waits for the cause: nearly all are located within 10 s.
LOCATED_WITHIN = timedelta(seconds=12)
# So long after it fired an alert names a more exact cause.
LOCATING = timedelta(seconds=60)


def is_located(alert: Alert) -> bool:
    """Whether the cause or the node of a problem is known, or it has none."""
    is_known = alert.cause != UNKNOWN or bool(alert.nodes)
    return alert.rule not in SYMPTOMS or is_known or Evidence(alert.evidence).is_layout


SYMPTOMS = names_of(lambda rule: rule.is_symptom)
SELF_EXPLAINED = names_of(lambda rule: rule.explains_itself)
# Causes that the opening of their alert states.
STATED = frozenset({"workers_ended", "reports_refused"})
# Less than half a step reads as none.
LEAST_LOST_STEPS = 0.5
CLOCK_WITHIN = timedelta(hours=12)


def headline(alert: Alert) -> SafeString:
    """Write in one clause what is wrong and where."""
    return AlertText(alert, now=alert.last_seen_at).headline


def brief(alert: Alert) -> str:
    """Name the cause and the place in a few words, without a template: for long lists."""
    is_known, rule = alert.cause in CAUSES, RULES.get(alert.rule)
    title = rule.title if rule and not is_known else cause_name(alert.cause)
    part = f" {PART_NAMES[alert.part]} {alert.device} of" if alert.part else ""
    first, *others = alert.nodes or alert.runs or [""]
    more = f" and {len(others)} more" if others else ""
    words = f"{title}:{part} {first}{more}" if first else title
    return words[:1].upper() + words[1:]


# A time on a page; its title has date and zone.
TIME = re.compile(r'<time [^>]*title="([^"]+)">[^<]*</time>')


def plain(html: str) -> str:
    """Convert a text to plain text; its times have date and zone, as readers are anywhere."""
    return " ".join(unescape(strip_tags(TIME.sub(r"\1", html))).split())


@dataclass(frozen=True, slots=True)
class Loss:
    """What an alert has cost: seconds of work, steps and dollars, and the figures it rests on."""

    lost_s: float
    n_steps: float
    usd: float | None
    cost: Mapping[str, Any]

    @property
    def is_none(self) -> bool:
        """Whether the loss is within the usual variation of steps."""
        return not self.lost_s

    @property
    def n_others(self) -> int:
        """How many other alerts of the run slowed it at the same time: their loss is included."""
        return int(finite(self.cost.get("n_others")) or 0)

    @property
    def short(self) -> str:
        if self.is_none:
            return "no step"
        steps = counted(self.n_steps, "step")
        return steps if self.usd is None else f"{usd(self.usd)}, {steps}"

    @property
    def brief(self) -> str:
        return self.short.partition(",")[0]

    @property
    def how(self) -> str:
        """How the loss was computed, with every figure that went into it, as plain text."""
        span_s, paused_s = self.cost["span_s"], self.cost.get("paused_s", 0.0)
        context = {
            "cost": dict(self.cost) | {"usd_per_hour": finite(self.cost.get("usd_per_hour"))},
            "n_possible": max(0.0, span_s - paused_s) / self.cost["usual_s"],
            "n_others": self.n_others,
        }
        return render_line("alerts/_loss.html#how", **context)


def loss(alert: Alert) -> Loss | None:
    """Read what an alert has cost, as fleet/costs/losses.py measured it; None if unknown."""
    names = ("lost_s", "span_s", "n_steps", "usd")
    lost_s, span_s, n_steps, dollars = (finite(alert.cost.get(name)) for name in names)
    if lost_s is None or span_s is None or n_steps is None:
        return None
    if lost_s <= LOSS_NOISE_RATIO * span_s or n_steps < LEAST_LOST_STEPS:
        lost_s, n_steps, dollars = 0.0, 0.0, None if dollars is None else 0.0
    return Loss(lost_s, n_steps, dollars, alert.cost)


@dataclass(frozen=True)
class AlertText:
    """An alert as text, by its record; each part is rendered when it is first read."""

    alert: Alert
    now: datetime

    @cached_property
    def recorded(self) -> RecordedAlert:
        return recorded(self.alert)

    @cached_property
    def headline(self) -> SafeString:
        return self._render("headline", linked=False)

    @cached_property
    def problem(self) -> SafeString:
        """What is wrong, as the verdict says it, without what it costs."""
        return self._render("problem", linked=False)

    @cached_property
    def verdict(self) -> SafeString:
        """What is wrong, and what it costs, as a person would say it; the culprit, if known."""
        return self._render("verdict", linked=False)

    @cached_property
    def because(self) -> SafeString:
        """What the verdict leaves out: the broken rule, and the figure of the culprit."""
        return self._render("because")

    @cached_property
    def impact(self) -> Impact:
        return impact_of(self.alert)

    @cached_property
    def act(self) -> str:
        """The first thing to do, as its runbook says it; empty once it is over."""
        return first_step(self.alert).act if self.alert.is_open else ""

    @cached_property
    def detail(self) -> SafeString:
        """The likely cause in one short sentence; empty if the headline says everything."""
        return self._render("detail")

    @cached_property
    def story(self) -> SafeString:
        """Everything: what, where, since when, how bad, why, and what it has cost."""
        return self._render("story")

    @cached_property
    def lost(self) -> Loss | None:
        return loss(self.alert)

    @property
    def cause(self) -> str:
        """Its cause; empty where the rule itself says it."""
        return named_cause(self.alert)

    @property
    def lasted(self) -> timedelta:
        return self.alert.lasted(self.now)

    @property
    def part(self) -> str:
        """What its device number counts."""
        return PART_NAMES[self.alert.part or "device"]

    @property
    def device_number(self) -> int | None:
        """The accelerator that it accuses, for the address of its page."""
        alert = self.alert
        if alert.node is None:
            return None
        n_cores = alert.node.cores_per_device
        number = device_number(alert.part, alert.device, cores_per_device=n_cores)
        return number if number is not None and 0 <= number < alert.node.n_devices else None

    def ended(self, events: Iterable[AlertEvent]) -> SafeString:
        """Why it ended, as the last event that resolved it says, and what is left to do."""
        resolved = [each for each in events if each.kind == AlertEvent.Kind.RESOLVED]
        return self._render("ended", event=resolved[-1] if resolved else None)

    def _render(self, name: str, *, linked: bool = True, **more: object) -> SafeString:
        alert = self.recorded.alert
        rule = "_group" if Evidence(alert.evidence).shared_place else alert.rule
        context = {**self._context, "linked": linked, **more}
        return render_line(_template_name(rule, name), **context)

    @cached_property
    def _context(self) -> dict[str, Any]:
        alert, worst, latest = self.recorded.alert, self.recorded.worst, self.recorded.latest
        shown = self.recorded.shown
        evidence = Evidence(alert.evidence)
        culprit = evidence.culprit
        apart, usual = (figure(n, culprit.unit) for n in (culprit.value, culprit.peers_median))
        # One that has recovered is like its peers, which is no evidence.
        culprit = replace(culprit, value=None) if apart == usual else culprit
        rule = "_group" if evidence.shared_place else alert.rule
        is_about_node = alert.subject.startswith("node:") and alert.node is not None
        is_own_cause = (
            is_about_node
            or bool(evidence.shared_place)
            or (alert.rule == alert.cause and alert.node is None)
            or alert.cause in STATED
        )
        is_early = self.now - alert.onset_at < CLOCK_WITHIN
        step_s, usual_s = evidence.number("step_s"), evidence.number("baseline_step_s")
        knows_steps = step_s is not None and usual_s is not None
        is_apart = latest and shown and alert.is_open and latest.at_s != shown.at_s
        seen = Evidence(latest.figures) if latest and is_apart else None
        # Whether steps take longer; empty where the headline says so already. Shorter ones belong
        # to the end of a problem.
        step_time = ""
        if step_s is not None and usual_s is not None and alert.rule != "step_slow":
            is_same = abs(step_s - usual_s) <= STEP_NOISE_RATIO * usual_s
            step_time = "unchanged" if is_same else "changed" if step_s > usual_s else ""
        last = Evidence(latest.figures if latest and not alert.is_open else {})
        again_s, before_s = last.number("step_s"), last.number("baseline_step_s") or 0.0
        noise_s = max(STEP_NOISE_RATIO * before_s, last.number("step_scatter_s") or 0.0)
        is_back = again_s is not None and abs(again_s - before_s) <= noise_s
        slows = bool(alert.victims) and (not knows_steps or step_time == "changed")
        is_known_cause = alert.cause in CAUSES
        spans_run = is_known_cause and alert.node is None and not CAUSES[alert.cause].is_of_run
        return {
            "alert": alert,
            "is_open": alert.is_open,
            "evidence": evidence,
            "figures": evidence.clean,
            "culprit": culprit,
            "nodes": evidence.names("nodes"),
            "shared_place": evidence.shared_place,
            "shared_cause": shared_cause(alert.cause),
            "key_changes": evidence.names("key_changes"),
            "subject": alert.subject.partition(":")[2] or alert.subject,
            "rule_name": alert.rule.replace("_", " "),
            "cause_name": self.cause,
            "spans_run": spans_run,
            "cause_template": "alerts/_causes.html#"
            + (alert.cause if is_known_cause and not spans_run else "other"),
            "headline_template": _template_name(rule, "headline"),
            "opening_template": _template_name(rule, "opening"),
            "back_template": _template_name(rule, "back"),
            "left_template": _template_name(rule, "left"),
            "step_s_again": again_s if is_back else None,
            "step_s_before": before_s,
            "detail_template": _template_name(rule, "detail"),
            "verdict_template": _verdict_template(alert, rule),
            "impact": self.impact,
            "is_about_node": is_about_node,
            "is_own_cause": is_own_cause,
            "is_self_explained": alert.rule in SELF_EXPLAINED,
            "is_untimed": evidence.is_untimed,
            "likeliest": evidence.likeliest,
            "opening_has_figure": is_own_cause and culprit.value is not None,
            "has_device": alert.device is not None,
            "part": self.part,
            "is_single_core": alert.cause == "throttle"
            and alert.node is not None
            and alert.node.cores_per_device == 1,
            "lasted": self.lasted,
            "onset_form": "clock" if is_early else "day",
            "loss": self.lost,
            "collective": _collective(alert, evidence),
            "n_waiting": len(alert.victims) or (alert.run.n_nodes - 1 if alert.run else 0),
            "has_step_times": knows_steps,
            "slows": slows,
            "step_time": step_time,
            "step_s_now": step_s_now(self.recorded),
            "seen_at": latest.at if latest else None,
            **self._standstill(),
            "recovery": alert.recovery,
            "is_locating": alert.is_open and self.now - alert.fired_at < LOCATING,
            "peak": AlertText(self.recorded.peak, self.now).headline if self.recorded.peak else "",
            "peak_at": worst.at if worst else None,
            **self._shares(evidence, seen),
        }

    def _standstill(self) -> dict[str, Any]:
        """Since when no step ends, or how long none ended: a run may hang for part of the time."""
        worst, latest, is_open = self.recorded.worst, self.recorded.latest, self.alert.is_open
        seen = latest if is_open and latest and latest.rule == "hang" else worst
        if seen is None or seen.rule != "hang":
            return {"stood_since": self.alert.onset_at, "stood_still": self.lasted}
        since = datetime.fromtimestamp(seen.onset_s, UTC)
        return {"stood_since": since, "stood_still": self.now - since if is_open else seen.lasted}

    def _shares(self, evidence: Evidence, seen: Evidence | None) -> dict[str, float | None]:
        """List the highest all-reduce share, the last one if it is lower, and the limit."""
        alert = self.recorded.alert
        if alert.rule != "allreduce_share":
            return {}
        worst = evidence.number("share_ratio")
        last = seen.number("share_ratio") if seen else None
        is_lower = is_less(last, worst, scatter_of("share_scatter_ratio", evidence, seen), percent)
        limit = evidence.number("limit_ratio")
        if limit is None and alert.run is not None:
            limit = alert.run.allreduce_limit_ratio
        return {
            "worst_share_ratio": worst,
            "lower_share_ratio": last if is_lower else None,
            "limit_ratio": limit,
        }


@lru_cache(maxsize=512)
def _first_template(name: str, otherwise: str) -> str:
    try:
        get_template(name)
    except TemplateDoesNotExist:
        return otherwise
    return name


def _template_name(rule: str, part: str) -> str:
    """Find the template of a part: the rule's own, else the general one."""
    return _first_template(f"alerts/{rule}.html#{part}", f"alerts/_rule.html#{part}")


def _verdict_template(alert: Alert, rule: str) -> str:
    """Find what says who is slow: by the cause of a known culprit, else the headline."""
    traits = RULES.get(rule)
    is_about_pace = traits is not None and traits.slows_steps
    headline = _template_name(rule, "headline")
    if alert.node is not None and is_about_pace:
        return _first_template(f"alerts/_verdict.html#{alert.cause}", headline)
    return headline


def _collective(alert: Alert, evidence: Evidence) -> str:
    """Distinguish a slow transfer from a late worker."""
    is_measured = evidence.number("wait_ratio") is not None and not evidence.is_layout
    if alert.rule != "allreduce_share" or not is_measured:
        return ""
    if not evidence.is_waiting or alert.cause in LINKS:
        return "slow transfer"
    return "waiting" if alert.node is None else "late worker"


def named_cause(alert: Alert) -> str:
    is_stated = alert.cause == UNKNOWN and alert.rule in SELF_EXPLAINED
    return "" if is_stated else cause_name(alert.cause)


Fact = tuple[str, str]

LABELS: Mapping[str, str] = {
    "resolve": "Resolves below",
    "usd_per_hour": "Dollars per hour",
    "key_changes": "Changed in the key",
}
# Figures that a sentence, another row or a chart shows.
SHOWN_ELSEWHERE = frozenset(
    {
        *("share_ratio", "wait_ratio", "transfer_ratio", "step", "step_s", "baseline_step_s"),
        *("phase_s", "baseline_phase_s", "onset_s", "since_s", "window", "last_ratio", "kind"),
        *("last_seen_s", "host_by_node", "wait_by_worker", "charts", "ruled_out", "culprit"),
        *("budget", "used_up_s", "ends_s", "usd_per_mtok", "expected_usd_per_mtok"),
        *("doubt", "started_s"),
        *("node_s_per_mtok", "expected_node_s_per_mtok"),
        *("share_scatter_ratio", "step_scatter_s"),
        *("tokens", "phase", "quiet_s", "every_s", "lost_s", "end_s"),
        *("healthy_steps", "steps_to_resolve"),
        *("nats", "level_nats"),
    }
)


def facts(alert: Alert, *, recurring: str = "") -> list[Fact]:
    """List the evidence of an alert as labels and values, in plain text.

    ``recurring`` describes how often the problem occurred lately.
    """
    alert = recorded(alert).alert
    evidence = Evidence(alert.evidence)
    nats, level_nats = evidence.number("nats"), evidence.number("level_nats")
    is_weighed = nats is not None and level_nats is not None
    kind = str(evidence.figures.get("kind") or "")
    lines = render_lines(
        "alerts/_facts.txt#facts",
        alert=alert,
        evidence=evidence,
        figures=evidence.figures,
        numbers=evidence.numbers,
        limits=Evidence(evidence.limits).numbers,
        is_young=evidence.limits.get("is_young"),
        culprit=evidence.culprit,
        part=part_text(alert.part, alert.device),
        cause=named_cause(alert) if alert.run or alert.node else "",
        phase="" if kind == WHOLE_STEP else kind,
        onset_s=alert.fired_at - alert.onset_at,
        strength=f"{nats:,.1f}" if is_weighed else "",
        needed=f"{level_nats:,.1f}" if is_weighed else "",
        budget=share_text(alert.rule, alert.severity) if is_weighed else "",
        others=list(_other_facts(evidence)),
        recurring=recurring,
    )
    split = (line.partition(": ") for line in lines)
    return [(label, value) for label, _, value in split if value]


def _other_facts(evidence: Evidence) -> Iterable[Fact]:
    """Yield the figures that only some rules have, named after their keys."""
    for key, value in evidence.figures.items():
        if key in SHOWN_ELSEWHERE:
            continue
        if isinstance(value, list) and all(isinstance(each, str) for each in value):
            yield _label(key), ", ".join(value)
        elif (number := evidence.number(key)) is not None:
            is_count = isinstance(value, int) or key.startswith("n_")
            unit = unit_of(key) or ("count" if is_count else None)
            yield _label(key.removesuffix(f"_{unit}")), figure(number, unit)


def _label(key: str) -> str:
    return LABELS.get(key) or key.removeprefix("n_").replace("_", " ").capitalize()
