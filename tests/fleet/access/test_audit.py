"""The audit log: its lines, what they never hold, and that no flood fills it."""

import json
import logging
from collections.abc import Callable
from datetime import timedelta
from http import HTTPStatus
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.test import Client
from django.urls import reverse
from pytest_django import DjangoCaptureOnCommitCallbacks, Settings

from fleet.access import audit
from fleet.access.audit import LINES_PER_MINUTE, Journal
from fleet.access.people import create_person
from fleet.access.throttling import PER_ACCOUNT_AND_NETWORK
from fleet.models import Token
from fleet.ops.outages import BriefOutages
from tests.fleet.api.conftest import URL
from tests.helpers import NOON

PASSWORD = "correct horse"
CLIENT = "203.0.113.7"
Lines = Callable[[], list[dict[str, Any]]]

pytestmark = pytest.mark.django_db


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch, redis_url: str) -> Lines:
    """The lines since the last call."""
    written: list[str] = []
    monkeypatch.setattr(audit, "journal", Journal(written.append))

    def take() -> list[dict[str, Any]]:
        taken = [json.loads(line) for line in written]
        written.clear()
        return taken

    return take


@pytest.fixture
def committing(
    django_capture_on_commit_callbacks: DjangoCaptureOnCommitCallbacks,
) -> Callable[[Callable[[], Any]], Any]:
    def run(act: Callable[[], Any]) -> Any:
        with django_capture_on_commit_callbacks(execute=True):
            return act()

    return run


@pytest.fixture
def web(lines: Lines) -> Client:
    return Client(REMOTE_ADDR=CLIENT)


def member(name: str, role: str) -> User:
    user = User.objects.create_user(name, password=PASSWORD)
    user.groups.add(Group.objects.get(name=role))
    return user


def known(line: dict[str, Any]) -> tuple[str, str, str]:
    assert line["address"] == CLIENT
    assert line["at"].endswith("Z")
    return line["who"], line["what"], line["outcome"]


def test_signing_in_and_out(web: Client, lines: Lines, committing: Any) -> None:
    member("ada", "viewer")
    sent = {"username": "ada", "password": PASSWORD}

    committing(lambda: web.post("/sign-in/", sent | {"password": "not this"}))
    committing(lambda: web.post("/sign-in/", sent))
    committing(lambda: web.post("/sign-out/"))

    assert [known(line) for line in lines()] == [
        ("ada", "sign_in", "failed"),
        ("ada", "sign_in", "ok"),
        ("ada", "sign_out", "ok"),
    ]


def test_a_throttled_attempt(web: Client, lines: Lines, committing: Any) -> None:
    member("ada", "viewer")
    wrong = {"username": "ada", "password": "not this"}

    for _ in range(PER_ACCOUNT_AND_NETWORK + 1):
        committing(lambda: web.post("/sign-in/", wrong))

    assert [known(line)[2] for line in lines()] == ["failed", "throttled"]


def test_a_password_typed_as_the_name_is_never_written(
    web: Client, lines: Lines, committing: Any
) -> None:
    committing(lambda: web.post("/sign-in/", {"username": "hunter2 hunter2", "password": "y"}))

    (line,) = lines()
    assert "hunter2" not in json.dumps(line)
    assert (line["who"], line["detail"]) == ("", "no such account")


def test_no_secret_is_in_the_line_of_a_token(web: Client, lines: Lines, committing: Any) -> None:
    web.force_login(member("ada", "admin"))
    form = {"name": "ci", "scope": "read", "days": "90"}
    page = committing(lambda: web.post(reverse("token-list"), form)).text
    token = Token.objects.get()
    committing(lambda: web.post(reverse("token-revoke", args=[token.pk])))

    made, revoked = lines()

    assert known(made) == ("ada", "token_create", "ok")
    assert known(revoked) == ("ada", "token_revoke", "ok")
    assert made["detail"].startswith(f"ci (read), number {token.pk}, until ")
    assert "trnw_" in page
    assert "trnw_" not in json.dumps([made, revoked])


def test_accounts_and_roles(web: Client, lines: Lines, committing: Any) -> None:
    web.force_login(member("ada", "admin"))
    committing(lambda: web.post(reverse("people-list"), {"name": "bo", "role": "viewer"}))
    bo = User.objects.get(username="bo")
    change = reverse("person-change", args=[bo.pk])
    committing(lambda: web.post(change, {"act": "role", "role": "lead"}))
    committing(lambda: web.post(change, {"act": "disable"}))

    found = lines()

    assert {known(line) for line in found} == {("ada", "account_change", "ok")}
    assert [line["detail"] for line in found] == [
        "account bo created with role viewer",
        "role of bo: lead instead of viewer",
        "account bo disabled",
    ]


def test_a_command_writes_no_line(lines: Lines, committing: Any) -> None:
    committing(lambda: create_person("bo", "viewer", by="", now=NOON))

    assert lines() == []


@pytest.mark.parametrize(
    ("scope", "state", "status"),
    [("scrape", "valid", 403), ("read", "revoked", 401), ("act", "expired", 401)],
)
@pytest.mark.parametrize("url", ["/api/v1/tokens", "/metrics", URL])
def test_a_token_used_out_of_scope_or_after_its_end(
    web: Client, lines: Lines, url: str, scope: str, state: str, status: int
) -> None:
    token, secret = Token.issue("ci", scope, now=NOON)
    if url == "/metrics" and state == "valid":
        Token.objects.update(scope="read")
    if state == "revoked":
        Token.objects.update(revoked_at=NOON)
    elif state == "expired":
        Token.objects.update(expires_at=NOON + timedelta(hours=1))
    method = web.post if url == URL else web.get

    answer = method(url, headers={"Authorization": f"Bearer {secret}"})

    assert answer.status_code == status
    (line,) = lines()
    assert known(line) == (f"token {token.name}", "request", "refused")
    assert line["detail"].split(":")[0] == f"{'POST' if url == URL else 'GET'} {url}"
    assert secret not in json.dumps(line)


def test_a_refused_page_says_who_and_why_without_a_traceback(web: Client, lines: Lines) -> None:
    web.force_login(member("ada", "viewer"))

    assert web.get(reverse("people-list")).status_code == HTTPStatus.FORBIDDEN

    (line,) = lines()
    assert known(line) == ("ada", "request", "refused")
    assert line["detail"] == "GET /people/: 403 This needs the role admin; yours is viewer."


def test_django_writes_no_line_of_its_own_about_what_is_audited() -> None:
    allowed = []
    for status in (400, 401, 403, 404, 429, 500):
        record = logging.LogRecord("django.request", logging.WARNING, "", 0, "x", None, None)
        record.status_code = status
        if BriefOutages().filter(record):
            allowed.append(status)

    assert allowed == [400, 404, 500]


def test_a_form_from_elsewhere(lines: Lines) -> None:
    strict = Client(enforce_csrf_checks=True, REMOTE_ADDR=CLIENT)
    strict.force_login(member("ada", "admin"))

    assert strict.post(reverse("people-list"), {"name": "x"}).status_code == 403

    (line,) = lines()
    assert known(line) == ("ada", "request", "refused")
    assert "CSRF" in line["detail"]


def test_a_session_without_a_csrf_token_in_the_api(lines: Lines) -> None:
    strict = Client(enforce_csrf_checks=True, REMOTE_ADDR=CLIENT)
    strict.force_login(member("ada", "admin"))

    assert strict.post("/api/v1/tokens", "{}", content_type="application/json").status_code == 403

    (line,) = lines()
    assert known(line) == ("ada", "request", "refused")


def test_too_many_requests_of_a_token(web: Client, lines: Lines, settings: Settings) -> None:
    settings.API_REQUESTS_PER_MINUTE = 2
    _, secret = Token.issue("ci", "read", now=NOON)

    answers = [
        web.get("/api/v1/me", headers={"Authorization": f"Bearer {secret}"}).status_code
        for _ in range(9)
    ]

    assert answers[-1] == 429
    # Equal ones share a line.
    (line,) = lines()
    assert known(line) == ("token ci", "request", "throttled")


@pytest.mark.parametrize("forged", ['\n{"what": "sign_in"}', "\r\n", "\u2028", "\x1b[2J", "\0"])
def test_no_field_begins_a_line(forged: str) -> None:
    written: list[str] = []
    entry = {"who": forged, "address": forged, "what": "request", "outcome": "refused"}

    Journal(written.append).add(entry | {"detail": forged})

    (line,) = written
    assert len(line.splitlines()) == 1
    assert line.isprintable()
    assert line.isascii()
    assert json.loads(line)["who"] == forged


class Clock:
    s = 0.0

    def __call__(self) -> float:
        return self.s


def entry_of(who: str, address: str, detail: str = "") -> dict[str, str]:
    what = {"what": "request", "outcome": "throttled"}
    return {"who": who, "address": address, "detail": detail, **what}


@pytest.mark.parametrize(
    ("address", "detail", "n_lines"),
    [
        (lambda n: CLIENT, lambda n: "x", 2),
        (lambda n: f"2001:db8::{n:x}", lambda n: "x", 2),
        (lambda n: f"10.0.{n >> 8}.{n & 255}", lambda n: "x", LINES_PER_MINUTE + 1),
        (lambda n: CLIENT, lambda n: f"GET /{n}", LINES_PER_MINUTE + 1),
    ],
    ids=["one client", "addresses of one network", "many clients", "many addresses asked for"],
)
def test_a_flood_writes_few_lines_and_counts_the_rest(
    address: Callable[[int], str], detail: Callable[[int], str], n_lines: int
) -> None:
    written: list[str] = []
    clock = Clock()
    journal = Journal(written.append, monotonic=clock)
    n_sent = 5_000

    for n in range(n_sent):
        journal.add(entry_of("", address(n), detail(n)))
    clock.s = 60.0
    journal.flush()
    journal.flush()

    assert len(written) == n_lines
    n_again = [json.loads(line).get("n_again", 1) for line in written]
    assert sum(n_again) == n_sent


def test_a_flood_of_one_kind_hides_no_other() -> None:
    written: list[str] = []
    journal = Journal(written.append, monotonic=Clock())
    for n in range(1_000):
        journal.add(entry_of("", f"10.0.{n >> 8}.{n & 255}"))

    journal.add(entry_of("ada", CLIENT) | {"what": "sign_in", "outcome": "failed"})

    assert json.loads(written[-1])["who"] == "ada"
