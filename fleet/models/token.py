"""A bearer token: what a machine may do, kept only as a hash."""

import hashlib
import secrets
from datetime import datetime
from typing import Self

from django.db import models
from django.db.models import Q

PREFIX = "trnw_"


def digest(secret: str) -> str:
    """Hash a token; it is long and random, so a plain hash suffices."""
    return hashlib.sha256(secret.encode()).hexdigest()


class TokenQuerySet(models.QuerySet["Token"]):
    """Which tokens open a door."""

    def valid(self, secret: str, scope: str, now: datetime) -> Self:
        """Keep the token that this secret belongs to, if it may do ``scope`` now."""
        lasting = Q(expires_at=None) | Q(expires_at__gt=now)
        return self.filter(lasting, digest=digest(secret), scope=scope, revoked_at=None)


class Token(models.Model):
    """One secret handed to a machine."""

    class Scope(models.TextChoices):
        """What the bearer may do."""

        INGEST = "ingest"
        SCRAPE = "scrape"
        ANNOTATE = "annotate"

    name = models.CharField(max_length=80)
    digest = models.CharField(max_length=64, unique=True)
    scope = models.CharField(max_length=10, choices=Scope)
    created_at = models.DateTimeField()
    expires_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)
    last_used_at = models.DateTimeField(null=True, blank=True)

    objects = TokenQuerySet.as_manager()

    def __str__(self) -> str:
        return f"{self.name} ({self.scope})"

    @classmethod
    def issue(
        cls, name: str, scope: str, *, now: datetime, expires_at: datetime | None = None
    ) -> tuple[Self, str]:
        """Make a token; its secret is returned once and never stored."""
        secret = PREFIX + secrets.token_urlsafe(32)
        token = cls.objects.create(
            name=name, digest=digest(secret), scope=scope, created_at=now, expires_at=expires_at
        )
        return token, secret
