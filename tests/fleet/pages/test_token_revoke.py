"""Revoking a token: admins only, permanent."""

import pytest
from django.test import Client

from fleet.models import Token
from tests.fleet.test_anonymous_access import member
from tests.helpers import NOON

pytestmark = pytest.mark.django_db


@pytest.fixture
def token() -> Token:
    """Make a token."""
    return Token.issue("ci", "read", now=NOON)[0]


def test_it_shows_who_revoked_it(client: Client, token: Token) -> None:
    client.force_login(member("admin"))

    response = client.post(f"/tokens/{token.pk}/revoke/", follow=True)

    token.refresh_from_db()
    assert "ci revoked" in response.text
    assert (token.revoked_by, token.revoked_at is None) == ("admin", False)


def test_the_first_to_revoke_it_stays_on_record(client: Client, token: Token) -> None:
    client.force_login(member("admin"))
    Token.objects.update(revoked_at=NOON, revoked_by="ada")

    response = client.post(f"/tokens/{token.pk}/revoke/", follow=True)

    token.refresh_from_db()
    assert "already revoked" in response.text
    assert (token.revoked_by, token.revoked_at) == ("ada", NOON)
