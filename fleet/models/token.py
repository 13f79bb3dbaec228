"""A bearer token: what a machine may do, kept only as a hash."""

import hashlib
import secrets
from datetime import datetime
from typing import Self

from django.db import models
from django.db.models import Q

from fleet.models.filters import given

PREFIX = "trnw_"
# Scopes that hold others; every other scope is only itself.
GRANTS = {
    "act": frozenset({"act", "read", "annotate"}),
    "lead": frozenset({"lead", "act", "read", "annotate"}),
    "admin": frozenset({"admin", "lead", "act", "read", "annotate"}),
}


def digest(secret: str) -> str:
    """Hash a token; it is long and random, so a plain hash suffices."""
    return hashlib.sha256(secret.encode()).hexdigest()


class TokenQuerySet(models.QuerySet["Token"]):
    def valid(self, now: datetime) -> Self:
        return self.filter(Q(expires_at=None) | Q(expires_at__gt=now), revoked_at=None)

    def filter_by(self, *, now: datetime, scope: str = "", state: str = "") -> Self:
        """Keep tokens that match every given field; ``state`` as in `Token.state`."""
        tokens = self.filter(**given(scope=scope))
        match state:
            case "valid":
                return tokens.valid(now)
            case "expired":
                return tokens.filter(expires_at__lte=now, revoked_at=None)
            case "revoked":
                return tokens.exclude(revoked_at=None)
        return tokens


class Token(models.Model):
    class Scope(models.TextChoices):
        INGEST = "ingest"
        SCRAPE = "scrape"
        ANNOTATE = "annotate"
        READ = "read"
        ACT = "act"
        LEAD = "lead"
        ADMIN = "admin"

    name = models.CharField(max_length=80)
    digest = models.CharField(max_length=64, unique=True)
    scope = models.CharField(max_length=10, choices=Scope)
    created_at = models.DateTimeField()
    created_by = models.CharField(
        max_length=150, blank=True, db_default="", help_text="Empty: the command line."
    )
    owner = models.CharField(
        max_length=150,
        blank=True,
        db_default="",
        help_text="Its role limits the token, also if a token of that person created it. "
        "Empty: created on the command line.",
    )
    expires_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)
    revoked_by = models.CharField(
        max_length=150, blank=True, db_default="", help_text="Empty: the command line."
    )
    last_used_at = models.DateTimeField(null=True, blank=True)

    objects = TokenQuerySet.as_manager()

    def __str__(self) -> str:
        return f"{self.name} ({self.scope})"

    @classmethod
    def issue(
        cls,
        name: str,
        scope: str,
        *,
        now: datetime,
        expires_at: datetime | None = None,
        by: str = "",
        owner: str = "",
    ) -> tuple[Self, str]:
        """Create a token; return it and its secret, which is never stored."""
        secret = PREFIX + secrets.token_urlsafe(32)
        token = cls.objects.create(
            name=name,
            digest=digest(secret),
            scope=scope,
            created_at=now,
            created_by=by,
            owner=owner,
            expires_at=expires_at,
        )
        return token, secret

    @property
    def grants(self) -> frozenset[str]:
        """The scopes it includes; the role of its owner may allow less."""
        return GRANTS.get(self.scope, frozenset({self.scope}))

    def state(self, now: datetime) -> str:
        if self.revoked_at is not None:
            return "revoked"
        is_over = self.expires_at is not None and self.expires_at <= now
        return "expired" if is_over else "valid"
