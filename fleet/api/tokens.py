"""Tokens, managed by admins; and `/me`, what the caller is and may do."""

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Literal

from django.http import HttpRequest
from django.shortcuts import get_object_or_404
from django.utils import timezone
from ninja import Field, Path, Query, Router, Status

from fleet.access.roles import effective_scopes, role_of
from fleet.access.tokens import MAX_DAYS, MAX_NAME, make_token, revoke
from fleet.api.auth import ANY_SCOPE, Caller, caller, needs
from fleet.api.fields import (
    INTEGRAL_FLOAT,
    NON_BLANK_LINE,
    Key,
    NullableText,
    RequestSchema,
    ResponseSchema,
    doc,
)
from fleet.api.paging import NewestFirst, Paging, paginate
from fleet.models import Token
from fleet.models.problem import ProblemError

router = Router(tags=["tokens"])
me_router = Router(tags=["me"])
Scope = Literal["ingest", "scrape", "annotate", "read", "act", "lead", "admin"]


class TokenOut(ResponseSchema, source=Token):
    """A token without its secret."""

    id = doc("Number of the token.", 3)
    name = doc("Name of the token.", "ci")
    scope = doc("Scope of the token.", "read")
    allows: list[str] = doc(
        "Scopes that it has now: fewer than `scope` includes if the role of its maker was "
        "lowered.",
        ["read"],
    )
    state: str = doc("valid, expired or revoked.", "valid")
    created_at = doc("When it was created, UTC.")
    created_by: NullableText = doc("Who created it; null: the command line.")
    expires_at = doc("When it expires, UTC; null: never.")
    revoked_at = doc("When it was revoked, UTC.")
    revoked_by: NullableText = doc("Who revoked it; null: the command line.")
    last_used_at = doc("When it was last used, UTC, to the minute.")


class NewToken(TokenOut):
    """A new token with its secret."""

    secret: str = doc(
        "The bearer token. It is shown only once; trnwatch stores its hash.", "trnw_…"
    )


class TokenPage(NewestFirst[TokenOut]):
    """A page of tokens."""


class TokenFilter(Paging):
    """Filter of tokens."""

    scope: Literal["", "ingest", "scrape", "annotate", "read", "act", "lead", "admin"] = doc(
        "Scope of the token.", default=""
    )
    state: Literal["", "valid", "expired", "revoked"] = doc("State of the token.", default="")


class TokenIn(RequestSchema):
    """A token to create."""

    name: str = doc("Name of the token.", "ci", max_length=MAX_NAME, pattern=NON_BLANK_LINE)
    scope: Scope = doc(
        "ingest (reports of nodes and steps), scrape (/metrics, /metrics/neuron), "
        "annotate, read, act (read, annotate, act on alerts), lead (act; prices, budgets, trials, "
        "length of runs) or admin (lead; tokens). Limited to the scopes of its maker, now and "
        "later.",
        "read",
    )
    days: Annotated[int, Field(ge=1, le=MAX_DAYS), INTEGRAL_FLOAT] | None = doc(
        "Lifetime in days; null: no expiry.", default=None
    )


class Me(ResponseSchema, source=Caller):
    """The caller."""

    kind = doc("token, person or anonymous.", "token")
    name = doc("Name that actions are recorded under.", "ada")
    role: str | None = doc("Role of a person.", "operator")
    scopes: list[str] = doc("Scopes of the caller.", ["read"])
    expires_at: datetime | None = doc("Expiry of the token, UTC; null: never.")


def _serialize(tokens: Sequence[Token]) -> list[TokenOut]:
    now, allowed = timezone.now(), effective_scopes(tokens)
    return [
        TokenOut.from_object(token, state=token.state(now), allows=sorted(allowed[token.pk]))
        for token in tokens
    ]


@router.get("", response=TokenPage, **needs("admin"), summary="List tokens")
def token_list(request: HttpRequest, query: Query[TokenFilter]) -> TokenPage:
    """List tokens without their secrets, newest first."""
    tokens = Token.objects.filter_by(now=timezone.now(), **query.fields)
    rows, links = paginate(request, tokens, query, by="-pk")
    return TokenPage(items=_serialize(rows), **links)


@router.post("", response={201: NewToken}, **needs("admin"), summary="Create a token")
def token_new(request: HttpRequest, payload: TokenIn) -> Status[NewToken]:
    """Create a token; only this response contains its secret."""
    now, maker = timezone.now(), caller(request).maker
    token, secret = make_token(
        payload.name, payload.scope, days=payload.days, maker=maker, now=now
    )
    return Status(201, NewToken.from_object(_serialize([token])[0], secret=secret))


@router.get("/{token_id}", response=TokenOut, **needs("admin"), summary="One token")
def token_one(request: HttpRequest, token_id: Path[Key]) -> TokenOut:
    """Get one token without its secret."""
    return _serialize([get_object_or_404(Token, pk=token_id)])[0]


@router.post("/{token_id}/revoke", response=TokenOut, **needs("admin"), summary="Revoke a token")
def token_revoke(request: HttpRequest, token_id: Path[Key]) -> TokenOut:
    """Revoke a token permanently; it stops working within seconds.

    409 if it was already revoked, or is the token of this request.
    """
    token, who = get_object_or_404(Token, pk=token_id), caller(request)
    if who.token is not None and who.token.pk == token.pk:
        raise ProblemError(409, "This request uses the token; revoke it with another one.")
    if not revoke(token, by=who.name, now=timezone.now()):
        raise ProblemError(409, "It was already revoked.")
    return _serialize([token])[0]


@me_router.get("", response=Me, **needs(ANY_SCOPE), summary="The caller")
def me(request: HttpRequest) -> Me:
    """Get the identity and scopes of the caller; any scope is enough."""
    who = caller(request)
    return Me.from_object(
        who,
        role=role_of(who.user) if who.user else None,
        scopes=sorted(who.scopes),
        expires_at=who.token.expires_at if who.token else None,
    )
