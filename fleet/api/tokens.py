"""Tokens: made, with the secret told once, listed and revoked, by admins."""

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Annotated, Literal, Self

from django.http import HttpRequest
from django.shortcuts import get_object_or_404
from django.utils import timezone
from ninja import Field, Path, Query, Router, Status

from fleet.access.roles import effective_scopes
from fleet.access.tokens import MAX_DAYS, MAX_NAME, make_token, revoke
from fleet.api.alerts import NON_BLANK_LINE
from fleet.api.auth import caller, needs
from fleet.api.fields import INTEGRAL_FLOAT, Key, RequestSchema, ResponseSchema
from fleet.api.paging import PageLinks, Paging, paginate
from fleet.models import Token
from fleet.models.problem import ProblemError

router = Router(tags=["tokens"])
Scope = Literal["ingest", "scrape", "annotate", "read", "act", "lead", "admin"]


class TokenOut(ResponseSchema):
    """One secret handed to a machine, without the secret."""

    id: int = Field(description="Number of the token.", examples=[3])
    name: str = Field(description="What it is for.", examples=["ci"])
    scope: str = Field(description="What the bearer may do.", examples=["read"])
    allows: list[str] = Field(
        description="The scopes it has now: fewer than `scope` holds where the role of its maker "
        "was lowered since.",
        examples=[["read"]],
    )
    state: str = Field(description="valid, expired or revoked.", examples=["valid"])
    created_at: datetime = Field(description="When it was made, UTC.")
    created_by: str | None = Field(description="Who made it; null: on the command line.")
    expires_at: datetime | None = Field(description="When it ends, UTC; null: never.")
    revoked_at: datetime | None = Field(description="When it was revoked, UTC.")
    revoked_by: str | None = Field(description="Who revoked it; null: on the command line.")
    last_used_at: datetime | None = Field(description="When it was last used, UTC, to a minute.")

    @classmethod
    def of(cls, token: Token, allows: Collection[str]) -> Self:
        return cls(
            **{name: getattr(token, name) for name in SAME_FIELDS},
            state=token.state(timezone.now()),
            allows=sorted(allows),
            created_by=token.created_by or None,
            revoked_by=token.revoked_by or None,
        )


SAME_FIELDS = ("id", "name", "scope", "created_at", "expires_at", "revoked_at", "last_used_at")


class NewToken(TokenOut):
    """A token that was just made."""

    secret: str = Field(
        description="What the bearer sends; told this once, only its hash is kept.",
        examples=["trnw_…"],
    )


class TokenPage(PageLinks):
    """A page of tokens."""

    items: list[TokenOut] = Field(description="The tokens of this page.")
    sorted_by: str = Field(default="-id", description="What was made last comes first.")


class TokenFilter(Paging):
    """Which tokens to list."""

    scope: Literal["", "ingest", "scrape", "annotate", "read", "act", "lead", "admin"] = Field(
        "", description="What their bearers may do."
    )
    state: Literal["", "valid", "expired", "revoked"] = Field("", description="Where they stand.")


class TokenIn(RequestSchema):
    """What token to make."""

    name: str = Field(
        max_length=MAX_NAME, pattern=NON_BLANK_LINE, description="What it is for.", examples=["ci"]
    )
    scope: Scope = Field(
        description="What the bearer may do: ingest (nodes' reports and steps), scrape "
        "(/metrics, /metrics/neuron), annotate, read, act (read, annotate, and act on alerts), "
        "lead (act, and prices, budgets, trials, the length of runs), admin (lead, and tokens). "
        "Never more than the maker may do, and no longer than the maker may.",
        examples=["read"],
    )
    days: Annotated[int, Field(ge=1, le=MAX_DAYS), INTEGRAL_FLOAT] | None = Field(
        None, description="How many days it lasts; null: for good."
    )


def _serialize(tokens: Sequence[Token]) -> list[TokenOut]:
    allowed = effective_scopes(tokens)
    return [TokenOut.of(token, allowed[token.pk]) for token in tokens]


@router.get("", response=TokenPage, **needs("admin"), summary="List tokens")
def token_list(request: HttpRequest, query: Query[TokenFilter]) -> TokenPage:
    """Tokens, the one that was made last first; never their secrets."""
    tokens = Token.objects.filter_by(now=timezone.now(), **query.fields)
    rows, links = paginate(request, tokens, query, by="-pk")
    return TokenPage(items=_serialize(rows), next=links.next, prev=links.prev)


@router.post("", response={201: NewToken}, **needs("admin"), summary="Make a token")
def token_new(request: HttpRequest, payload: TokenIn) -> Status[NewToken]:
    """Make a token; its secret is in this answer and nowhere else."""
    now, maker = timezone.now(), caller(request).maker
    token, secret = make_token(
        payload.name, payload.scope, days=payload.days, maker=maker, now=now
    )
    return Status(201, NewToken(**_serialize([token])[0].model_dump(), secret=secret))


@router.get("/{token_id}", response=TokenOut, **needs("admin"), summary="One token")
def token_one(request: HttpRequest, token_id: Path[Key]) -> TokenOut:
    """One token, without its secret."""
    return _serialize([get_object_or_404(Token, pk=token_id)])[0]


@router.post("/{token_id}/revoke", response=TokenOut, **needs("admin"), summary="Revoke a token")
def token_revoke(request: HttpRequest, token_id: Path[Key]) -> TokenOut:
    """Revoke a token for good; doors that trust it close within seconds.

    409 where it was revoked before, or is the very token that asks: nobody locks themselves out.
    """
    token, who = get_object_or_404(Token, pk=token_id), caller(request)
    if who.token is not None and who.token.pk == token.pk:
        raise ProblemError(409, "It is the token you ask with; revoke it with another.")
    if not revoke(token, by=who.name, now=timezone.now()):
        raise ProblemError(409, "It was revoked already.")
    return _serialize([token])[0]
