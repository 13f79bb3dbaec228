"""The impact of an alert: how much longer steps take, and what that costs an hour."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from datetime import datetime

from fleet.alerts.evidence import Evidence, finite
from fleet.alerts.record import STEP_NOISE_RATIO, RecordedAlert, recorded
from fleet.formatting import seconds
from fleet.models import Alert, Run
from fleet.runs.limits import page_from
from telemetry.detect import RULES, Finding

# Causes with which no step ends, and those that hide whether one does.
STOPPING = frozenset({"node_crash", "hang", "workers_ended", "recompile"})
HIDDEN = frozenset({"reports_refused"})
# From these shares of lost time on, an impact is high or noticeable.
HIGH_RATIO, NOTICEABLE_RATIO = 0.25, 0.05
# Healthy steps vary by this ratio: a smaller loss counts as none.
LOSS_NOISE_RATIO = 0.01
# The highest of many means of five steps, and any other, lie within so many deviations of single
# steps: four of a mean's above, two and a half below.
SCATTER_DEVIATIONS = 3.0


@dataclass(frozen=True, slots=True)
class Impact:
    """What an alert costs while it lasts.

    ``step_factor`` is a step's time over its usual time; None where no step ends, and where it is
    unknown. ``lost_ratio`` is the share of the time in which nothing is gained, 0 to 1, and
    ``usd_per_hour`` what the nodes of the run cost in that share of an hour; None: unknown.
    ``is_least``: other runs are affected, and not counted. ``n_alerts`` of the run are open that
    slow it: this is what they do together.
    """

    step_factor: float | None = None
    lost_ratio: float | None = None
    usd_per_hour: float | None = None
    stands_still: bool = False
    is_least: bool = False
    lacks_price: bool = False
    n_alerts: int = 1

    @property
    def is_none(self) -> bool:
        return self.lost_ratio == 0

    @property
    def level(self) -> str:
        """How bad it is, as a class of styles: high, noticeable or low; empty: unknown."""
        ratio = self.lost_ratio
        if ratio is None:
            return ""
        return "high" if ratio >= HIGH_RATIO else "some" if ratio >= NOTICEABLE_RATIO else "low"


def impact_of(alert: Alert) -> Impact:
    """Compute the impact of an alert, selected with its run, without a query.

    It is that of the alert at worst, as its texts say it, or of now where that is clearly less.
    """
    record = recorded(alert)
    shown, run = record.alert, alert.run
    evidence = Evidence(shown.evidence)
    span_s, lost_s = (finite(alert.cost.get(name)) for name in ("span_s", "lost_s"))
    measured = None
    if span_s and lost_s is not None:
        measured = lost_s / span_s if lost_s > LOSS_NOISE_RATIO * span_s else 0.0
    found = _impact(
        shown.rule,
        alert.cause,
        evidence,
        run=run,
        # A price that changes later does not change what has been said.
        at=alert.fired_at,
        step_s=step_s_now(record) or evidence.number("step_s"),
        nodes=alert.nodes,
        measured=measured,
    )
    n_others = int(finite(alert.cost.get("n_open_others")) or 0)
    return replace(found, n_alerts=1 + n_others) if alert.is_open and n_others else found


def _impact(
    rule: str,
    cause: str,
    evidence: Evidence,
    *,
    run: Run | None,
    at: datetime,
    step_s: float | None,
    nodes: Collection[str] = (),
    measured: float | None = None,
) -> Impact:
    traits, usual_s = RULES.get(rule), evidence.number("baseline_step_s")
    factor = step_s / usual_s if step_s and usual_s else None
    stops = cause in STOPPING or (traits is not None and traits.is_standstill)
    if run is None or cause in HIDDEN:
        return Impact()
    lost: float | None
    if stops or rule == "loss_not_finite":
        factor, lost = None, 1.0
    elif rule == "cost_drift":
        now, expected = (evidence.number(f"{each}usd_per_mtok") for each in ("", "expected_"))
        factor, lost = None, max(0.0, 1 - expected / now) if now and expected else None
    elif traits is not None and traits.wastes_time:
        lost = min(1.0, len(nodes) / run.n_nodes) if run.n_nodes else None
    elif factor is not None:
        lost = 1 - 1 / factor if factor > 1 + STEP_NOISE_RATIO else 0.0
    else:
        lost = measured
        factor = 1 / (1 - lost) if lost is not None and lost < 1 else None
    price, _ = run.price_at(at)
    usd = run.n_nodes * price * lost if price and lost is not None else None
    return Impact(
        step_factor=factor,
        lost_ratio=lost,
        usd_per_hour=usd,
        stands_still=stops,
        is_least=len(evidence.names("runs")) > 1,
        lacks_price=bool(lost) and not price,
    )


def is_minor(finding: Finding, run: Run | None, *, now: datetime) -> bool:
    """Whether a page is to be a warning: it costs less than people want to be paged for.

    Only where steps are measured and still end. What stops a run, loses a node or a device, or
    has no price, stays a page.
    """
    rule, evidence = RULES[finding.rule], Evidence(finding.evidence)
    least = page_from(run) if run is not None else 0.0
    is_slow = rule.slows_steps and rule.reads == "measurements" and not rule.is_standstill
    if not least or not is_slow or finding.cause in STOPPING | HIDDEN:
        return False
    step_s = evidence.number("step_s")
    impact = _impact(finding.rule, finding.cause, evidence, run=run, at=now, step_s=step_s)
    return impact.usd_per_hour is not None and not impact.is_least and impact.usd_per_hour < least


def lowered_below(alert: Alert) -> float | None:
    """Return the limit, in dollars an hour, below which an alert is a warning and no page."""
    impact, rule = impact_of(alert), RULES.get(alert.rule)
    if alert.run is None or alert.severity == Alert.Severity.PAGE or impact.usd_per_hour is None:
        return None
    least, may_page = page_from(alert.run), rule is not None and rule.severity == "page"
    return least if may_page and impact.usd_per_hour < least else None


def worst_first(alert: Alert) -> tuple[object, ...]:
    """Order open alerts: pages, unacknowledged ones, the most expensive one first.

    An unknown impact counts as the largest of pages, and as the smallest of warnings.
    """
    impact = impact_of(alert)
    unknown = float("inf") if alert.severity == Alert.Severity.PAGE else -1.0
    usd, ratio = (
        unknown if each is None else each for each in (impact.usd_per_hour, impact.lost_ratio)
    )
    return alert.severity, alert.acknowledged_at is not None, -usd, -ratio, alert.fired_at


def step_s_now(record: RecordedAlert) -> float | None:
    """Return how long steps of an open alert take now, if clearly less than at worst."""
    alert, latest, shown = record.alert, record.latest, record.shown
    worst = Evidence(alert.evidence)
    if latest is None or shown is None or not alert.is_open or latest.at_s == shown.at_s:
        return None
    seen = Evidence(latest.figures)
    now_s, worst_s = seen.number("step_s"), worst.number("step_s")
    scatter_s = scatter_of("step_scatter_s", worst, seen)
    return now_s if is_less(now_s, worst_s, scatter_s, seconds) else None


def is_less(
    now: float | None, worst: float | None, scatter: float, written: Callable[[float], str]
) -> bool:
    """Whether a figure fell by more than its run scatters, and is written in other digits."""
    if now is None or worst is None:
        return False
    return worst - now > SCATTER_DEVIATIONS * scatter and written(now) != written(worst)


def scatter_of(name: str, worst: Evidence, seen: Evidence | None) -> float:
    """Deviation of single steps; that of the record's worst or last steps, whichever is larger."""
    each = (of.number(name) for of in (worst, seen) if of is not None)
    return max((known for known in each if known is not None), default=0.0)
