"""From findings to alerts: open the new, refresh the lasting, resolve the rest."""

from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db import IntegrityError, transaction

from fleet.alerts.correlation import (
    QUIET,
    SYMPTOMS,
    Subject,
    by_subject,
    damp,
    has_same_culprit,
    is_same_again,
    key_of,
    last_time,
    pair,
)
from fleet.alerts.events import Kind, blame, change, how_bad, how_many, note
from fleet.alerts.matchers import active_silences
from fleet.alerts.silences import apply_silences
from fleet.models import Alert, InjectedFault, Node, Run
from telemetry.detect import RULES, Finding
from telemetry.detect.findings import UNKNOWN

SEVERITIES = {"page": Alert.Severity.PAGE, "warn": Alert.Severity.WARN}


def fire(finding: Finding, key: Subject, *, now: datetime) -> Alert | None:
    """Fire an alert; None where another watcher did so at this very moment."""
    earlier = last_time(key, finding, now=now)
    if earlier is not None and is_same_again(earlier, finding, now=now):
        return earlier if _again(earlier, finding, key, now=now) else None
    alert = _new(finding, key, earlier, now=now)
    if alert is not None:
        note(alert, Kind.FIRED, now=now, text=blame(finding))
        if earlier is not None:
            damp(alert, now=now)
    return alert


def _new(finding: Finding, key: Subject, earlier: Alert | None, *, now: datetime) -> Alert | None:
    run = Run.objects.filter(name=finding.run).first() if finding.run else None
    drills = InjectedFault.objects.filter(run=run, starts_at__lte=now, ends_at__gte=now)
    try:
        with transaction.atomic():
            return Alert.objects.create(
                **_where(key),
                **told_by(finding),
                severity=SEVERITIES[finding.severity],
                run=run,
                onset_at=min(now, datetime.fromtimestamp(finding.onset_s, UTC)),
                fired_at=now,
                last_seen_at=now,
                is_drill=run is not None and drills.exclude(injected_by="").exists(),
                earlier=earlier,
            )
    except IntegrityError:
        return None


def _again(alert: Alert, finding: Finding, key: Subject, *, now: datetime) -> bool:
    """Open a row again that was over for a moment; whoever had taken it still has it."""
    told = told_by(finding)
    if finding.cause == UNKNOWN:
        told = {name: told[name] for name in ("score", "evidence")}
    reopened = {
        **_where(key),
        **told,
        "severity": SEVERITIES[finding.severity],
        "resolved_at": None,
        "last_seen_at": now,
        "n_firings": alert.n_firings + 1,
        "silence": None,
    }
    was_over_at = alert.resolved_at
    try:
        with transaction.atomic():
            is_ours = change(alert, if_still={"resolved_at": was_over_at}, to=reopened)
    except IntegrityError:
        return False
    if is_ours:
        # What is kept of its charts is a beginning again.
        alert.frozen_charts.filter(kept_until=None).update(kept_until=was_over_at)
        text = f"{blame(finding)}; firing {alert.n_firings}"
        note(alert, Kind.REFIRED, now=now, text=text)
        damp(alert, now=now)
    return is_ours


def told_by(finding: Finding) -> dict[str, Any]:
    """Return what an alert takes from a finding: whom it blames for what, and the figures."""
    return {
        "cause": finding.cause,
        "node": Node.objects.filter(name=finding.node).first() if finding.node else None,
        "device": finding.device,
        "score": finding.score,
        "victims": list(finding.victims),
        "evidence": dict(finding.evidence),
    }


def _where(key: Subject) -> dict[str, str]:
    return {"rule": key[0], "subject": key[1]}


# A share must grow by a tenth before the timeline says so again; silence only gets longer.
WORSE_BY = 1.1
# A problem at the edge of two rules, or of two causes, is not told at every turn.
RULE_STAYS, CAUSE_STAYS = timedelta(minutes=5), timedelta(seconds=30)
# A flapping alert that was quiet for so long and burns again gets a line for it, but pages nobody.
AWAY = timedelta(minutes=1)


def refresh(
    alert: Alert, finding: Finding, key: Subject, *, now: datetime, must_move: bool = False
) -> bool | None:
    """Bring an open alert up to date; say whether its timeline gained a line.

    None where there is nothing to say but that it lasts. It ``must_move`` to its rule where
    another finding stands at the rule it has.
    """
    moves = must_move or _moves(alert, finding, key, now=now)
    is_urgent = SEVERITIES[finding.severity] < alert.severity
    is_renamed = _is_renamed(alert, finding, now=now)
    is_worse = is_urgent or _is_worse(alert, finding)
    is_back = alert.quiet_since is not None and now - alert.quiet_since >= AWAY
    joined, gone = _moved(alert, finding)
    to: dict[str, Any] = {}
    if alert.quiet_since is not None:
        to |= {"quiet_since": None, "n_firings": alert.n_firings + 1}
    if moves:
        to |= {"rule": key[0], "subject": key[1]}
    # What could wait for the morning may become urgent; under its own rule never less so again.
    if moves or is_urgent:
        to["severity"] = SEVERITIES[finding.severity]
    if is_renamed:
        to |= told_by(finding)
    if moves or is_renamed or is_worse or is_back or joined or gone:
        to["evidence"] = dict(finding.evidence)
        to["score"] = finding.score if moves or is_back else max(alert.score, finding.score)
    if not to:
        return None
    as_seen = {"resolved_at": None, "last_seen_at": alert.last_seen_at}
    if not change(alert, if_still=as_seen, to=to | {"last_seen_at": now}):
        return False
    what = {
        Kind.RULE_CHANGED: moves,
        Kind.CAUSE_CHANGED: is_renamed,
        Kind.WORSENED: is_worse or joined,
        Kind.LEARNED: gone,
    }
    news = [Kind.REFIRED] if is_back else []
    news += [kind for kind, is_so in what.items() if is_so][:1]
    for kind in news:
        note(alert, kind, now=now, text=_text(alert, finding, kind))
    return bool(news)


def _text(alert: Alert, finding: Finding, kind: Kind) -> str:
    """Return what the timeline says of a change."""
    match kind:
        case Kind.REFIRED:
            return f"{blame(finding)}; firing {alert.n_firings}"
        case Kind.RULE_CHANGED:
            return f"{RULES[finding.rule].title.lower()}; {blame(finding)}"
        case Kind.WORSENED if not finding.nodes:
            return how_bad(finding)
        case Kind.WORSENED | Kind.LEARNED:
            return how_many(finding)
        case _:
            return blame(finding)


def _moved(alert: Alert, finding: Finding) -> tuple[bool, bool]:
    """Return whether nodes have joined those that the alert accuses, and whether some are gone."""
    if finding.node is not None or not finding.nodes:
        return False, False
    was, now = set(alert.evidence.get("nodes") or ()), set(finding.nodes)
    return bool(now - was), bool(was - now)


def _moves(alert: Alert, finding: Finding, key: Subject, *, now: datetime) -> bool:
    """Whether the alert goes on under another rule: at once where that is more urgent."""
    if key == key_of(alert):
        return False
    is_more_urgent = SEVERITIES[finding.severity] < alert.severity
    return is_more_urgent or not _has_lately(alert, Kind.RULE_CHANGED, since=now - RULE_STAYS)


def _is_renamed(alert: Alert, finding: Finding, *, now: datetime) -> bool:
    """Whether another is to blame; evidence that has since faded does not unname a culprit."""
    blamed = (finding.cause, finding.node, finding.device)
    was_blamed = (alert.cause, alert.node.name if alert.node else None, alert.device)
    if blamed == was_blamed:
        return False
    if finding.cause == UNKNOWN:
        # Who it is may be known before why.
        return alert.cause == UNKNOWN and alert.node is None and finding.node is not None
    is_first = alert.cause == UNKNOWN
    return is_first or not _has_lately(alert, Kind.CAUSE_CHANGED, since=now - CAUSE_STAYS)


def _is_worse(alert: Alert, finding: Finding) -> bool:
    is_told = finding.rule in SYMPTOMS or "share_ratio" in finding.evidence
    return is_told and finding.rule == alert.rule and finding.score > alert.score * WORSE_BY


def _has_lately(alert: Alert, kind: Kind, *, since: datetime) -> bool:
    return alert.events.filter(kind=kind, at__gt=since).exists()


def reconcile(
    findings: Iterable[Finding], *, watched: Collection[Subject], now: datetime
) -> list[Alert]:
    """Make the open alerts of what was watched say what the findings say.

    A rule that could not look at a subject leaves its alert alone: no news is not good news.
    Returns the alerts that changed in a way a person would want to know.
    """
    found = by_subject(findings)
    if not found and not Alert.objects.open().exists():
        return []
    return _reconcile(found, watched, now=now)


@transaction.atomic
def _reconcile(
    found: Mapping[Subject, Finding], watched: Collection[Subject], *, now: datetime
) -> list[Alert]:
    alerts = Alert.objects.open().select_related("run", "node", "silence")
    # A simulated run's plan and clocks are long, and say nothing of its alerts.
    held = list(alerts.defer("run__plan", "run__clock"))
    paired = pair(found, held)
    lasting = {alert.pk for alert in paired.values()}
    over = [alert for alert in held if alert.pk not in lasting]
    changed = [alert for alert in over if _merge(alert, found, paired, now=now)]
    changed += [alert for alert in over if alert.is_open and _end(alert, watched, now=now)]
    taken = {key_of(alert) for alert in over if alert.is_open}
    changed += _refresh_all(found, paired, taken, now=now)
    fired = [fire(found[key], key, now=now) for key in found if key not in paired]
    changed += filter(None, fired)
    still_open = {alert.pk: alert for alert in (*held, *changed) if alert.is_open}
    muted = apply_silences(still_open.values(), active_silences(now=now), now=now)
    return list({alert.pk: alert for alert in (*changed, *muted)}.values())


def _refresh_all(
    found: Mapping[Subject, Finding],
    paired: Mapping[Subject, Alert],
    taken: Collection[Subject],
    *,
    now: datetime,
) -> list[Alert]:
    """Bring the lasting alerts up to date, those without news all at once.

    None moves to a rule and subject that are ``taken``: there an alert waits for its end.
    """
    changed, calm = [], []
    for key, alert in paired.items():
        if alert.last_seen_at >= now:
            continue
        is_in_the_way = key_of(alert) != key and key_of(alert) in found
        goal = key_of(alert) if key in taken else key
        news = refresh(alert, found[key], goal, now=now, must_move=is_in_the_way)
        if news is None:
            calm.append(alert.pk)
        elif news:
            changed.append(alert)
    if calm:
        Alert.objects.open().filter(pk__in=calm, last_seen_at__lt=now).update(last_seen_at=now)
    return changed


def _merge(
    alert: Alert,
    found: Mapping[Subject, Finding],
    paired: Mapping[Subject, Alert],
    *,
    now: datetime,
) -> bool:
    """Resolve an alert whose culprit another alert names by now."""
    twins = (
        other
        for key, other in paired.items()
        if found[key].cause != UNKNOWN and has_same_culprit(alert, found[key])
    )
    if (twin := next(twins, None)) is None or alert.last_seen_at >= now:
        return False
    return _resolve(alert, now=now, text=f"alert {twin.pk} tells it from here on")


def _end(alert: Alert, watched: Collection[Subject], *, now: datetime) -> bool:
    """Resolve an alert that is no longer found; say whether it is over."""
    if alert.last_seen_at >= now:
        return False
    if key_of(alert) not in watched:
        run = alert.run
        is_gone = run is not None and run.finished_at is not None and run.finished_at <= now
        return is_gone and _resolve(alert, now=now, text="its run is over")
    if alert.flapping_since is None:
        return _resolve(alert, now=now)
    as_seen = {"resolved_at": None, "last_seen_at": alert.last_seen_at}
    if alert.quiet_since is None:
        change(alert, if_still=as_seen, to={"quiet_since": now})
        return False
    if now - alert.quiet_since < QUIET:
        return False
    return _resolve(alert, now=now, text=f"quiet for 10 minutes, after {alert.n_firings} firings")


def _resolve(alert: Alert, *, now: datetime, text: str = "") -> bool:
    as_seen = {"resolved_at": None, "last_seen_at": alert.last_seen_at}
    if not change(alert, if_still=as_seen, to={"resolved_at": now, "quiet_since": None}):
        return False
    note(alert, Kind.RESOLVED, now=now, text=text)
    return True
