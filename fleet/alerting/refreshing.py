"""A finding whose alert is open already: what has changed about it, and is it worth telling."""

from datetime import datetime, timedelta
from typing import Any

from fleet.alerting.events import Kind, blame, change, how_bad, how_many, note
from fleet.alerting.firing import SEVERITIES, told_by
from fleet.alerting.pairing import SYMPTOMS, Subject, key_of
from fleet.models import Alert
from telemetry.detect import RULES, Finding
from telemetry.detect.finding import UNKNOWN

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
