"""A receiver: where notifications go, and how it has taken them so far."""

import json
from collections.abc import Collection, Iterable
from typing import Any, Self
from urllib.parse import urlsplit

from django.db import models
from django.db.models import Q

from fleet.models.sealing import SealedError, seal, unseal

SEALED = frozenset({"target", "secret"})


class ReceiverQuerySet(models.QuerySet["Receiver"]):
    def enabled(self) -> Self:
        return self.filter(is_enabled=True)

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
        cls,
        db: str | None,
        field_names: Collection[str],
        values: Collection[Any],
        **others: Any,
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
    def masked_target(self) -> str:
        """The target without possible secrets, such as the path of a URL."""
        if self.is_locked:
            return "sealed with a key that is not set"
        if self.kind == self.Kind.EMAIL:
            return self.target
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

    position = models.PositiveIntegerField(default=0)
    name = models.CharField(max_length=60)
    matchers = models.TextField(
        blank=True, help_text="All must match. Empty: every alert matches."
    )
    receivers = models.ManyToManyField("fleet.Receiver", related_name="routes", blank=True)
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

    class Meta:
        constraints = (
            models.UniqueConstraint(
                fields=["is_default"], condition=Q(is_default=True), name="one_default_route"
            ),
        )

    def __str__(self) -> str:
        return self.name
