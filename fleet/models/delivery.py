"""Where notifications go, with sealed secrets, and each one on its way until it is there."""

import hashlib
import json
import uuid
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any, Self
from urllib.parse import urlsplit

from django.conf import settings
from django.db import models, transaction
from django.db.models import Exists, OuterRef, Q

from fleet.models.sealing import SealedError, seal, unseal

SEALED = frozenset({"target", "secret"})


class ReceiverQuerySet(models.QuerySet["Receiver"]):
    def enabled(self) -> Self:
        return self.filter(is_enabled=True)

    def devices(self) -> Self:
        """Keep the browsers of people who may still sign in."""
        return self.enabled().filter(kind=Receiver.Kind.PUSH, owner__is_active=True)

    def update(self, **values: Any) -> int:
        """Update columns; sealed ones can only be saved one by one."""
        if plain := SEALED & values.keys():
            raise TypeError(f"{', '.join(sorted(plain))}: save() seals it, update() does not")
        return super().update(**values)


class Receiver(models.Model):
    class Kind(models.TextChoices):
        WEBHOOK = "webhook"
        SLACK = "slack", "Slack"
        PAGERDUTY = "pagerduty", "PagerDuty"
        ALERTMANAGER = "alertmanager", "Alertmanager"
        EMAIL = "email", "e-mail"
        APPRISE = "apprise", "other service"
        PUSH = "push", "browser"

        @property
        def groups_itself(self) -> bool:
            """Whether it groups, repeats and escalates alerts itself: it gets one at a time."""
            return self in {self.PAGERDUTY, self.ALERTMANAGER}

        def takes(self, notification: str) -> bool:
            if notification == "acknowledged":
                return self not in {self.EMAIL, self.ALERTMANAGER}
            if notification == "marked_false":
                return self not in {self.EMAIL, self.ALERTMANAGER, self.PAGERDUTY}
            return self != self.ALERTMANAGER or notification not in {"repeated", "undelivered"}

    name = models.CharField(max_length=60, unique=True)
    kind = models.CharField(max_length=16, choices=Kind)
    target = models.CharField(
        max_length=500, help_text="A URL, or e-mail addresses separated by commas."
    )
    secret = models.CharField(
        max_length=500,
        blank=True,
        help_text="Signing secret, integration key or password, by kind. Never shown again.",
    )
    sealed = models.TextField(
        blank=True,
        db_default="",
        help_text="Target and secret, encrypted. Empty: they are plain text.",
    )
    owner = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        models.CASCADE,
        null=True,
        blank=True,
        related_name="devices",
        help_text="Who is notified in this browser; other kinds have no owner.",
    )
    is_enabled = models.BooleanField(default=True)
    created_at = models.DateTimeField()
    n_sent = models.PositiveBigIntegerField(default=0)
    n_failed = models.PositiveBigIntegerField(default=0, help_text="Attempts, not notifications.")
    n_dead = models.PositiveBigIntegerField(default=0)
    last_sent_at = models.DateTimeField(null=True, blank=True)
    last_failed_at = models.DateTimeField(null=True, blank=True)
    last_error = models.CharField(max_length=300, blank=True)

    objects = ReceiverQuerySet.as_manager()
    # Whether it was sealed with a key that is not set any more.
    is_locked = False

    class Meta:
        ordering = ("name",)

    def __str__(self) -> str:
        return self.name

    def save(self, **kwargs: Any) -> None:
        """Seal secrets and save; a secret that no key opens is kept unless it is replaced."""
        fields = kwargs.get("update_fields")
        is_kept = self.is_locked and not (self.target or self.secret)
        if is_kept or (fields is not None and not SEALED & {*fields}):
            super().save(**kwargs)
            return
        if fields is not None:
            kwargs["update_fields"] = {*fields, "sealed", *SEALED}
        plain = self.target, self.secret
        self.sealed = seal(json.dumps(plain))
        self.target = self.secret = ""
        try:
            super().save(**kwargs)
        finally:
            self.target, self.secret = plain
        self.is_locked = False

    def save_plain(self) -> None:
        """Save secrets as plain text, for the previous release."""
        self.sealed = ""
        super().save(update_fields=["sealed", *SEALED])

    @classmethod
    def from_db(
        cls, db: str | None, field_names: Collection[str], values: Collection[Any], **others: Any
    ) -> Self:
        """Unseal secrets; without a matching key the receiver is locked."""
        receiver = super().from_db(db, field_names, values, **others)
        if "sealed" in field_names:
            receiver._open()
        return receiver

    def refresh_from_db(
        self,
        using: str | None = None,
        fields: Iterable[str] | None = None,
        from_queryset: models.QuerySet[Self, Self] | None = None,
    ) -> None:
        """Reload; sealed fields need their seal as well."""
        asked = None if fields is None else {*fields}
        if asked and asked & SEALED:
            asked |= {"sealed", *SEALED}
        super().refresh_from_db(using, asked, from_queryset)
        if asked is None or "sealed" in asked:
            self._open()

    def _open(self) -> None:
        self.is_locked = False
        if not self.sealed:
            return
        try:
            self.target, self.secret = json.loads(unseal(self.sealed))
        except SealedError:
            self.target = self.secret = ""
            self.is_locked = True

    @property
    def fingerprint(self) -> str:
        """By which a browser recognises its own address, and no one else can use it."""
        return hashlib.sha256(self.target.encode()).hexdigest()

    @property
    def masked_target(self) -> str:
        """The target without possible secrets, such as the path of a URL."""
        if self.is_locked:
            return "sealed with a key that is not set"
        if self.kind == self.Kind.EMAIL:
            return self.target
        if self.kind == self.Kind.APPRISE:
            # What follows the scheme may be a key.
            return f"{self.target.partition('://')[0]}://…"
        parts = urlsplit(self.target)
        host = parts.netloc.rpartition("@")[2]
        return (
            f"{parts.scheme}://{host}/…" if parts.path.strip("/") else f"{parts.scheme}://{host}"
        )


class RouteQuerySet(models.QuerySet["Route"]):
    def in_order(self) -> Self:
        """Order as they are tried, the default route last."""
        return self.order_by("is_default", "position", "pk")


class Route(models.Model):
    """One row of the routing table; the first one whose matchers all match is used."""

    class GroupBy(models.TextChoices):
        """What alerts must share to be sent in one message."""

        ALERT = "alert", "alert"
        RUN = "run", "run"
        RULE = "rule", "rule"
        RUN_AND_RULE = "run,rule", "run and rule"
        TEAM = "team", "team"

    class Devices(models.TextChoices):
        """Which of its alerts are sent to the browsers that people chose to be notified in."""

        NONE = "none", "none"
        PAGES = "pages", "pages"
        ALL = "all", "pages and warnings"

    position = models.PositiveIntegerField(default=0)
    name = models.CharField(max_length=60)
    matchers = models.TextField(
        blank=True, help_text="All must match. Empty: every alert matches."
    )
    receivers = models.ManyToManyField("fleet.Receiver", related_name="routes", blank=True)
    devices = models.CharField(
        max_length=8, choices=Devices, default=Devices.PAGES, db_default=Devices.PAGES
    )
    group_by = models.CharField(max_length=16, choices=GroupBy, default=GroupBy.RUN)
    group_wait_s = models.PositiveIntegerField(
        default=5, help_text="How long the first alert of a group waits for others."
    )
    repeat_s = models.PositiveIntegerField(
        default=1800, help_text="Reminder while unacknowledged. 0: no reminders."
    )
    sends_resolved = models.BooleanField(default=True)
    goes_on = models.BooleanField(default=False, help_text="Also evaluate the routes below.")
    is_default = models.BooleanField(default=False)

    objects = RouteQuerySet.as_manager()
    # The browsers of people, the same for all routes: the routing table adds them.
    people: Sequence[Receiver] = ()

    class Meta:
        constraints = (
            models.UniqueConstraint(
                fields=["is_default"], condition=Q(is_default=True), name="one_default_route"
            ),
        )

    def __str__(self) -> str:
        return self.name

    @property
    def n_devices(self) -> int:
        return 0 if self.devices == self.Devices.NONE else len(self.people)

    def targets(self, *, is_page: bool) -> list[Receiver]:
        """List the receivers of an alert, also those that are off."""
        is_sent = self.devices == self.Devices.ALL or (
            is_page and self.devices == self.Devices.PAGES
        )
        return [*self.receivers.all(), *(self.people if is_sent else ())]


class ConfigurationChange(models.Model):
    """What a person changed, where no row of its own records it."""

    class Kind(models.TextChoices):
        NOTIFICATIONS = "notifications"
        PEOPLE = "people"

    at = models.DateTimeField()
    by = models.CharField(max_length=150, help_text="Empty: from the command line.")
    kind = models.CharField(
        max_length=16, choices=Kind, default=Kind.NOTIFICATIONS, db_default=Kind.NOTIFICATIONS
    )
    text = models.CharField(max_length=300)

    class Meta:
        db_table = "fleet_change"
        ordering = ("-at", "-pk")
        indexes = (models.Index(fields=["-at"], name="changes_newest_first"),)

    def __str__(self) -> str:
        return f"{self.by}: {self.text}"


# A sender records every few seconds that it is running.
MISSING_AFTER = timedelta(seconds=60)


class SenderHeartbeatQuerySet(models.QuerySet["SenderHeartbeat"]):
    def alive(self, now: datetime) -> Self:
        """Keep senders with a recent heartbeat."""
        return self.filter(seen_at__gt=now - MISSING_AFTER)


class SenderHeartbeat(models.Model):
    name = models.CharField(max_length=64, unique=True)
    started_at = models.DateTimeField()
    seen_at = models.DateTimeField()
    is_watched = models.BooleanField(default=False, help_text="Whether evaluation is running.")
    beat_at = models.DateTimeField(
        null=True, blank=True, help_text="The last call of the dead man's switch."
    )
    beat_error = models.CharField(max_length=300, blank=True)

    objects = SenderHeartbeatQuerySet.as_manager()

    class Meta:
        db_table = "fleet_senderpulse"
        ordering = ("-seen_at",)

    def __str__(self) -> str:
        return self.name

    def is_alive(self, now: datetime) -> bool:
        return self.seen_at > now - MISSING_AFTER


class Watchdog(models.Model):
    """When the fleet was last evaluated, as the senders know; a single row."""

    id = models.PositiveSmallIntegerField(primary_key=True, default=1, editable=False)
    looked_at = models.DateTimeField(
        help_text="The last known evaluation. Before the first one: the installation."
    )
    checked_at = models.DateTimeField(help_text="When a sender last checked.")
    missed_s = models.FloatField(
        default=0.0, help_text="How long senders have seen no evaluation since."
    )

    def __str__(self) -> str:
        return f"evaluated {self.looked_at:%Y-%m-%d %H:%M:%S}"

    @classmethod
    @transaction.atomic
    def check_in(cls, *, seen: datetime | None, now: datetime, longest_gap_s: float) -> Self:
        """Note what one check found; ``seen`` is None where the last evaluation is not known.

        Of the time since the check before, at most ``longest_gap_s`` counts as missed: while no
        sender ran, or the machine was suspended, evaluation may have been switched off as well.
        """
        looked_at = now if seen is None else min(seen, now)
        row, _ = cls.objects.select_for_update().get_or_create(
            pk=1, defaults={"looked_at": looked_at, "checked_at": now}
        )
        # A clock that was set back must not leave an evaluation in the future.
        latest = min(row.looked_at if seen is None else max(row.looked_at, seen), now)
        gap_s = (now - row.checked_at).total_seconds()
        row.missed_s += min(max(gap_s, 0.0), longest_gap_s)
        if latest > row.looked_at:
            row.missed_s = 0.0
        row.looked_at, row.checked_at = latest, now
        row.save(update_fields=["looked_at", "checked_at", "missed_s"])
        return row


# A sender that runs takes what is due within a second or two.
LATE_AFTER = timedelta(seconds=60)


def new_key() -> str:
    return uuid.uuid4().hex


class DeliveryQuerySet(models.QuerySet["Delivery"]):
    def unfinished(self) -> Self:
        return self.filter(state__in=(Delivery.State.PENDING, Delivery.State.SENDING))

    def dead(self) -> Self:
        """Keep failed deliveries that were not settled."""
        return self.filter(state=Delivery.State.DEAD)

    def sendable(self) -> Self:
        """Keep those to receivers that are on, and to people who may still sign in."""
        allowed = self.filter(receiver__is_enabled=True)
        return allowed.exclude(receiver__owner__is_active=False)

    def late(self, now: datetime) -> Self:
        """Keep overdue deliveries that no sender has tried.

        Deliveries that wait for a receiver with failing attempts are not included.
        """
        untried = Q(state=Delivery.State.PENDING, n_attempts=0)
        tried = Delivery.objects.unfinished().filter(
            receiver=OuterRef("receiver"), n_attempts__gt=0
        )
        late = self.sendable().filter(untried, next_try_at__lt=now - LATE_AFTER)
        return late.exclude(Exists(tried))

    def due(self, now: datetime) -> Self:
        """Keep the first of each group, if it is due or the lease of its sender has expired."""
        pending = Q(state=Delivery.State.PENDING, next_try_at__lte=now)
        forsaken = Q(state=Delivery.State.SENDING, claimed_until__lte=now)
        before = Delivery.objects.unfinished().filter(
            receiver=OuterRef("receiver"), group_key=OuterRef("group_key"), pk__lt=OuterRef("pk")
        )
        return self.filter(pending | forsaken).exclude(Exists(before))


class Delivery(models.Model):
    """One notification to one receiver; a row of the outbox."""

    class State(models.TextChoices):
        PENDING = "pending"
        SENDING = "sending"
        SENT = "sent"
        DEAD = "dead"
        DROPPED = "dropped"

    class Kind(models.TextChoices):
        FIRING = "firing"
        CHANGED = "changed"
        ACKNOWLEDGED = "acknowledged"
        MARKED_FALSE = "marked_false", "marked false"
        REPEATED = "repeated", "still firing"
        RESOLVED = "resolved"
        UNDELIVERED = "undelivered", "others not reached"
        TEST = "test"

    receiver = models.ForeignKey("fleet.Receiver", models.CASCADE, related_name="deliveries")
    route = models.ForeignKey(
        "fleet.Route", models.SET_NULL, null=True, blank=True, related_name="deliveries"
    )
    alerts = models.ManyToManyField("fleet.Alert", related_name="deliveries", blank=True)
    events = models.ManyToManyField("fleet.AlertEvent", related_name="deliveries", blank=True)
    kind = models.CharField(max_length=16, choices=Kind)
    group_key = models.CharField(
        max_length=200, db_column="lane", help_text="Notifications of one group are sent in order."
    )
    key = models.CharField(
        max_length=40, unique=True, default=new_key, help_text="The same at every attempt."
    )
    state = models.CharField(max_length=8, choices=State, default=State.PENDING)
    created_at = models.DateTimeField()
    next_try_at = models.DateTimeField()
    n_attempts = models.PositiveIntegerField(default=0)
    claimed_by = models.CharField(max_length=64, blank=True)
    claimed_until = models.DateTimeField(null=True, blank=True)
    body = models.JSONField(
        null=True, blank=True, help_text="What is sent, fixed before the first attempt."
    )
    ended_at = models.DateTimeField(null=True, blank=True)
    last_status = models.PositiveIntegerField(null=True, blank=True)
    last_error = models.CharField(max_length=300, blank=True)
    handled_by = models.CharField(max_length=150, blank=True)
    note = models.CharField(max_length=300, blank=True)

    objects = DeliveryQuerySet.as_manager()

    class Meta:
        indexes = (
            models.Index(
                fields=["receiver", "group_key", "id"],
                condition=Q(state__in=("pending", "sending")),
                name="unfinished_by_lane",
            ),
            models.Index(fields=["state", "next_try_at"], name="deliveries_by_state"),
            models.Index(fields=["-created_at"], name="deliveries_newest_first"),
        )
        constraints = (
            models.CheckConstraint(
                condition=~Q(state="sending") | Q(claimed_until__isnull=False),
                name="who_sends_has_a_lease",
            ),
        )

    def __str__(self) -> str:
        return f"{self.kind} to {self.receiver_id} ({self.state})"


class NotifiedState(models.Model):
    """What one receiver was last sent about one alert."""

    receiver = models.ForeignKey("fleet.Receiver", models.CASCADE, related_name="notified_states")
    alert = models.ForeignKey("fleet.Alert", models.CASCADE, related_name="notified_states")
    route = models.ForeignKey(
        "fleet.Route", models.SET_NULL, null=True, blank=True, related_name="notified_states"
    )
    group_key = models.CharField(max_length=200, db_column="lane")
    labels = models.JSONField(
        default=dict, blank=True, help_text="The alert's identifiers at the receiver."
    )
    since = models.DateTimeField()
    last_at = models.DateTimeField(help_text="The last notification or reminder.")
    n_repeats = models.PositiveIntegerField(default=0)
    ended_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        db_table = "fleet_told"
        constraints = (
            models.UniqueConstraint(
                fields=["receiver", "alert"],
                condition=Q(ended_at=None),
                name="a_receiver_is_told_once",
            ),
        )

    def __str__(self) -> str:
        return f"{self.receiver_id} knows of {self.alert_id}"
