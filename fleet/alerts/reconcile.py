"""Turn findings into alerts: fire new ones, refresh open ones, resolve the rest."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db import IntegrityError, connection, transaction
from django.db.models import Q

from fleet.alerts.correlation import (
    Group,
    Subject,
    class_of,
    correlate,
    findings_of,
    has_other_parts,
    is_retired,
    members_text,
    parts_json,
    subject_of,
)
from fleet.alerts.events import Kind, change, nodes_text, note, severity_text, summary
from fleet.alerts.matchers import active_silences
from fleet.alerts.probe_requests import PROBED, locate_probed, with_probed_place
from fleet.alerts.record import begun, continued
from fleet.alerts.silences import apply_silences
from fleet.models import Alert, AlertEvent, InjectedFault, Node, Run
from telemetry.detect import RULES, Finding, names_of
from telemetry.detect.causes import CLASS_OF, HARDWARE_CAUSES, UNKNOWN
from telemetry.detect.share import LAYOUT, SHARE

Fits = Callable[[Subject, Finding, Alert], bool]

SEVERITIES = {"page": Alert.Severity.PAGE, "warn": Alert.Severity.WARN}
SLOWING = names_of(lambda rule: rule.slows_steps)
# Onsets of one problem differ by less than this, whatever shows it.
SAME_ONSET_S = 10.0
# A run with an alert of these causes makes no step.
PAUSES = ("hang", "recompile", "checkpoint_slow", "node_crash")
# So many steps may end after an alert about their run until they show that it is still slow.
AFTER_STEPS = 2.0
# So many seconds of hardware still show what is over.
AFTER_S = 30.0
# Uneven work comes and goes from step to step.
UNEVEN = "seq_imbalance"


def reconcile(
    findings: Iterable[Finding], *, evaluated: Collection[Subject], now: datetime
) -> list[Alert]:
    """Update the open alerts to match the findings; return those that changed visibly.

    Alerts whose subject was not evaluated (no data, store unreachable) are left unchanged.
    """
    found = by_subject(findings)
    if not found and not Alert.objects.open().exists():
        return []
    with transaction.atomic():
        open_ = _open_alerts()
        open_keys = {key_of(alert) for alert in open_}
        is_new = any(
            class_of(each) is not None and key not in open_keys for key, each in found.items()
        )
        if is_new and connection.features.has_select_for_update:
            # Two processes may find parts of one fault at once: the second joins the alert of
            # the first.
            Node.objects.select_for_update(no_key=True).order_by("pk").values_list("pk").first()
            open_ = _open_alerts()
        found = of_present_machines(found)
        changed = [alert for alert in open_ if _end_of_machine(alert, now=now)]
        open_ = [alert for alert in open_ if alert.is_open]
        found = locate_probed(without_echoes(found, open_), open_)
        found, over = correlate(found, open_, evaluated, now=now)
        paired: dict[Subject, Alert] = {}
        # A group is the oldest of its alerts; the others are merged into that one.
        by_pk = {alert.pk: alert for alert in open_}
        for key, group in found.items():
            if isinstance(group, Group) and group.alerts:
                paired[key], *others = (by_pk[pk] for pk in group.alerts)
                text = f"merged into alert {paired[key].pk}"
                changed += [alert for alert in others if _resolve(alert, now=now, text=text)]
        free = [alert for alert in open_ if alert.is_open and alert not in paired.values()]
        paired |= pair({k: f for k, f in found.items() if k not in paired}, free)
        lasting = {alert.pk for alert in paired.values()}
        unpaired = [alert for alert in open_ if alert.is_open and alert.pk not in lasting]
        known = [(found[k], alert) for k, alert in paired.items() if found[k].cause != UNKNOWN]
        for alert in unpaired:
            duplicate = next((a for finding, a in known if has_same_culprit(alert, finding)), None)
            if duplicate is None or alert.last_seen_at >= now:
                continue
            if _resolve(alert, now=now, text=f"merged into alert {duplicate.pk}"):
                changed.append(alert)
        changed += [
            alert for alert in unpaired if alert.is_open and _end(alert, evaluated, over, now=now)
        ]
        occupied = {key_of(alert) for alert in unpaired if alert.is_open}
        changed += _refresh_all(found, paired, occupied, now=now)
        fired = [fire(found[key], key, now=now) for key in found if key not in paired]
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
    node = alert.node
    if (
        alert.parts
        or not is_of_machine(alert.rule)
        or node is None
        or not node.is_newer(alert.fired_at)
    ):
        return False
    text = f"machine replaced: {node.instance_id} for {node.replaced_id}"
    return _resolve(alert, now=now, text=text)


def by_subject(findings: Iterable[Finding]) -> dict[Subject, Finding]:
    """Index findings by rule and subject: the strongest of each, the strongest first."""
    found: dict[Subject, Finding] = {}
    for finding in sorted(findings, key=lambda each: -each.score):
        found.setdefault((finding.rule, subject_of(finding)), finding)
    return found


def pair(found: Mapping[Subject, Finding], open_: Iterable[Alert]) -> dict[Subject, Alert]:
    """Assign open alerts to findings; a finding without an alert is new.

    The most certain fit comes first: same rule, subject and culprit; same culprit under another
    rule; same rule and subject with another culprit; a symptom whose cause is now known.
    """
    free = {alert.pk: alert for alert in open_}
    # An alert whose culprit no finding names ends, and its rule and subject become free.
    occupied = {
        key_of(alert)
        for alert in free.values()
        if any(agrees(alert, each) or has_same_culprit(alert, each) for each in found.values())
    }
    paired: dict[Subject, Alert] = {}
    fits: tuple[tuple[Fits, bool], ...] = (
        (lambda key, finding, alert: key == key_of(alert) and agrees(alert, finding), False),
        (lambda _key, finding, alert: has_same_culprit(alert, finding), True),
        (lambda key, _finding, alert: key == key_of(alert), False),
        (lambda _key, finding, alert: is_explained(alert, finding), True),
    )
    for fit, moves in fits:
        for key, finding in found.items():
            # No alert moves to an occupied key: that key's own alert stays there.
            if key in paired or (moves and key in occupied):
                continue
            alert = next((each for each in free.values() if fit(key, finding, each)), None)
            if alert is not None:
                paired[key] = free.pop(alert.pk)
    return paired


def key_of(alert: Alert) -> Subject:
    return (alert.rule, alert.subject)


def agrees(alert: Alert, finding: Finding) -> bool:
    """Whether cause, node and device are the same where both alert and finding know them."""
    node = alert.node.name if alert.node else None
    is_about_node = RULES[finding.rule].subject == "node"
    ignores_cause = is_about_node or UNKNOWN in (alert.cause, finding.cause)
    return (
        (ignores_cause or alert.cause == finding.cause)
        and (None in (node, finding.node) or node == finding.node)
        and (None in (alert.device, finding.device) or alert.device == finding.device)
    )


def has_same_culprit(alert: Alert, finding: Finding) -> bool:
    """Whether both name the same cause at the same node of the same run, under any rule.

    A class and a cause of it are the same cause.
    """
    causes = {CLASS_OF.get(alert.cause, alert.cause), CLASS_OF.get(finding.cause, finding.cause)}
    is_same = alert.cause == finding.cause or (
        len(causes) == 1 and not causes.isdisjoint({alert.cause, finding.cause})
    )
    if not _is_same_run(alert, finding) or not is_same:
        return False
    if finding.cause == UNKNOWN:
        # A run that seemed to hang may prove slow when its step ends.
        return RULES[alert.rule].is_symptom and RULES[finding.rule].is_slow_run
    node = alert.node.name if alert.node else None
    # The first node that was found may turn out to be one of several.
    return node == finding.node or (finding.node is None and node in finding.nodes)


def is_explained(alert: Alert, finding: Finding) -> bool:
    """Whether an alert is a symptom of unknown cause, and the finding names one in its run.

    An alert without a node that is found no more is explained by a slow node since its onset, and
    one that names a class by a cause of that class.
    """
    if not RULES[alert.rule].is_symptom or not _is_same_run(alert, finding):
        return False
    if alert.cause == UNKNOWN:
        return finding.cause != UNKNOWN
    is_located = finding.node is not None and finding.cause in HARDWARE_CAUSES
    is_same_time = abs(finding.onset_s - newest_onset_s(alert)) <= SAME_ONSET_S
    is_of_class = CLASS_OF.get(finding.cause) == alert.cause
    return alert.node is None and is_located and (is_same_time or is_of_class)


def newest_onset_s(alert: Alert) -> float:
    """When an alert's problem began; a row that fired again keeps its first onset."""
    began_s = alert.evidence.get("onset_s") or alert.evidence.get("since_s") or 0.0
    return max(alert.onset_at.timestamp(), began_s)


def without_echoes(
    found: Mapping[Subject, Finding], open_: Collection[Alert]
) -> dict[Subject, Finding]:
    """Leave out what only repeats another problem of the run, with the same onset and place.

    A pause is a long step, too, and a slow exchange is also a slow step.
    """
    pauses = [(f.run, f.onset_s) for f in found.values() if f.cause in PAUSES]
    pauses += [(a.run.name, newest_onset_s(a)) for a in open_ if a.run and a.cause in PAUSES]
    shares = [(f.run, f.onset_s, f.cause) for f in found.values() if f.rule == SHARE]

    def is_echo(each: Finding) -> bool:
        if each.rule != "step_slow" or each.accused:
            return False
        return any(
            each.run == run and abs(each.onset_s - onset_s) <= SAME_ONSET_S
            for run, onset_s in (*pauses, *(key[:2] for key in shares if key[2] == each.cause))
        )

    return {key: finding for key, finding in found.items() if not is_echo(finding)}


def _is_same_run(alert: Alert, finding: Finding) -> bool:
    if finding.run is None and finding.node is None:
        return False
    return (alert.run.name if alert.run else None) == finding.run


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
    note(alert, Kind.FIRED, now=now, text=summary(finding))
    if earlier is not None:
        damp(alert, now=now)
    return alert


def is_aftermath(finding: Finding, *, now: datetime) -> bool:
    """Whether a problem began in one that ended a step or two ago, and names no other node.

    A step that a fault made long ends after the fault, and its alert may be over by then. The
    newest seconds of the hardware still show the fault, too.
    """
    if finding.run is None or finding.rule not in SLOWING:
        return False
    step_s = finding.evidence.get("step_s") or finding.evidence.get("usual_step_s") or 0.0
    onset = datetime.fromtimestamp(finding.onset_s, UTC)
    in_steps = Q(resolved_at__gt=max(onset, now - timedelta(seconds=AFTER_STEPS * step_s)))
    in_hardware = Q(resolved_at__gt=max(onset, now - timedelta(seconds=AFTER_S)))
    # A hang ends with the step that it made long: at this second.
    ends_now = Q(resolved_at=None, rule="hang", onset_at__lte=onset)
    of_others = ~Q(rule=finding.rule) & (in_hardware & Q(resolved_at__lte=now) | ends_now)
    counts = in_steps & Q(resolved_at__lte=now)
    # Links, devices and errors say something of their own, also about a node that hangs.
    if RULES[finding.rule].waits and finding.accused:
        counts |= of_others
    over = Alert.objects.filter(counts, run__name=finding.run, rule__in=SLOWING)
    return any(set(finding.accused) <= set(alert.nodes) for alert in over.select_related("node"))


def _refire(alert: Alert, finding: Finding, key: Subject, *, now: datetime) -> bool:
    """Open a resolved row again; its acknowledgement and its owner stay."""
    fields = fields_of(finding)
    if finding.cause == UNKNOWN:
        fields = {name: fields[name] for name in ("score", "evidence")}
    reopened = {
        "rule": key[0],
        "subject": key[1],
        **fields,
        **continued(alert, finding, key[1], now=now, is_new=True),
        "severity": SEVERITIES[finding.severity],
        "resolved_at": None,
        "last_seen_at": now,
        "n_firings": alert.n_firings + 1,
        "silence": None,
    }
    resolved_at = alert.resolved_at
    try:
        with transaction.atomic():
            is_ours = change(alert, if_still={"resolved_at": resolved_at}, to=reopened)
    except IntegrityError:
        return False
    if is_ours:
        # The frozen charts end here; new ones begin.
        alert.frozen_charts.filter(kept_until=None).update(kept_until=resolved_at)
        note(alert, Kind.REFIRED, now=now, text=f"{summary(finding)}; firing {alert.n_firings}")
        damp(alert, now=now)
    return is_ours


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
        held = with_probed_place(finding, findings_of(alert)[0])
        is_same_problem = key_of(alert) == key and agrees(alert, held)
        # A run whose layout communicates more does not bring an earlier culprit back.
        is_same_problem &= finding.evidence.get("kind") != LAYOUT or alert.cause == finding.cause
        if is_same_problem or has_same_culprit(alert, held):
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
        Alert.objects.open().filter(pk__in=unchanged, last_seen_at__lt=now).update(
            last_seen_at=now
        )
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
    is_urgent = SEVERITIES[finding.severity] < alert.severity
    if moves and not (group or must_move or is_urgent):
        moves = not _has_recent(alert, Kind.RULE_CHANGED, since=now - RULE_STAYS)
    has_new_culprit = not (came or left) and _has_new_culprit(alert, finding, now=now)
    has_score = RULES[finding.rule].is_slow_run or "share_ratio" in finding.evidence
    is_stronger = finding.rule == alert.rule and finding.score > alert.score * WORSE_BY
    is_worse = is_urgent or (has_score and is_stronger)
    is_back = alert.quiet_since is not None and now - alert.quiet_since >= AWAY
    has_grown = _is_minutes_longer(alert, finding)
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
        to["severity"] = SEVERITIES[finding.severity]
    if has_new_culprit:
        to |= fields_of(finding)
    elif group and (moves or has_other_parts(alert, group)):
        run = Run.objects.filter(name=finding.run).first() if finding.run else None
        to |= fields_of(finding) | {"run": run}
    if moves or has_new_culprit or is_worse or is_back or joined or gone or has_grown:
        to["evidence"] = dict(finding.evidence)
        to["score"] = finding.score if moves or is_back else max(alert.score, finding.score)
    to |= continued(alert, finding, key[1], now=now, is_new=has_new_culprit)
    if not to:
        return None
    as_read = {"resolved_at": None, "last_seen_at": alert.last_seen_at}
    old_rule = alert.rule
    if not change(alert, if_still=as_read, to=to | {"last_seen_at": now}):
        return False
    nodes = nodes_text(finding)
    renames = moves and (group is None or old_rule != finding.rule)
    texts = {
        Kind.RULE_CHANGED: (renames, f"{RULES[finding.rule].title.lower()}; {summary(finding)}"),
        Kind.CAUSE_CHANGED: (has_new_culprit, summary(finding)),
        Kind.WORSENED: (is_worse or joined, nodes if finding.nodes else severity_text(finding)),
        Kind.LEARNED: (gone, nodes),
    }
    news = [(kind, text) for kind, (is_so, text) in texts.items() if is_so][:1]
    news += [(kind, t) for kind, t in ((Kind.WORSENED, came), (Kind.LEARNED, left)) if t]
    if is_back:
        news.insert(0, (Kind.REFIRED, f"{summary(finding)}; firing {alert.n_firings}"))
    for kind, text in news:
        note(alert, kind, now=now, text=text)
    return bool(news)


def _is_minutes_longer(alert: Alert, finding: Finding) -> bool:
    """Whether the checkpoint has taken a minute more than the alert says."""
    if finding.evidence.get("kind") != "checkpoint":
        return False
    now_s, then_s = (each.evidence.get("phase_s") or 0.0 for each in (finding, alert))
    return bool(now_s - then_s >= GROWN_S)


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
