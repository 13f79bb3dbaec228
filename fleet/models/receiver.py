"""A receiver: where notifications go, and how it has taken them so far."""

from typing import Self
from urllib.parse import urlsplit

from django.db import models


class ReceiverQuerySet(models.QuerySet["Receiver"]):
    """The questions that routing and sending ask about receivers."""

    def enabled(self) -> Self:
        """Keep those that are to be sent to."""
        return self.filter(is_enabled=True)


class Receiver(models.Model):
    """One place that takes notifications."""

    class Kind(models.TextChoices):
        """What it speaks."""

        WEBHOOK = "webhook"
        SLACK = "slack", "Slack"
        PAGERDUTY = "pagerduty", "PagerDuty"
        ALERTMANAGER = "alertmanager", "Alertmanager"
        EMAIL = "email", "e-mail"

    name = models.CharField(max_length=60, unique=True)
    kind = models.CharField(max_length=16, choices=Kind)
    target = models.CharField(
        max_length=500, help_text="An address of the web, or addresses of mail, by commas."
    )
    secret = models.CharField(
        max_length=500,
        blank=True,
        help_text="Signing secret, integration key or password, by kind; never shown again.",
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

    class Meta:
        ordering = ("name",)

    def __str__(self) -> str:
        return self.name

    @property
    def masked_target(self) -> str:
        """Where it is, without what may be secret: the path of a web address often is."""
        if self.kind == self.Kind.EMAIL:
            return self.target
        parts = urlsplit(self.target)
        host = parts.netloc.rpartition("@")[2]
        return (
            f"{parts.scheme}://{host}/…" if parts.path.strip("/") else f"{parts.scheme}://{host}"
        )
