"""An alert as text: its evidence, the context of its templates, and the facts of its page.

The sentences are in ``templates/alerts``: ``_rule.html`` holds what every alert says, and
``<rule>.html`` what one rule says differently.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property, lru_cache
from html import unescape
from math import isfinite
from typing import Any

from django.template import TemplateDoesNotExist
from django.template.loader import get_template
from django.utils.html import strip_tags
from django.utils.safestring import SafeString

from fleet.alerts.quality import share_text
from fleet.alerts.record import STEP_NOISE_RATIO, RecordedAlert, recorded
from fleet.formatting import (
    count,
    counted,
    duration,
    figure,
    listed,
    percent,
    render_line,
    seconds,
    unit_of,
    usd,
)
from fleet.models import Alert
from telemetry.detect import names_of
from telemetry.detect.causes import UNKNOWN, Part


@dataclass(frozen=True, slots=True)
class CauseText:
    """How alerts name a cause; templates/alerts/_causes.html has its sentence.

    ``several`` is what several nodes have, ``part`` what the device number of an alert counts,
    ``heat`` its name on the heat map, ``metric`` the chart that shows the cause.
    """

    name: str
    several: str = ""
    part: str | None = None
    heat: str | None = None
    metric: str | None = None
    is_of_run: bool = False


_CORES, _EFA_LATENCY = "core_utilization_ratio", "efa_latency_s"
CAUSES: Mapping[str, CauseText] = {
    "efa_latency": CauseText("EFA latency", "high EFA latency", "EFA device", "EFA", _EFA_LATENCY),
    "efa_loss": CauseText(
        "EFA retransmits", "EFA packet loss", "EFA device", "EFA", "efa_retransmits_per_s"
    ),
    "efa_down": CauseText(
        "EFA device down", "EFA devices down", "EFA device", "EFA", _EFA_LATENCY
    ),
    "slow_core": CauseText("slow core", "slow cores", "core", "core", _CORES),
    "hbm_slow": CauseText("slow HBM", "", "device", "HBM", "hbm_bandwidth_bytes_per_s"),
    "throttle": CauseText("throttling", "throttled devices", "device", "device", _CORES),
    "input_stall": CauseText("input stall"),
    "checkpoint_slow": CauseText("slow checkpoint", is_of_run=True),
    "recompile": CauseText("recompile", is_of_run=True),
    "ecc_uncorrected": CauseText("uncorrected ECC", "", "device", "ECC", "mem_ecc_uncorrected"),
    "device_unhealthy": CauseText("unhealthy device", "unhealthy devices", "device", "device"),
    "device_missing": CauseText("missing device", "missing devices", "device", "device"),
    "node_silent": CauseText("silent node", "no longer report", metric=_CORES),
    "node_crash": CauseText("crashed node", "crashed", metric=_CORES),
    "hang": CauseText("hang"),
    "workers_ended": CauseText("all workers stopped", is_of_run=True),
    "reports_refused": CauseText("refused reports"),
    "workers_missing": CauseText("missing workers", is_of_run=True),
    "exec_errors": CauseText("failing executions"),
    "loss_not_finite": CauseText("loss not finite", is_of_run=True),
    "loss_spike": CauseText("loss spike", is_of_run=True),
    "node_idle": CauseText("idle node"),
    "seq_imbalance": CauseText("sequence lengths", is_of_run=True),
    "stage_imbalance": CauseText("pipeline stage", is_of_run=True),
    "slow_compute": CauseText("slow compute", "slow compute", "device"),
    "network": CauseText("slow network", "slow network", "EFA device", "EFA", _EFA_LATENCY),
}
LINKS = frozenset(name for name, text in CAUSES.items() if text.part == "EFA device")
PART_NAMES: Mapping[Part, str] = {"core": "core", "device": "device", "efa_device": "EFA device"}


def shared_place(nodes: Sequence[str], runs: Sequence[str], place: str) -> str:
    """Write where a fault of several nodes or runs is: ``3 nodes in rack r2, runs a and b``."""
    where = [counted(len(nodes), "node") + (f" in {place}" if place else "")] if nodes else []
    if runs:
        names = [*runs[:-2], " and ".join(runs[-2:])] if len(runs) < 6 else [listed(runs, 4)]
        where.append(f"{'run' if len(runs) == 1 else 'runs'} {', '.join(names)}")
    return ", ".join(where)


def cause_text(cause: str) -> CauseText:
    return CAUSES.get(cause) or CauseText(cause.replace("_", " "))


def cause_name(cause: str) -> str:
    return cause_text(cause).name


def part_name(cause: str) -> str | None:
    """Name what an alert's device number counts; None if its cause has no device."""
    return cause_text(cause).part


def device_number(part: str | None, number: int | None, *, cores_per_device: int) -> int | None:
    """Return the accelerator of a part; None for EFA devices, and without a number.

    >>> device_number("core", 7, cores_per_device=2)
    3
    >>> device_number("efa_device", 7, cores_per_device=2)
    """
    if number is None or part == "efa_device":
        return None
    return number // cores_per_device if part == "core" else number


def part_text(part: Part | None, number: int | None) -> str:
    """Name a part by its kind and number; empty without a number."""
    return "" if number is None else f"{PART_NAMES[part or 'device']} {number}"


def shared_cause(cause: str) -> str:
    """Name what several nodes or runs have."""
    if cause == UNKNOWN:
        return "steps take longer"
    return cause_text(cause).several or cause_name(cause)


# The kind of evidence that does not say in which phase a step takes longer.
WHOLE_STEP = "step"
# Rules of which the other workers may wait for one.
WAITED = names_of(lambda rule: rule.waits)


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if isfinite(value) else None


@dataclass(frozen=True, slots=True)
class Culprit:
    """The figure by which a culprit differs from its peers; None where unknown."""

    metric: str | None = None
    value: float | None = None
    peers_median: float | None = None
    n_peers: int | None = None
    unit: str | None = None
    limit: float | None = None


def _culprit(given: object) -> Culprit:
    if not isinstance(given, Mapping):
        return Culprit()
    n_peers = _number(given.get("n_peers"))
    return Culprit(
        metric=given.get("metric"),
        value=_number(given.get("value")),
        peers_median=_number(given.get("peers_median")),
        n_peers=None if n_peers is None else int(n_peers),
        unit=given.get("unit"),
        limit=_number(given.get("limit")),
    )


def has_late_worker(alert: Alert) -> bool:
    """Whether the other workers wait for the alert's node; False where a link is slow."""
    is_waited_for = Evidence(alert.evidence).is_waiting and alert.rule in WAITED
    return is_waited_for and alert.node is not None and alert.cause not in LINKS


@dataclass(frozen=True, slots=True)
class Evidence:
    """The figures of one alert, read leniently: each rule stores those that it has."""

    figures: Mapping[str, Any]

    @property
    def clean(self) -> Mapping[str, Any]:
        """All figures except NaN and infinity."""
        return {
            key: value
            for key, value in self.figures.items()
            if not isinstance(value, float) or isfinite(value)
        }

    def number(self, name: str) -> float | None:
        """Return a figure; None where it is missing or not a finite number."""
        return _number(self.figures.get(name))

    @property
    def is_waiting(self) -> bool:
        """Whether workers wait for a peer, rather than for bytes to move.

        Of whole steps, the ratios of the few that were timed say it.
        """
        kind = self.figures.get("kind", WHOLE_STEP)
        return kind == "waiting" or (kind == WHOLE_STEP and self._waits_beyond_transfer > 0)

    @property
    def is_untimed(self) -> bool:
        """Whether steps take longer, and nothing says in which phase."""
        return self.figures.get("kind") == WHOLE_STEP and self.number("wait_ratio") is None

    @property
    def is_transferring(self) -> bool:
        """Whether more time is measured in transfers than in waits."""
        return self._waits_beyond_transfer < 0

    @property
    def _waits_beyond_transfer(self) -> float:
        return (self.number("wait_ratio") or 0.0) - (self.number("transfer_ratio") or 0.0)

    @property
    def is_layout(self) -> bool:
        """Whether the layout of the run explains the communication: nothing is broken."""
        return str(self.figures.get("kind", "")).endswith("layout")

    @property
    def culprit(self) -> Culprit:
        return _culprit(self.figures.get("culprit"))

    @property
    def wait_by_worker(self) -> Mapping[str, float]:
        """Seconds that each worker waits per step."""
        return self._numbers("wait_by_worker")

    @property
    def by_node(self) -> Mapping[str, float]:
        """How busy the host of each node is, 0 to 1, in alerts of hangs."""
        return self._numbers("host_by_node")

    def _numbers(self, name: str) -> Mapping[str, float]:
        given = self.figures.get(name)
        pairs = given.items() if isinstance(given, Mapping) else ()
        return {str(k): n for k, v in pairs if (n := _number(v)) is not None}

    @property
    def posterior(self) -> Mapping[str, float]:
        """How probable each cause is, the most probable first; empty where it was not weighed."""
        return dict(sorted(self._numbers("posterior").items(), key=lambda item: -item[1]))

    @property
    def likeliest(self) -> tuple[str, float] | None:
        """The most probable cause by name, and how probable it is; None if that is unknown."""
        cause, share = next(iter(self.posterior.items()), (UNKNOWN, 0.0))
        return None if cause == UNKNOWN else (cause_name(cause), share)

    @property
    def limits(self) -> Mapping[str, Any]:
        """What could be found in the run, by its noise."""
        given = self.figures.get("limits")
        return given if isinstance(given, Mapping) else {}

    @property
    def shared_place(self) -> str:
        """Where a fault of several nodes or runs is; empty for a fault of one."""
        nodes, runs = self.names("nodes"), self.names("runs")
        places = {"rack": "rack", "ultraserver": "UltraServer"}
        known = (
            f"{word} {name}" for key, word in places.items() if (name := self.figures.get(key))
        )
        is_shared = runs and max(len(nodes), len(runs)) > 1
        return shared_place(nodes, runs, next(known, "")) if is_shared else ""

    def names(self, key: str) -> Sequence[str]:
        given = self.figures.get(key)
        return [str(name) for name in given] if isinstance(given, list | tuple) else []


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
# Healthy steps vary by this ratio: a smaller loss counts as none.
LOSS_NOISE_RATIO = 0.01
# Less than half a step reads as none.
LEAST_LOST_STEPS = 0.5
# The highest of many means of five steps, and any other, lie within so many deviations of single
# steps: four of a mean's above, two and a half below.
SCATTER_DEVIATIONS = 3.0
CLOCK_WITHIN = timedelta(hours=12)


def headline(alert: Alert) -> SafeString:
    """Write in one clause what is wrong and where."""
    return AlertText(alert, now=alert.last_seen_at).headline


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
    def short(self) -> str:
        if self.is_none:
            return "no step"
        steps = counted(self.n_steps, "step")
        return steps if self.usd is None else f"{usd(self.usd)}, {steps}"

    @property
    def how(self) -> str:
        """How the loss was computed, with every figure that went into it, as plain text."""
        span_s, paused_s = self.cost["span_s"], self.cost.get("paused_s", 0.0)
        context = {
            "cost": dict(self.cost) | {"usd_per_hour": _number(self.cost.get("usd_per_hour"))},
            "n_possible": max(0.0, span_s - paused_s) / self.cost["usual_s"],
            "n_others": int(_number(self.cost.get("n_others")) or 0),
        }
        return render_line("alerts/_loss.html#how", **context)


def is_less(
    now: float | None, worst: float | None, scatter: float, written: Callable[[float], str]
) -> bool:
    """Whether a figure fell by more than its run scatters, and is written in other digits."""
    if now is None or worst is None:
        return False
    return worst - now > SCATTER_DEVIATIONS * scatter and written(now) != written(worst)


def _scatter(name: str, worst: "Evidence", seen: "Evidence | None") -> float:
    """Deviation of single steps; that of the record's worst or last steps, whichever is larger."""
    each = (of.number(name) for of in (worst, seen) if of is not None)
    return max((known for known in each if known is not None), default=0.0)


def loss(alert: Alert) -> Loss | None:
    """Read what an alert has cost, as fleet/costs/losses.py measured it; None if unknown."""
    names = ("lost_s", "span_s", "n_steps", "usd")
    lost_s, span_s, n_steps, dollars = (_number(alert.cost.get(name)) for name in names)
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
    def detail(self) -> SafeString:
        """The likely cause in one short sentence; empty if the headline says everything."""
        return self._render("detail")

    @cached_property
    def story(self) -> SafeString:
        """Everything: what, where, since when, how bad, why, and what it has cost."""
        return self._render("story")

    @cached_property
    def lost(self) -> Loss | None:
        """What it has cost; None if unknown."""
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

    def _render(self, name: str, *, linked: bool = True) -> SafeString:
        alert = self.recorded.alert
        rule = "_group" if Evidence(alert.evidence).shared_place else alert.rule
        return render_line(_template_name(rule, name), **{**self._context, "linked": linked})

    @cached_property
    def _context(self) -> dict[str, Any]:
        alert, worst, latest = self.recorded.alert, self.recorded.worst, self.recorded.latest
        shown = self.recorded.shown
        evidence = Evidence(alert.evidence)
        culprit = evidence.culprit
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
        step_s_now = seen.number("step_s") if seen else None
        if not is_less(step_s_now, step_s, _scatter("step_scatter_s", evidence, seen), seconds):
            step_s_now = None
        # Whether steps take longer; empty where the headline says so already. Shorter ones belong
        # to the end of a problem.
        step_time = ""
        if step_s is not None and usual_s is not None and alert.rule != "step_slow":
            is_same = abs(step_s - usual_s) <= STEP_NOISE_RATIO * usual_s
            step_time = "unchanged" if is_same else "changed" if step_s > usual_s else ""
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
            "step_s_now": step_s_now,
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
        is_lower = is_less(last, worst, _scatter("share_scatter_ratio", evidence, seen), percent)
        limit = evidence.number("limit_ratio")
        if limit is None and alert.run is not None:
            limit = alert.run.allreduce_limit_ratio
        return {
            "worst_share_ratio": worst,
            "lower_share_ratio": last if is_lower else None,
            "limit_ratio": limit,
        }


@lru_cache(maxsize=512)
def _template_name(rule: str, part: str) -> str:
    """Find the template of a part: the rule's own, else the general one."""
    name = f"alerts/{rule}.html#{part}"
    try:
        get_template(name)
    except TemplateDoesNotExist:
        return f"alerts/_rule.html#{part}"
    return name


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
    culprit = evidence.culprit
    is_placed = alert.run is not None or alert.node is not None
    part = f", {part_text(alert.part, alert.device)}" if alert.device is not None else ""
    last_ratio = evidence.number("last_ratio") if evidence.is_waiting else None
    peers = _known(culprit.peers_median, culprit.unit)
    if peers and culprit.n_peers != 0:
        n_peers = culprit.n_peers
        peers += " median" + ("" if n_peers is None else f", {counted(n_peers, 'peer')}")
    facts_of_alert: Iterable[tuple[str, str | None]] = (
        ("Culprit", f"{alert.node}{part}" if alert.node else None),
        ("Rack", str(evidence.figures.get("rack") or "") or None),
        ("UltraServer", str(evidence.figures.get("ultraserver") or "") or None),
        ("Cause", named_cause(alert) if is_placed else None),
        ("Measured", _known(culprit.value, culprit.unit)),
        (_compared_with(evidence), peers),
        ("Threshold", _known(culprit.limit, culprit.unit)),
        ("Share", _share(evidence)),
        ("Step", _step(evidence)),
        ("Phase", _phase(evidence)),
        ("Onset", f"{duration(alert.fired_at - alert.onset_at)} before it fired"),
        *_strength(alert, evidence),
        ("Arrives last", f"in {percent(last_ratio, 0)} of the steps" if last_ratio else None),
        *_other_facts(evidence),
        ("Recurring", recurring),
    )
    return [(name, value) for name, value in facts_of_alert if value]


def _strength(alert: Alert, evidence: Evidence) -> Iterable[Fact]:
    """Yield how strong the evidence is, and what decides how strong it must be."""
    nats, level_nats = evidence.number("nats"), evidence.number("level_nats")
    if nats is None or level_nats is None:
        if alert.score >= 1:
            yield "Score", f"{alert.score:.1f} \u00d7 firing threshold"
        return
    yield "Strength", f"{nats:,.1f} nats, {level_nats:,.1f} needed"
    if noise := _noise(Evidence(evidence.limits)):
        yield "Noise of the run", noise
    yield "Error budget", share_text(alert.rule, alert.severity)


def _noise(limits: Evidence) -> str | None:
    scatter, least = limits.number("scatter_ratio"), limits.number("slowdown_ratio")
    n_steps = limits.number("within_steps")
    if scatter is None or least is None or n_steps is None:
        return None
    early = "; it is young, so only large ones are" if limits.figures.get("is_young") else ""
    found = f"a slowdown of {percent(least)} is found within {counted(n_steps, 'step')}"
    return f"steps scatter by {percent(scatter)}; {found}{early}"


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


def _known(value: float | None, unit: str | None) -> str | None:
    return None if value is None else figure(value, unit)


def _phase(evidence: Evidence) -> str | None:
    now_s, before_s = evidence.number("phase_s"), evidence.number("baseline_phase_s")
    kind = str(evidence.figures.get("kind") or "")
    if now_s is None or before_s is None or kind in {"", WHOLE_STEP}:
        return None
    was = "expected" if evidence.figures.get("is_expected") else "was"
    return f"{kind} {seconds(now_s)}, {was} {seconds(before_s)}"


def _compared_with(evidence: Evidence) -> str:
    if evidence.figures.get("is_expected"):
        return "Expected"
    return "Before" if evidence.culprit.n_peers == 0 else "Peers"


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
