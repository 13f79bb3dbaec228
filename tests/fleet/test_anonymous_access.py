"""Access without sign-in: the demo on loopback, and Prometheus with a token."""

import pytest
from django.contrib.auth.models import Group, User
from django.test import Client, RequestFactory
from django.urls import get_resolver
from pytest_django import Settings

from fleet.access.roles import PUBLIC_VIEWS, SCRAPE_VIEWS, is_loopback
from fleet.models import Token
from tests.helpers import NOON

pytestmark = pytest.mark.django_db


def member(*roles: str) -> User:
    user = User.objects.create_user("-".join(roles) or "missing", password="x")
    user.groups.set([Group.objects.get(name=role) for role in roles])
    return user


def pages() -> list[str]:
    """Return every address that needs no argument, but for those of the API: it has its own."""
    patterns = [str(pattern.pattern) for pattern in get_resolver().url_patterns]
    return [f"/{each}" for each in patterns if "<" not in each and not each.startswith("api/")]


# Slack signs its calls: tests/fleet/pages/test_slack_interaction.py.
# Browsers fetch the worker of notifications without a session: tests/fleet/pages.
OPEN = {
    "/sign-in/",
    "/sign-out/",
    "/healthz",
    "/readyz",
    "/notifications/slack",
    "/push-worker.js",
    "/notifications/devices/renew/",
}
# Pages that change data: they need a signed-in user.
TO_ACT = {
    "/annotations/add/",
    "/drills/new/",
    "/drills/preview",
    "/import/",
    "/notifications/receivers/new/",
    "/notifications/routes/new/",
    "/notifications/routes/preview",
    "/silences/new/",
    "/silences/preview",
    "/prices/",
    "/budgets/",
    "/people/",
    "/tokens/",
}


# Belongs to one user: without one it leads to the sign-in page.
OWN = {"/account/"}


def test_every_page_asks_to_sign_in(client: Client) -> None:
    for path in sorted(set(pages()) - OPEN):
        response = client.get(path)

        if path in {"/metrics", "/metrics/neuron", "/sd/prometheus"}:
            assert response.status_code == 401, path
        else:
            assert response.status_code == 302, path
            assert response["Location"].startswith("/sign-in/?next=")


def test_the_demo_may_be_read_on_its_own_machine_and_not_changed(
    client: Client, redis_url: str, settings: Settings
) -> None:
    settings.ANONYMOUS_READING = True
    answers = {path: client.get(path) for path in sorted({*pages(), *TO_ACT, *OWN} - OPEN)}

    assert {path for path in answers if answers[path].status_code == 403} == TO_ACT
    # What belongs to one user leads to the sign-in page.
    asking = {path for path in answers if answers[path].status_code in {302, 401}}
    assert {answers[path]["Location"] for path in asking} == {f"/sign-in/?next={p}" for p in OWN}
    assert asking == OWN


@pytest.mark.parametrize(
    "headers",
    [
        {"REMOTE_ADDR": "10.0.0.7"},
        {"REMOTE_ADDR": "::ffff:10.0.0.7"},
        {"REMOTE_ADDR": ""},
        {"REMOTE_ADDR": "nonsense"},
        {"HTTP_X_FORWARDED_FOR": "127.0.0.1"},
        {"HTTP_FORWARDED": "for=127.0.0.1"},
        {"HTTP_X_REAL_IP": "127.0.0.1"},
        {"HTTP_VIA": "1.1 proxy"},
    ],
)
def test_from_elsewhere_even_the_demo_asks_to_sign_in(
    client: Client, settings: Settings, headers: dict[str, str]
) -> None:
    settings.ANONYMOUS_READING = True

    response = client.get("/", **headers)  # type: ignore[arg-type]

    assert response.status_code == 302


@pytest.mark.parametrize("address", ["127.0.0.1", "127.8.8.8", "::1", "::ffff:127.0.0.1"])
def test_loopback_has_many_names(rf: RequestFactory, address: str) -> None:
    assert is_loopback(rf.get("/", REMOTE_ADDR=address))


def test_a_signed_in_person_reads_from_anywhere(client: Client, redis_url: str) -> None:
    client.force_login(member())

    assert client.get("/", REMOTE_ADDR="10.0.0.7").status_code == 200


def test_liveness_needs_no_sign_in(client: Client) -> None:
    assert client.get("/healthz", REMOTE_ADDR="10.0.0.7").status_code == 200


def test_readiness_is_for_the_own_machine_or_a_token(client: Client, redis_url: str) -> None:
    assert client.get("/readyz").status_code in {200, 503}
    assert client.get("/readyz", REMOTE_ADDR="10.0.0.7").status_code == 401


def test_every_open_endpoint_is_one_that_exists() -> None:
    known = {each.name for each in get_resolver().url_patterns if hasattr(each, "name")}
    assert {*PUBLIC_VIEWS, "metrics", "readyz"} <= known
    assert {"metrics", "readyz"} <= SCRAPE_VIEWS


# Prometheus


def scrape(client: Client, secret: str) -> int:
    headers = {"Authorization": f"Bearer {secret}"}
    return client.get("/metrics", headers=headers, REMOTE_ADDR="10.0.0.7").status_code


def test_prometheus_comes_in_by_its_token(client: Client, redis_url: str) -> None:
    assert scrape(client, Token.issue("p", Token.Scope.SCRAPE, now=NOON)[1]) == 200


def test_prometheus_needs_the_right_token(client: Client, redis_url: str) -> None:
    assert scrape(client, Token.issue("n", Token.Scope.INGEST, now=NOON)[1]) == 403
    assert scrape(client, "trnw_nobody") == 401


def test_a_bad_token_is_refused_even_where_no_one_needs_one(
    client: Client, settings: Settings
) -> None:
    settings.ANONYMOUS_READING = True

    response = client.get("/metrics", headers={"Authorization": "Bearer nope"})

    assert response.status_code == 401
