"""Sign-in: redirect, wrong password, throttling."""

import re
import urllib.error
import urllib.request
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlencode
from uuid import uuid4

import pytest
from django.contrib.auth.models import User
from django.contrib.auth.signals import user_login_failed
from django.test import Client
from pytest_django import Settings
from redis import Redis

from fleet.access.throttling import (
    MAX_LOCAL_COUNTS,
    PER_ACCOUNT,
    PER_ACCOUNT_AND_NETWORK,
    PER_DEVICE,
    PER_NETWORK,
    WINDOW_S,
    LocalCounts,
    SignInAttempt,
)
from fleet.asgi import with_proxies
from fleet.pages.access import DEVICE_COOKIE
from tests.web_server import served

URL = "/sign-in/"
CREDENTIALS = {"username": "ada", "password": "correct horse"}


@pytest.fixture(autouse=True)
def ada(db: None, redis_url: str) -> User:
    return User.objects.create_user(**CREDENTIALS)


def test_it_shows_the_whole_page(client: Client) -> None:
    response = client.get(URL)

    assert response.status_code == 200
    assert "<h1" in response.text
    assert 'autocomplete="current-password"' in response.text
    assert "no-store" in response["Cache-Control"]


def test_it_continues_to_where_one_wanted_to_be(client: Client) -> None:
    page = client.get("/alerts/?state=firing")
    assert page["Location"] == "/sign-in/?next=/alerts/%3Fstate%3Dfiring"

    form = client.get(page["Location"])
    assert 'name="next" value="/alerts/?state=firing"' in form.text
    response = client.post(URL, CREDENTIALS | {"next": "/alerts/?state=firing"})

    assert (response.status_code, response["Location"]) == (302, "/alerts/?state=firing")
    assert client.get("/alerts/").status_code == 200


@pytest.mark.parametrize(
    "elsewhere", ["https://evil.example/", "//evil.example", "javascript:alert(1)", "\\\\evil"]
)
def test_it_never_sends_anybody_elsewhere(client: Client, elsewhere: str) -> None:
    response = client.post(URL, CREDENTIALS | {"next": elsewhere})

    assert response["Location"] == "/"


def test_a_wrong_password_is_announced_and_reports_nothing(client: Client) -> None:
    known = client.post(URL, CREDENTIALS | {"password": "wrong"})
    unknown = client.post(URL, {"username": "missing", "password": "wrong"})

    assert known.status_code == unknown.status_code == 422
    for page in (known.text, unknown.text):
        assert 'role="alert"' in page
        assert 'aria-invalid="true"' in page
        assert "Name and password do not match" in page
    assert 'value="ada"' in known.text
    assert "wrong" not in known.text


def test_a_signed_in_person_is_redirected(client: Client, ada: User) -> None:
    client.force_login(ada)

    assert client.get(URL + "?next=/nodes/")["Location"] == "/nodes/"


def test_a_form_from_elsewhere_is_refused(ada: User) -> None:
    client = Client(enforce_csrf_checks=True)

    response = client.post(URL, CREDENTIALS)

    assert response.status_code == 403
    assert "Go back, reload and try again" in response.text


WRONG = CREDENTIALS | {"password": "wrong"}
FULL_WIDTH = "".join(chr(ord(character) + 0xFEE0) for character in "ada")
LIMITS_SHOWN = "Too many attempts"


def guess(client: Client, address: str, n: int = 1, **data: str) -> list[int]:
    """Guess n times from an address; give the statuses."""
    return [client.post(URL, WRONG | data, REMOTE_ADDR=address).status_code for _ in range(n)]


def without_csrf(page: Any) -> str:
    return re.sub(r"\b[A-Za-z0-9]{64}\b", "", page.text)


def test_who_guesses_must_wait(client: Client) -> None:
    for _ in range(PER_ACCOUNT_AND_NETWORK):
        assert client.post(URL, WRONG).status_code == 422

    response = client.post(URL, CREDENTIALS)

    assert response.status_code == 429
    assert 0 < int(response["Retry-After"]) <= WINDOW_S
    assert f"{LIMITS_SHOWN}. Try again in 5 minutes" in response.text
    assert client.post(URL, CREDENTIALS, REMOTE_ADDR="10.0.0.7").status_code == 302


def test_past_the_limit_no_password_is_looked_at_and_every_answer_is_the_same(
    client: Client,
) -> None:
    looked_at: list[str] = []

    def inspect(sender: object, credentials: dict[str, str], **kwargs: object) -> None:
        looked_at.append(credentials["username"])

    guess(client, "127.0.0.1", PER_ACCOUNT_AND_NETWORK)
    guess(client, "127.0.0.1", PER_ACCOUNT_AND_NETWORK, username="missing")
    user_login_failed.connect(inspect)
    try:
        pages = [
            client.post(URL, data)
            for data in (CREDENTIALS, WRONG, {"username": "missing", "password": "wrong"})
        ]
    finally:
        user_login_failed.disconnect(inspect)

    assert {page.status_code for page in pages} == {429}
    assert len({without_csrf(page) for page in pages}) == 1
    assert "aria-invalid" not in pages[0].text
    assert looked_at == []


def test_waiting_does_not_take_longer_because_one_keeps_trying(
    client: Client, redis: Redis
) -> None:
    guess(client, "10.0.0.7", PER_ACCOUNT_AND_NETWORK)
    for key in redis.scan_iter("{signin}:*"):
        redis.expire(key, 7)

    response = client.post(URL, WRONG, REMOTE_ADDR="10.0.0.7")

    assert 0 < int(response["Retry-After"]) <= 7


def test_of_concurrent_attempts_no_more_than_the_limit_are_checked(
    redis_url: str,
) -> None:
    def wait_s(_: int) -> int:
        return SignInAttempt("ada", "10.0.0.7").wait_s()

    with ThreadPoolExecutor(24) as threads:
        waits = list(threads.map(wait_s, range(24)))

    assert waits.count(0) == PER_ACCOUNT_AND_NETWORK


@pytest.mark.django_db(transaction=True)
def test_24_sign_ins_at_once_are_looked_at_five_times(address: str) -> None:
    User.objects.get_or_create(username="ada")

    def status(_: int) -> int:
        return posted(address, WRONG)

    with ThreadPoolExecutor(24) as threads:
        statuses = Counter(threads.map(status, range(24)))

    assert statuses == {422: PER_ACCOUNT_AND_NETWORK, 429: 24 - PER_ACCOUNT_AND_NETWORK}


def posted(address: str, data: dict[str, str], headers: dict[str, str] | None = None) -> int:
    """Post the form over the wire, as a browser that has the CSRF cookie; give the status."""
    token = "x" * 32
    request = urllib.request.Request(
        f"{address}{URL}",
        urlencode(data | {"csrfmiddlewaretoken": token}).encode(),
        {"Cookie": f"trnwatch_csrf={token}"} | (headers or {}),
    )
    try:
        with urllib.request.build_opener().open(request, timeout=60) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        return error.code


@pytest.mark.django_db(transaction=True)
def test_a_caller_on_this_machine_cannot_choose_its_address(address: str) -> None:
    statuses = [
        posted(address, WRONG, {"X-Forwarded-For": f"203.0.113.{i}"})
        for i in range(PER_ACCOUNT_AND_NETWORK + 1)
    ]

    assert statuses[-1] == 429


@pytest.mark.django_db(transaction=True)
def test_a_trusted_proxy_is_believed_who_calls(transactional_db: None, redis_url: str) -> None:
    with served(with_proxies(["127.0.0.1"])) as address:
        statuses = [
            posted(address, WRONG, {"X-Forwarded-For": f"203.0.113.{i}"})
            for i in range(PER_ACCOUNT_AND_NETWORK + 1)
        ]

    assert set(statuses) == {422}


@pytest.mark.parametrize(
    ("mine", "also_mine", "another"),
    [
        ("203.0.113.7", "::ffff:203.0.113.7", "203.0.113.8"),
        ("2001:db8:1:2::1", "2001:db8:1:2:ffff::9", "2001:db8:1:3::1"),
        ("127.0.0.1", "127.9.9.9", "10.0.0.1"),
        ("::1", "127.0.0.1", "2001:db8::1"),
        ("", "nonsense", "10.0.0.1"),
    ],
)
def test_a_network_is_what_one_client_commands(
    client: Client, mine: str, also_mine: str, another: str
) -> None:
    guess(client, mine, PER_ACCOUNT_AND_NETWORK)

    assert guess(client, also_mine) == [429]
    assert guess(client, another) == [422]


def test_who_tries_many_accounts_from_one_network_must_wait(client: Client) -> None:
    statuses = [guess(client, "10.0.0.7", username=f"name{i}")[0] for i in range(PER_NETWORK + 1)]

    assert statuses == [422] * PER_NETWORK + [429]


@pytest.mark.parametrize("spelling", ["ada", "ADA", " ada ", FULL_WIDTH])
def test_one_account_is_guessed_at_from_many_networks_so_often_and_no_more(
    client: Client, spelling: str
) -> None:
    for i in range(PER_ACCOUNT):
        assert guess(client, f"10.0.0.{i}", username=spelling) == [422]

    assert guess(client, "10.0.1.1") == [429]
    assert client.post(URL, CREDENTIALS, REMOTE_ADDR="10.0.1.2").status_code == 429
    assert guess(client, "10.0.1.1", username="grace") == [422]


def test_attackers_cannot_lock_out_a_known_browser(client: Client) -> None:
    assert client.post(URL, CREDENTIALS, REMOTE_ADDR="10.0.0.7").status_code == 302
    client.post("/sign-out/")
    anonymous = Client()
    for i in range(PER_ACCOUNT):
        guess(anonymous, f"10.0.1.{i}")
    guess(anonymous, "10.0.0.7", PER_ACCOUNT_AND_NETWORK)
    assert guess(anonymous, "10.0.9.9") == [429]

    assert client.post(URL, CREDENTIALS, REMOTE_ADDR="10.0.0.7").status_code == 302


def test_a_browser_that_was_in_before_has_a_limit_of_its_own(client: Client) -> None:
    client.post(URL, CREDENTIALS)
    client.post("/sign-out/")

    statuses = [guess(client, f"10.0.0.{i}")[0] for i in range(PER_DEVICE + 1)]

    assert statuses == [422] * PER_DEVICE + [429]


@pytest.mark.parametrize("change", ["another account", "another password", "another value"])
def test_a_device_cookie_is_good_for_one_account_and_password(
    client: Client, ada: User, change: str
) -> None:
    User.objects.create_user("grace", password="cobol compiler")
    name = "grace" if change == "another account" else "ada"
    client.post(URL, CREDENTIALS)
    client.post("/sign-out/")
    if change == "another password":
        ada.set_password("battery staple")
        ada.save()
    if change == "another value":
        client.cookies[DEVICE_COOKIE] = "0" + client.cookies[DEVICE_COOKIE].value

    statuses = [guess(client, f"10.0.0.{i}", username=name)[0] for i in range(PER_DEVICE + 1)]

    assert set(statuses) == {422}


def test_the_device_cookie_is_for_the_sign_in_page_alone(client: Client) -> None:
    cookie = client.post(URL, CREDENTIALS).cookies[DEVICE_COOKIE]

    assert (cookie["path"], cookie["samesite"], cookie["httponly"]) == (URL, "Lax", True)


def test_a_sign_in_clears_its_own_counter_and_no_other(client: Client) -> None:
    User.objects.create_user("grace", password="cobol compiler")
    grace = {"username": "grace", "password": "cobol compiler"}
    guess(client, "10.0.0.7", PER_ACCOUNT_AND_NETWORK - 1)
    for address in ("10.0.0.7", "10.0.0.8"):
        assert Client().post(URL, grace, REMOTE_ADDR=address).status_code == 302
    assert Client().post(URL, CREDENTIALS, REMOTE_ADDR="10.0.0.8").status_code == 302

    assert guess(client, "10.0.0.7", 2) == [422, 429]


def test_signing_in_often_is_no_guessing(client: Client) -> None:
    for _ in range(PER_NETWORK + 1):
        assert Client().post(URL, CREDENTIALS).status_code == 302


def test_an_attempt_that_works_is_forgotten(client: Client) -> None:
    for _ in range(2):
        guess(client, "127.0.0.1", PER_ACCOUNT_AND_NETWORK - 1)
        assert client.post(URL, CREDENTIALS).status_code == 302
        client.logout()


def test_one_can_sign_in_while_redis_is_away(client: Client, settings: Settings) -> None:
    settings.REDIS_URL = "redis://127.0.0.1:1/0"

    assert client.post(URL, WRONG).status_code == 422
    assert client.post(URL, CREDENTIALS).status_code == 302


def test_without_redis_a_process_counts_by_itself(client: Client, settings: Settings) -> None:
    settings.REDIS_URL = "redis://127.0.0.1:1/0"
    me = {"username": uuid4().hex, "password": "wrong"}
    network = f"2001:db8:{uuid4().hex[:4]}:{uuid4().hex[:4]}::1"

    statuses = guess(client, network, PER_ACCOUNT_AND_NETWORK + 1, **me)

    assert statuses == [422] * PER_ACCOUNT_AND_NETWORK + [429]


def test_a_process_counts_as_redis_does() -> None:
    now_s = 0.0
    counts = LocalCounts(lambda: now_s)
    limits = {"own": 2, "shared": 3}

    assert [counts.count(limits) for _ in range(3)] == [0, 0, WINDOW_S]
    counts.uncount(["own", "shared"])
    assert [counts.count(limits) for _ in range(3)] == [0, 0, WINDOW_S]
    now_s = float(WINDOW_S)
    assert counts.count(limits) == 0


def test_counts_of_a_process_have_a_bound() -> None:
    counts = LocalCounts(lambda: 0.0)
    for i in range(2 * MAX_LOCAL_COUNTS):
        counts.count({f"{i}": 1})

    assert len(counts._counts) <= MAX_LOCAL_COUNTS + 1
    assert counts.count({f"{2 * MAX_LOCAL_COUNTS - 1}": 1}) == WINDOW_S


@pytest.mark.parametrize("method", ["put", "delete", "patch"])
def test_other_methods_are_not_understood(client: Client, method: str) -> None:
    assert getattr(client, method)(URL).status_code == 405


def test_nonsense_is_no_error_of_ours(client: Client) -> None:
    for data in ({}, {"username": "\0", "password": "\0"}, {"username": "x" * 10_000}):
        assert client.post(URL, data).status_code == 422
