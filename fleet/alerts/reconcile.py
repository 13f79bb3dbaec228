"""Turn findings into alerts: fire new ones, refresh open ones, resolve the rest."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db import IntegrityError, connection, transaction
from django.db.models import Q

from fleet.alerts.causes import PAUSES
from fleet.alerts.correlation import (
    Group,
    correlate,
    findings_of,
    has_other_parts,
    is_retired,
    members_text,
    parts_json,
)
from fleet.alerts.events import (
    Kind,
    change,
    in_sentence,
    nodes_text,
    note,
    severity_text,
    summary,
)
from fleet.alerts.impact import is_minor
from fleet.alerts.matchers import active_silences
from fleet.alerts.probe_requests import PROBED, locate_probed, with_probed_place
from fleet.alerts.record import begun, continued
from fleet.alerts.relations import (
    AFTER_S,
    AFTER_STEPS,
    AFTERMATH,
    AT_ITS_KEY,
    ECHO,
    EXPLAINED,
    SAME_CULPRIT,
    SAME_KEY,
    Subject,
    View,
    key_of,
    key_of_finding,
    related,
)
from fleet.alerts.silences import apply_silences
from fleet.models import Alert, AlertEvent, InjectedFault, Node, Run
from telemetry.detect import RULES, Finding, names_of
from telemetry.detect.causes import CLASS_OF, UNKNOWN
from telemetry.detect.shares import LAYOUT

SEVERITIES = {"page": Alert.Severity.PAGE, "warn": Alert.Severity.WARN}
# Uneven work comes and goes from step to step.
UNEVEN = "seq_imbalance"


def severity_of(finding: Finding, run: Run | None, *, now: datetime) -> Alert.Severity:
    """Return the severity of a finding's alert: that of its rule, unless it costs too little."""
    is_lowered = finding.severity == "page" and is_minor(finding, run, now=now)
    return Alert.Severity.WARN if is_lowered else SEVERITIES[finding.severity]


def reconcile(
    findings: Iterable[Finding], *, evaluated: Collection[Subject], now: datetime
) -> list[Alert]:
    """Update the open alerts to match the findings; return those that changed visibly.

    Alerts whose subject was not evaluated (no data, store unreachable) are left unchanged.
    """
    by_key = by_subject(findings)
    if not by_key and not Alert.objects.open().exists():
        return []
    with transaction.atomic():
        open_ = _open_alerts()
        new = by_key.keys() - {key_of(alert) for alert in open_}
        is_new = any(View.of(by_key[key]).cause_class is not None for key in new)
        if is_new and connection.features.has_select_for_update:
            # Two processes may find parts of one fault at once: the second joins the alert of
            # the first.
            Node.objects.select_for_update(no_key=True).order_by("pk").values_list("pk").first()
            open_ = _open_alerts()
        by_key = of_present_machines(by_key)
        changed = [
            alert
            for alert in open_
            if _end_of_machine(alert, now=now) or _end_of_part(alert, now=now)
        ]
        # What is found of them now was found of what is over.
        for alert in changed:
            by_key.pop(key_of(alert), None)
        open_ = [alert for alert in open_ if alert.is_open]
        by_key = locate_probed(without_echoes(by_key, open_), open_)
        by_key, over = correlate(by_key, open_, evaluated, now=now)
        paired: dict[Subject, Alert] = {}
        # A group is the oldest of its alerts; the others are merged into that one.
        by_pk = {alert.pk: alert for alert in open_}
        for key, group in by_key.items():
            if isinstance(group, Group) and group.alerts:
                paired[key], *others = (by_pk[pk] for pk in group.alerts)
                text = f"merged into alert {paired[key].pk}"
                changed += [alert for alert in others if _resolve(alert, now=now, text=text)]
        free = [alert for alert in open_ if alert.is_open and alert not in paired.values()]
        paired |= pair({k: f for k, f in by_key.items() if k not in paired}, free)
        lasting = {alert.pk for alert in paired.values()}
        unpaired = [alert for alert in open_ if alert.is_open and alert.pk not in lasting]
        known = [(View.of(by_key[k]), a) for k, a in paired.items() if by_key[k].cause != UNKNOWN]
        for alert in unpaired:
            view = View.of_alert(alert)
            duplicate = next((a for each, a in known if related(SAME_CULPRIT, each, view)), None)
            if duplicate is None or alert.last_seen_at >= now:
                continue
            if _resolve(alert, now=now, text=f"merged into alert {duplicate.pk}"):
                changed.append(alert)
        changed += [
            alert for alert in unpaired if alert.is_open and _end(alert, evaluated, over, now=now)
        ]
        occupied = {key_of(alert) for alert in unpaired if alert.is_open}
        changed += _refresh_all(by_key, paired, occupied, now=now)
        fired = [fire(by_key[key], key, now=now) for key in by_key if key not in paired]
        changed += filter(None, fired)
        still_open = {alert.pk: alert for alert in (*open_, *changed) if alert.is_open}
        silenced = apply_silences(still_open.values(), active_silences(now=now), now=now)
        return list({alert.pk: alert for alert in (*changed, *silenced)}.values())


def _open_alerts() -> list[Alert]:
    alerts = Alert.objects.open().select_related("run", "node", "silence")
    # A simulated run's plan and clocks are long, and not needed here.
    return list(alerts.defer("run__plan", "run__clock"))


def of_present_machines(found: Mapping[Subject, Finding]) -> dict[Subject, Finding]:
    """Leave out what began on a machine that another one replaced under its name.

    A new machine counts errors from another number than the old one: that is no error.
    """
    names = {each.node for key, each in found.items() if each.node and is_of_machine(key[0])}
    rows = Node.objects.filter(name__in=names).exclude(replaced_at=None) if names else ()
    replaced_s = {row.name: row.replaced_at.timestamp() for row in rows if row.replaced_at}
    return {
        key: each
        for key, each in found.items()
        if not is_of_machine(key[0]) or each.onset_s > replaced_s.get(each.node or "", 0.0)
    }


def is_of_machine(rule: str) -> bool:
    """Whether a rule is about a node itself; what a run suffers lasts beyond its machines."""
    return RULES[rule].subject == "node"


def _end_of_machine(alert: Alert, *, now: datetime) -> bool:
    node, is_of_one = alert.node, is_of_machine(alert.rule) and not alert.parts
    if node is None or not is_of_one or not node.is_newer(alert.fired_at):
        return False
    text = f"machine replaced: {node.instance_id} for {node.replaced_id}"
    return _resolve(alert, now=now, text=text)


def _end_of_part(alert: Alert, *, now: datetime) -> bool:
    """Resolve what a silent node meant for its run, which has gone on without it."""
    node, is_silence = alert.node, _is_silence(alert.rule) and not alert.parts
    if node is None or not is_silence or not _has_left(alert, node):
        return False
    return _resolve(alert, now=now, text=f"{alert.run} goes on without {node.name}")


def _is_silence(rule: str) -> bool:
    return is_of_machine(rule) and RULES[rule].reads == "silence"


def _has_left(alert: Alert, node: Node) -> bool:
    return alert.run_id is not None and node.run_id != alert.run_id


def by_subject(findings: Iterable[Finding]) -> dict[Subject, Finding]:
    """Index findings by rule and subject: the strongest of each, the strongest first."""
    first: dict[Subject, Finding] = {}
    for finding in sorted(findings, key=lambda each: -each.score):
        first.setdefault(key_of_finding(finding), finding)
    return first


def pair(found: Mapping[Subject, Finding], open_: Iterable[Alert]) -> dict[Subject, Alert]:
    """Assign open alerts to findings, the most certain first; one without an alert is new."""
    free = {alert.pk: (alert, View.of_alert(alert)) for alert in open_}
    views = {key: View.of(each, key) for key, each in found.items()}
    # An alert whose culprit no finding names ends, and its rule and subject become free.
    occupied = {
        view.key
        for _, view in free.values()
        if any(related(AT_ITS_KEY + SAME_CULPRIT, each, view) for each in views.values())
    }
    paired: dict[Subject, Alert] = {}
    for rows in (AT_ITS_KEY, SAME_CULPRIT, SAME_KEY, EXPLAINED):
        for key, finding in views.items():
            # No alert moves to an occupied key: that key's own alert stays there.
            if key in paired or (key in occupied and rows not in (AT_ITS_KEY, SAME_KEY)):
                continue
            fits = (pk for pk, (_, view) in free.items() if related(rows, finding, view))
            if (pk := next(fits, None)) is not None:
                paired[key], _ = free.pop(pk)
    return paired


def without_echoes(
    found: Mapping[Subject, Finding], open_: Collection[Alert]
) -> dict[Subject, Finding]:
    """Leave out what only repeats another finding, or an open alert about a pause."""
    views = {key: View.of(each, key) for key, each in found.items()}
    heard = [*views.values(), *(View.of_alert(each) for each in open_ if each.cause in PAUSES)]
    # Of thousands of findings, few can have an echo.
    heard = [each for each in heard if any(row.source(each) for row in ECHO)]
    return {
        key: each
        for key, each in found.items()
        if not any(related(ECHO, other, views[key]) for other in heard)
    }


# An alert that is detected again within this time fires again on the same row,
REFIRES_WITHIN = timedelta(minutes=5)
# or within this, if the finding does not know the cause that the alert had.
REFIRES_UNEXPLAINED_WITHIN = timedelta(minutes=1)
# Later, a new row refers to the earlier one.
RECURS_WITHIN = timedelta(hours=1)
FLAPS_AT, FLAPS_WITHIN = 3, timedelta(minutes=30)
# A flapping alert is resolved after this time without a finding.
QUIET = timedelta(minutes=10)
FIRINGS = (Kind.FIRED, Kind.REFIRED)
# A problem has no more rows than this within the time in which firings are counted.
LONGEST_CHAIN = 6


def fire(finding: Finding, key: Subject, *, now: datetime) -> Alert | None:
    """Fire an alert; None where another process did so at the same moment."""
    if is_aftermath(finding, now=now):
        return None
    earlier = last_alert(key, finding, now=now)
    if earlier is not None and may_refire(earlier, finding, now=now):
        finding = with_probed_place(finding, findings_of(earlier)[0])
        return earlier if _refire(earlier, finding, key, now=now) else None
    run = Run.objects.filter(name=finding.run).first() if finding.run else None
    drills = InjectedFault.objects.filter(run=run, starts_at__lte=now, ends_at__gte=now)
    try:
        with transaction.atomic():
            alert = Alert.objects.create(
                rule=key[0],
                subject=key[1],
                **fields_of(finding),
                **begun(finding, key[1], now=now),
                severity=severity_of(finding, run, now=now),
                run=run,
                onset_at=min(now, datetime.fromtimestamp(finding.onset_s, UTC)),
                fired_at=now,
                last_seen_at=now,
                is_drill=run is not None and drills.exclude(injected_by="").exists(),
                earlier=earlier,
            )
    except IntegrityError:
        return None
    note(alert, Kind.FIRED, now=now, text=summary(finding))
    if earlier is not None:
        damp(alert, now=now)
    return alert


def is_aftermath(finding: Finding, *, now: datetime) -> bool:
    """Whether a finding only shows what an alert of its run was about."""
    view = View.of(finding, at_s=now.timestamp())
    recent = now - timedelta(seconds=max(AFTER_S, AFTER_STEPS * view.step_s))
    of_run = Alert.objects.filter(
        Q(resolved_at=None, rule="hang") | Q(resolved_at__gt=recent),
        run__name=finding.run,
        rule__in=names_of(lambda rule: rule.slows_steps),
    )
    alerts = of_run.select_related("run", "node") if finding.run else ()
    return any(related(AFTERMATH, View.of_alert(alert), view) for alert in alerts)


def _refire(alert: Alert, finding: Finding, key: Subject, *, now: datetime) -> bool:
    """Open a resolved row again; its acknowledgement and its owner stay, unless it pages now."""
    fields = fields_of(finding)
    if finding.cause == UNKNOWN:
        fields = {name: fields[name] for name in ("score", "evidence")}
    reopened = {
        "rule": key[0],
        "subject": key[1],
        **fields,
        **continued(alert, finding, key[1], now=now, is_new=True),
        **with_severity(alert, severity_of(finding, alert.run, now=now)),
        "resolved_at": None,
        "last_seen_at": now,
        "n_firings": alert.n_firings + 1,
        "silence": None,
    }
    resolved_at, owner = alert.resolved_at, alert.acknowledged_by
    as_read = {"resolved_at": resolved_at, "acknowledged_at": alert.acknowledged_at}
    try:
        with transaction.atomic():
            is_ours = change(alert, if_still=as_read, to=reopened)
    except IntegrityError:
        return False
    if is_ours:
        # The frozen charts end here; new ones begin.
        alert.frozen_charts.filter(kept_until=None).update(kept_until=resolved_at)
        note(alert, Kind.REFIRED, now=now, text=f"{summary(finding)}; firing {alert.n_firings}")
        if text := withdrawn_text(alert, owner):
            note(alert, Kind.UNACKNOWLEDGED, now=now, text=text)
        damp(alert, now=now)
    return is_ours


def with_severity(alert: Alert, severity: Alert.Severity) -> dict[str, Any]:
    """Return the fields of an alert with a severity: who took a warning has not taken a page."""
    withdrawn = {"acknowledged_at": None, "acknowledged_by": ""}
    return {"severity": severity} | (withdrawn if alert.severity > severity else {})


def withdrawn_text(alert: Alert, owner: str) -> str:
    was_withdrawn = owner != alert.acknowledged_by
    return f"acknowledged by {owner} as a warning; it pages now" if was_withdrawn else ""


def fields_of(finding: Finding) -> dict[str, Any]:
    return {
        "cause": finding.cause,
        "node": Node.objects.filter(name=finding.node).first() if finding.node else None,
        "device": finding.device,
        "score": finding.score,
        "victims": list(finding.victims),
        "evidence": dict(finding.evidence),
        "parts": parts_json(finding),
    }


def last_alert(key: Subject, finding: Finding, *, now: datetime) -> Alert | None:
    """Find the last alert of the same problem, if it was resolved within the hour."""
    rule, subject = key
    of_run = Q(cause=finding.cause) | Q(evidence__has_key=PROBED)
    alike = Q(rule=rule, subject=subject) | (Q(run__name=finding.run) & of_run)
    over = Alert.objects.filter(alike, resolved_at__gt=now - RECURS_WITHIN, resolved_at__lte=now)
    for alert in over.select_related("run", "node").order_by("-resolved_at", "-pk"):
        if alert.node and is_of_machine(alert.rule) and alert.node.is_newer(alert.fired_at):
            continue
        if alert.node and _is_silence(rule) and _has_left(alert, alert.node):
            continue
        held = with_probed_place(finding, findings_of(alert)[0])
        views = (View.of(held, key), View.of_alert(alert))
        # A run whose layout communicates more does not bring an earlier culprit back.
        may_be_other = finding.evidence.get("kind") != LAYOUT or alert.cause == finding.cause
        if related((AT_ITS_KEY if may_be_other else ()) + SAME_CULPRIT, *views):
            return alert
    return None


def may_refire(alert: Alert, finding: Finding, *, now: datetime) -> bool:
    """Whether a resolved alert is recent enough to fire again on its own row."""
    is_unexplained = finding.cause == UNKNOWN != alert.cause
    within = REFIRES_UNEXPLAINED_WITHIN if is_unexplained else REFIRES_WITHIN
    return alert.resolved_at is not None and now - alert.resolved_at <= within


def damp(alert: Alert, *, now: datetime) -> None:
    """Mark an alert that fired often recently as flapping, and note it once."""
    firings = AlertEvent.objects.filter(
        alert__in=chain(alert), kind__in=FIRINGS, at__gt=now - FLAPS_WITHIN
    )
    n_firings = firings.count()
    if n_firings < FLAPS_AT:
        if alert.flapping_since is not None:
            change(alert, if_still={}, to={"flapping_since": None})
    elif alert.flapping_since is None:
        change(alert, if_still={"flapping_since": None}, to={"flapping_since": now})
        text = f"fired {n_firings} times within 30 minutes; resolves after 10 quiet minutes"
        note(alert, Kind.FLAPPING, now=now, text=text)


def chain(alert: Alert) -> Sequence[int]:
    """List the keys of an alert and of the earlier alerts of its problem."""
    keys, earlier = [alert.pk], alert.earlier_id
    while earlier is not None and len(keys) < LONGEST_CHAIN:
        keys.append(earlier)
        earlier = Alert.objects.values_list("earlier_id", flat=True).get(pk=earlier)
    return keys


# A score must grow by a tenth before the timeline notes it again.
WORSE_BY = 1.1
# A problem at the edge of two rules or causes does not alternate more often than this.
RULE_STAYS, CAUSE_STAYS = timedelta(minutes=5), timedelta(seconds=30)
# A flapping alert that fires again after this long gets a timeline entry, but no notification.
AWAY = timedelta(minutes=1)
# Detection reads how long a checkpoint takes from its alert: it is at most so many seconds old.
GROWN_S = 60.0
# What another process may have changed since an open alert was read.
COMPARED = ("resolved_at", "last_seen_at", "acknowledged_at")


def _refresh_all(
    found: Mapping[Subject, Finding],
    paired: Mapping[Subject, Alert],
    occupied: Collection[Subject],
    *,
    now: datetime,
) -> list[Alert]:
    """Refresh the lasting alerts, those without changes in one query.

    None moves to an ``occupied`` rule and subject: there another alert waits for its end.
    """
    changed, unchanged = [], []
    for key, alert in paired.items():
        if alert.last_seen_at >= now:
            continue
        is_in_the_way = key_of(alert) != key and key_of(alert) in found
        goal = key_of(alert) if key in occupied else key
        is_noted = refresh(alert, found[key], goal, now=now, must_move=is_in_the_way)
        if is_noted is None:
            unchanged.append(alert.pk)
        elif is_noted:
            changed.append(alert)
    if unchanged:
        older = Alert.objects.open().filter(pk__in=unchanged, last_seen_at__lt=now)
        older.update(last_seen_at=now)
    return changed


def refresh(
    alert: Alert, finding: Finding, key: Subject, *, now: datetime, must_move: bool = False
) -> bool | None:
    """Update an open alert; return whether its timeline got an entry, None without a change.

    It ``must_move`` to ``key`` where another finding has its rule and subject.
    """
    group = finding if isinstance(finding, Group) else None
    came, left = members_text(alert, group) if group else ("", "")
    # A group moves at once: the rule and subject of a part that ended may break again.
    moves = must_move or key != key_of(alert)
    is_urgent = (severity := severity_of(finding, alert.run, now=now)) < alert.severity
    if moves and not (group or must_move or is_urgent):
        moves = not _has_recent(alert, Kind.RULE_CHANGED, since=now - RULE_STAYS)
    has_new_culprit = not (came or left) and _has_new_culprit(alert, finding, now=now)
    devices, devices_before = (each.evidence.get("devices") for each in (finding, alert))
    has_other_devices = isinstance(devices, list) and devices != devices_before
    has_score = RULES[finding.rule].is_slow_run or "share_ratio" in finding.evidence
    has_score = has_score or has_other_devices
    is_stronger = finding.rule == alert.rule and finding.score > alert.score * WORSE_BY
    is_worse = is_urgent or (has_score and is_stronger)
    is_back = alert.quiet_since is not None and now - alert.quiet_since >= AWAY
    # A checkpoint has taken a minute more than the alert says.
    now_s, then_s = (each.evidence.get("phase_s") or 0.0 for each in (finding, alert))
    has_grown = finding.evidence.get("kind") == "checkpoint" and now_s - then_s >= GROWN_S
    joined = gone = False
    if not group and finding.node is None and finding.nodes:
        was, nodes_now = set(alert.evidence.get("nodes") or ()), set(finding.nodes)
        joined, gone = bool(nodes_now - was), bool(was - nodes_now)
    to: dict[str, Any] = {}
    if alert.quiet_since is not None:
        to |= {"quiet_since": None, "n_firings": alert.n_firings + 1}
    if moves:
        to |= {"rule": key[0], "subject": key[1]}
    # A warning may become a page; under its own rule a page never becomes a warning.
    if moves or is_urgent:
        to |= with_severity(alert, severity)
    if has_new_culprit:
        to |= fields_of(finding)
    elif group and (moves or has_other_parts(alert, group)):
        run = Run.objects.filter(name=finding.run).first() if finding.run else None
        to |= fields_of(finding) | {"run": run}
    is_other = joined or gone or has_grown or has_other_devices
    if moves or has_new_culprit or is_worse or is_back or is_other:
        to["evidence"] = dict(finding.evidence)
        to["score"] = finding.score if moves or is_back else max(alert.score, finding.score)
    to |= continued(alert, finding, key[1], now=now, is_new=has_new_culprit)
    if not to:
        return None
    as_read = {name: getattr(alert, name) for name in COMPARED}
    old_rule, owner = alert.rule, alert.acknowledged_by
    if not change(alert, if_still=as_read, to=to | {"last_seen_at": now}):
        return False
    nodes = nodes_text(finding)
    renames = moves and (group is None or old_rule != finding.rule)
    texts = {
        Kind.RULE_CHANGED: (
            renames,
            f"{in_sentence(RULES[finding.rule].title)}; {summary(finding)}",
        ),
        Kind.CAUSE_CHANGED: (has_new_culprit, summary(finding)),
        Kind.WORSENED: (is_worse or joined, nodes if finding.nodes else severity_text(finding)),
        Kind.LEARNED: (gone, nodes),
    }
    news = [(kind, text) for kind, (is_so, text) in texts.items() if is_so][:1]
    news += [
        (kind, text)
        for kind, text in (
            (Kind.WORSENED, came),
            (Kind.LEARNED, left),
            (Kind.UNACKNOWLEDGED, withdrawn_text(alert, owner)),
        )
        if text
    ]
    if is_back:
        news.insert(0, (Kind.REFIRED, f"{summary(finding)}; firing {alert.n_firings}"))
    for kind, text in news:
        note(alert, kind, now=now, text=text)
    return bool(news)


def _has_new_culprit(alert: Alert, finding: Finding, *, now: datetime) -> bool:
    """Whether the culprit changes; a finding that knows less removes nothing that is known."""
    node = alert.node.name if alert.node else None
    new = (finding.cause, finding.node, finding.device)
    if new == (alert.cause, node, alert.device):
        return False
    if finding.cause in (alert.cause, CLASS_OF.get(alert.cause)) and not (
        (finding.accused and finding.node != node)
        or (finding.device or alert.device) != alert.device
    ):
        return False
    if finding.cause == UNKNOWN:
        # The node may be known before the cause.
        return alert.cause == UNKNOWN and alert.node is None and finding.node is not None
    is_first = alert.cause == UNKNOWN
    return is_first or not _has_recent(alert, Kind.CAUSE_CHANGED, since=now - CAUSE_STAYS)


def _has_recent(alert: Alert, kind: Kind, *, since: datetime) -> bool:
    return alert.events.filter(kind=kind, at__gt=since).exists()


def _end(
    alert: Alert, evaluated: Collection[Subject], over: Collection[int], *, now: datetime
) -> bool:
    """Resolve an alert that is no longer found; return whether it is resolved.

    A group ends when it is ``over``: its parts are evaluated one by one.
    """
    if alert.last_seen_at >= now:
        return False
    is_evaluated = alert.pk in over if alert.parts else key_of(alert) in evaluated
    if not is_evaluated:
        run = None if alert.parts else alert.run
        is_over = run is not None and run.finished_at is not None and run.finished_at <= now
        is_gone = is_over or (not alert.parts and is_retired(alert.nodes))
        text = "its run has ended" if is_over else "its node is retired"
        return is_gone and _resolve(alert, now=now, text=text)
    if alert.flapping_since is None:
        quiet_s = RULES[alert.rule].uneven_quiet_s if alert.cause == UNEVEN else 0.0
        may_return = now - alert.last_seen_at < timedelta(seconds=quiet_s)
        return not may_return and _resolve(alert, now=now)
    as_read = {"resolved_at": None, "last_seen_at": alert.last_seen_at}
    if alert.quiet_since is None:
        change(alert, if_still=as_read, to={"quiet_since": now})
        return False
    if now - alert.quiet_since < QUIET:
        return False
    return _resolve(alert, now=now, text=f"quiet for 10 minutes, after {alert.n_firings} firings")


def _resolve(alert: Alert, *, now: datetime, text: str = "") -> bool:
    as_read = {"resolved_at": None, "last_seen_at": alert.last_seen_at}
    if not change(alert, if_still=as_read, to={"resolved_at": now, "quiet_since": None}):
        return False
    note(alert, Kind.RESOLVED, now=now, text=text)
    return True
