"""Alerts, their timelines, frozen charts, silences and handover notes."""

import json
from collections import Counter, defaultdict
from collections.abc import Collection
from datetime import datetime, timedelta
from typing import Any, Self

from django.db import models
from django.db.models import Count, F, JSONField, Max, Q, Value
from django.db.models.functions import Cast
from django.urls import reverse

from fleet.models.alert_history import HISTORY_DAYS, Accusation, AlertHistory, history_of
from fleet.models.filters import given, label_q
from fleet.models.node import Node
from telemetry.detect.causes import Part
from telemetry.detect.findings import part_of

# Fields that change while an alert is open, except those about people.
SNAPSHOT_FIELDS = (
    "rule",
    "cause",
    "severity",
    "subject",
    "device",
    "score",
    "victims",
    "evidence",
    "cost",
    "worst",
    "latest",
)
JSON_NULL = Value(None, JSONField())


class AlertQuerySet(models.QuerySet["Alert"]):
    def open(self) -> Self:
        return self.filter(resolved_at=None)

    def of_run(self, name: str) -> Self:
        """Keep the alerts of a run, and open ones that cover it among other runs."""
        # As text, because SQLite does not search lists of JSON.
        texts = self.annotate(parts_text=Cast("parts", models.TextField()))
        among = Q(resolved_at=None, parts_text__contains=f'"run": {json.dumps(name)}')
        return texts.filter(Q(run__name=name) | among)

    def unacknowledged(self) -> Self:
        return self.filter(acknowledged_at=None)

    def in_state(self, state: str, *, now: datetime) -> Self:
        """Keep alerts that are open or in a state of this name; empty: all.

        Firing alerts are open, not acknowledged and not silenced; recovering ones may be all of
        it.
        """
        is_silenced = Q(silence__starts_at__lte=now, silence__ends_at__gt=now)
        if state == "resolved":
            return self.exclude(resolved_at=None)
        open_states = {
            "open": Q(),
            "firing": Q(acknowledged_at=None) & ~is_silenced,
            "acknowledged": Q(acknowledged_at__isnull=False),
            "recovering": Q(latest__figures__healthy_steps__gt=0),
            "silenced": is_silenced,
        }
        return self.open().filter(open_states[state]) if state in open_states else self

    def filter_by(
        self,
        *,
        now: datetime,
        state: str = "",
        rule: str = "",
        cause: str = "",
        severity: str = "",
        run: str = "",
        node: str = "",
        team: str = "",
        who: str = "",
        drill: str = "",
        marked_false: str = "",
        label: str = "",
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> Self:
        """Keep the alerts that match every field given.

        ``label`` is ``name=value``, or a name, and of the alert's node or run.
        ``who`` acknowledged the alert or has it assigned, ``drill`` and ``marked_false`` are yes
        or no; ``since`` and ``until`` limit when it fired.
        """
        severities = {label: value for value, label in Alert.Severity.choices}
        alerts = self.filter(
            **given(
                rule=rule,
                cause=cause,
                severity=severities.get(severity),
                node__name=node,
                run__team=team,
                fired_at__gte=since,
                fired_at__lt=until,
            )
        )
        if run:
            alerts = alerts.of_run(run)
        if who:
            alerts = alerts.filter(Q(acknowledged_by=who) | Q(assigned_to=who))
        if label:
            of_node = label_q(label, of="node__", zone="zone")
            alerts = alerts.filter(of_node | label_q(label, of="run__"))
        if drill:
            alerts = alerts.filter(is_drill=drill == "yes")
        if marked_false:
            alerts = alerts.filter(marked_false_at__isnull=marked_false != "yes")
        return alerts.in_state(state, now=now)

    def worst_first(self) -> Self:
        """Order by severity, unacknowledged before acknowledged, then oldest first."""
        return self.order_by(
            "severity", F("acknowledged_at").asc(nulls_first=True), "fired_at", "pk"
        )

    def histories(
        self, nodes: Collection[Node], *, until: datetime, compares: bool = True
    ) -> dict[str, AlertHistory]:
        """Return the alert history of each node in the 30 days before ``until``, by name.

        An alert that names several nodes counts for each of them. A repeat of the same problem
        within an hour does not count again. Takes three queries at most, and one if it
        ``compares`` no nodes; then other nodes are unknown.

        A node is unusual if it has two alerts or more, and so many on any node are improbable
        when the alerts of its instance type are spread evenly over the nodes.
        """
        since = until - timedelta(days=HISTORY_DAYS)
        type_of = {node.name: node.instance_type for node in nodes}
        types = set(type_of.values())
        recent = self.filter(fired_at__gt=since, fired_at__lte=until, earlier=None)
        # A machine starts its own record.
        recent = recent.filter(Q(node__replaced_at=None) | Q(fired_at__gt=F("node__replaced_at")))
        single = Q(node__instance_type__in=types) if compares else Q(node__in=nodes)
        # The alerts about one node, and those that name several.
        what = ("cause", "run", "is_drill")
        of_one = recent.filter(single).values_list(
            "node__name", "node__instance_type", *what, Count("pk"), Max("fired_at"), JSON_NULL
        )
        of_several = recent.filter(node=None, evidence__nodes__isnull=False).values_list(
            Value(""), Value(""), *what, Value(1), "fired_at", "evidence__nodes"
        )
        rows = [
            Accusation(name, *row)
            for one, *row, several in of_one.union(of_several, all=True)
            for name in several or [one]
        ]
        counts = defaultdict[str, Counter[str]](Counter)
        n_nodes: dict[str, int] = {}
        if compares:
            present = Node.objects.filter(
                Q(retired_at=None) | Q(retired_at__gt=since),
                Q(run=None) | Q(run__finished_at=None) | Q(run__finished_at__gt=since),
                instance_type__in=types,
            )
            n_nodes = dict(present.order_by().values_list("instance_type").annotate(Count("pk")))
            type_of |= {row.node: row.instance_type for row in rows if row.instance_type}
            if unknown := {row.node for row in rows} - type_of.keys():
                named = Node.objects.filter(name__in=unknown, instance_type__in=types)
                type_of |= dict(named.values_list("name", "instance_type"))
        by_node = defaultdict[str, list[Accusation]](list)
        for row in rows:
            by_node[row.node].append(row)
            if row.node in type_of and not row.is_drill:
                counts[type_of[row.node]][row.node] += row.n_alerts
        return {
            node.name: history_of(
                by_node[node.name],
                others=[n for name, n in counts[node.instance_type].items() if name != node.name],
                n_nodes=n_nodes.get(node.instance_type, 1),
            )
            for node in nodes
        }


def _observation(what: str) -> "JSONField[Any, Any]":
    empty = Value({}, JSONField())
    return JSONField(default=dict, db_default=empty, blank=True, help_text=what)


class Alert(models.Model):
    """One problem: a rule broken by one subject, until it is resolved."""

    class Severity(models.TextChoices):
        PAGE = "1-page", "page"
        WARN = "2-warn", "warn"

    class FalseReason(models.TextChoices):
        """Why a person says that an alert was false."""

        NOISE = "noise", "noise"
        PLANNED_WORK = "planned_work", "planned work"
        WRONG_CAUSE = "wrong_cause", "wrong cause"
        WRONG_NODE = "wrong_node", "wrong node"
        ALREADY_KNOWN = "already_known", "already known"
        OTHER = "other", "other"

    rule = models.CharField(max_length=40)
    cause = models.CharField(max_length=40, default="unknown")
    severity = models.CharField(max_length=8, choices=Severity)
    subject = models.CharField(max_length=100, help_text="`run:<name>` or `node:<name>`.")
    run = models.ForeignKey(
        "fleet.Run", models.CASCADE, null=True, blank=True, related_name="alerts"
    )
    node = models.ForeignKey(
        "fleet.Node", models.CASCADE, null=True, blank=True, related_name="alerts"
    )
    device = models.IntegerField(
        null=True, blank=True, help_text="Core, accelerator or EFA device, by cause."
    )
    score = models.FloatField(help_text="Evidence over threshold. It fires at 1.")
    victims = models.JSONField(default=list, blank=True, help_text="Names of affected nodes.")
    evidence = models.JSONField(
        default=dict, blank=True, help_text="Figures behind the alert, frozen when it fired."
    )
    # Written and read by fleet/alerts/record.py.
    first = _observation("What was seen of it when it first fired.")
    worst = _observation("What was seen of it at worst, by the figure of merit of its rule.")
    latest = _observation("What was last seen of it, a few seconds old at most.")
    parts = models.JSONField(
        default=list,
        db_default=Value([], JSONField()),
        blank=True,
        help_text="The findings of each node or run, where one alert covers several.",
    )
    cost = models.JSONField(default=dict, blank=True, help_text="Cost so far, from fleet/costs.")
    onset_at = models.DateTimeField(help_text="When the signal changed.")
    fired_at = models.DateTimeField(help_text="When it fired.")
    last_seen_at = models.DateTimeField(help_text="When the rule was last broken.")
    resolved_at = models.DateTimeField(null=True, blank=True)
    acknowledged_at = models.DateTimeField(null=True, blank=True)
    acknowledged_by = models.CharField(max_length=150, blank=True)
    assigned_to = models.CharField(max_length=150, blank=True, help_text="The assigned person.")
    assigned_at = models.DateTimeField(null=True, blank=True)
    # A person's verdict: it changes nothing else of the alert.
    marked_false_at = models.DateTimeField(null=True, blank=True)
    marked_false_by = models.CharField(max_length=150, blank=True, db_default="")
    false_reason = models.CharField(
        max_length=16, choices=FalseReason, blank=True, db_default="", help_text="Why it is false."
    )
    false_comment = models.CharField(max_length=400, blank=True, db_default="")
    is_drill = models.BooleanField(default=False)
    n_firings = models.PositiveIntegerField(default=1, help_text="How often it has fired.")
    flapping_since = models.DateTimeField(
        null=True, blank=True, help_text="Flapping since. It resolves only after quiet minutes."
    )
    quiet_since = models.DateTimeField(
        null=True, blank=True, help_text="While flapping: quiet since."
    )
    earlier = models.ForeignKey(
        "self",
        models.SET_NULL,
        null=True,
        blank=True,
        related_name="later",
        help_text="The same problem within the hour before.",
    )
    silence = models.ForeignKey(
        "fleet.Silence",
        models.SET_NULL,
        null=True,
        blank=True,
        related_name="alerts",
        help_text="What mutes it, as of the last look.",
    )

    objects = AlertQuerySet.as_manager()

    class Meta:
        constraints = (
            # A repeated finding refreshes the open alert; it never opens a second one.
            models.UniqueConstraint(
                fields=["rule", "subject"],
                condition=Q(resolved_at=None),
                name="one_open_alert_per_rule_and_subject",
            ),
            models.CheckConstraint(
                condition=Q(fired_at__gte=F("onset_at")), name="noticed_after_onset"
            ),
        )
        indexes = (
            models.Index(fields=["-fired_at"], name="alerts_newest_first"),
            models.Index(fields=["rule", "subject", "-resolved_at"], name="alerts_of_a_problem"),
        )

    def __str__(self) -> str:
        return f"{self.rule} on {self.subject}"

    def get_absolute_url(self) -> str:
        return reverse("alert-detail", args=[self.pk])

    @property
    def is_open(self) -> bool:
        return self.resolved_at is None

    @property
    def state(self) -> str:
        if self.resolved_at is not None:
            return "resolved"
        if self.recovery is not None:
            return "recovering"
        return "firing" if self.acknowledged_at is None else "acknowledged"

    @property
    def recovery(self) -> tuple[int, int] | None:
        """How many steps in a row are healthy again, of how many that resolve it; None: none."""
        seen = self.latest.get("figures", {}) if self.is_open else {}
        n_healthy = seen.get("healthy_steps")
        return (n_healthy, seen["steps_to_resolve"]) if n_healthy else None

    @property
    def part(self) -> Part | None:
        """What its device number counts."""
        return part_of(self.cause, self.device, self.evidence)

    @property
    def owner(self) -> str:
        """Who it is assigned to, or else who acknowledged it; empty: neither."""
        return self.assigned_to or self.acknowledged_by

    @property
    def false_mark(self) -> str:
        """Who marked it as false, and why; empty: it is not marked."""
        if self.marked_false_at is None:
            return ""
        comment = f", {self.false_comment}" if self.false_comment else ""
        reason = self.get_false_reason_display()
        return f"Marked false by {self.marked_false_by}: {reason}{comment}"

    @property
    def nodes(self) -> list[str]:
        """The names of all accused nodes."""
        if self.node is not None:
            return [self.node.name]
        return [str(name) for name in self.evidence.get("nodes") or ()]

    @property
    def runs(self) -> list[str]:
        """The names of all affected runs."""
        names = self.evidence.get("runs") or ([self.run.name] if self.run else [])
        return [str(name) for name in names]

    def is_silenced(self, now: datetime) -> bool:
        """Whether it is muted now; select alerts with their silence."""
        return self.is_open and self.silence is not None and self.silence.is_active(now)

    @property
    def snapshot(self) -> dict[str, Any]:
        """Its current content as plain JSON, for links frozen in time."""
        values = {name: getattr(self, name) for name in SNAPSHOT_FIELDS}
        return values | {"node": self.node.name if self.node else None}

    def lasted(self, now: datetime) -> timedelta:
        return (self.resolved_at or now) - self.onset_at


class AlertEvent(models.Model):
    class Kind(models.TextChoices):
        FIRED = "fired"
        REFIRED = "refired", "fired again"
        RULE_CHANGED = "rule_changed", "rule changed"
        CAUSE_CHANGED = "cause_changed", "cause changed"
        WORSENED = "worsened"
        LEARNED = "learned", "change found"
        FLAPPING = "flapping"
        ACKNOWLEDGED = "acknowledged"
        UNACKNOWLEDGED = "unacknowledged"
        ASSIGNED = "assigned"
        SILENCED = "silenced"
        UNSILENCED = "unsilenced", "silence ended"
        COMMENTED = "commented"
        MARKED_FALSE = "marked_false", "marked false"
        UNMARKED_FALSE = "unmarked_false", "false mark removed"
        PROBE_REQUESTED = "probe_requested", "probe requested"
        PROBED = "probed", "probe result"
        TRACE_REQUESTED = "trace_requested", "runtime trace requested"
        TRACED = "traced", "runtime trace result"
        RESOLVED = "resolved"

    alert = models.ForeignKey(Alert, models.CASCADE, related_name="events")
    at = models.DateTimeField()
    kind = models.CharField(max_length=16, choices=Kind)
    by = models.CharField(max_length=150, blank=True, help_text="Empty: trnwatch itself.")
    text = models.CharField(max_length=500, blank=True)
    snapshot = models.JSONField(
        default=dict, blank=True, help_text="Content of the alert at that time, for frozen links."
    )

    class Meta:
        ordering = ("at", "pk")

    def __str__(self) -> str:
        return f"{self.alert_id} {self.kind} {self.at:%H:%M:%S}"


class FalseMarkCount(models.Model):
    """How many alerts of a rule were ever marked as false, without drills. It never falls."""

    rule = models.CharField(max_length=40)
    severity = models.CharField(max_length=8, choices=Alert.Severity)
    n_alerts = models.PositiveIntegerField(default=0, help_text="Also those unmarked since.")

    class Meta:
        constraints = (
            models.UniqueConstraint(fields=["rule", "severity"], name="a_rule_is_counted_once"),
        )

    def __str__(self) -> str:
        return f"{self.n_alerts} of {self.rule}, {self.severity}"


class FrozenChart(models.Model):
    """One chart of evidence by the second, stored before the hot tier drops the data."""

    alert = models.ForeignKey(Alert, models.CASCADE, related_name="frozen_charts")
    name = models.CharField(max_length=20)
    figure = models.BinaryField(help_text="Data of the figure: JSON, compressed by zstandard.")
    kept_until = models.DateTimeField(
        null=True, blank=True, help_text="Of an open alert: stored up to here."
    )

    class Meta:
        constraints = (
            models.UniqueConstraint(fields=["alert", "name"], name="a_chart_is_frozen_once"),
        )

    def __str__(self) -> str:
        return f"{self.name} of alert {self.alert_id}"
