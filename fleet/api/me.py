"""Who am I: what a token or a session is, and may do."""

from datetime import datetime

from django.http import HttpRequest
from ninja import Field, Router

from fleet.access.roles import role_of
from fleet.api.auth import ANY_SCOPE, caller, needs
from fleet.api.fields import ResponseSchema

router = Router(tags=["me"])


class Me(ResponseSchema):
    """Whoever asks."""

    kind: str = Field(description="token, person or anonymous.", examples=["token"])
    name: str = Field(description="The name under which all it does is kept.", examples=["ada"])
    role: str | None = Field(description="A person's role.", examples=["operator"])
    scopes: list[str] = Field(description="What it may do.", examples=[["read"]])
    expires_at: datetime | None = Field(description="When its token ends, UTC; null: never.")


@router.get("", response=Me, **needs(ANY_SCOPE), summary="Who asks")
def me(request: HttpRequest) -> Me:
    """Who asks, and what they may do; a token of any scope may ask."""
    who = caller(request)
    return Me(
        kind=who.kind,
        name=who.name,
        role=role_of(who.user) if who.user else None,
        scopes=sorted(who.scopes),
        expires_at=who.token.expires_at if who.token else None,
    )
