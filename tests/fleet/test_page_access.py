"""What each page answers who may not, and to an unknown name, another method or a foreign form."""

import re
from collections.abc import Iterator

import pytest
from django.contrib.auth.models import Group, User
from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver
from pytest_django import Settings

from fleet.access.roles import ROLES

ANONYMOUS = "anonymous"
# The role that a page asks of who reads it, and of who posts to it. None: it refuses the method.
# Who may post depends on the row for run-money, receiver-edit and receiver-test.
PAGES = {
    ("viewer", None): "overview overview-shares tour node-file node-list problem-node-list "
    "node-detail device-detail sample-detail sample-csv sample-chart node-chart run-list "
    "run-compare run-detail run-chart run-workers preflight-detail preflight-pairs drill-list "
    "drill-detail drill-chart alert-list alert-detail alert-chart alert-image alert-post-mortem "
    "alert-post-mortem-markdown silence-list silence-detail hand-over-markdown "
    "notification-list push-worker receiver-preview delivery-list delivery-detail change-list "
    "compile-list trial-detail trial-print trial-schedule trial-schedule-chart trial-csv "
    "support-detail runbook document search",
    ("viewer", "viewer"): "connect run-money receiver-edit",
    ("viewer", "operator"): "preflight-list hand-over support-list rule-list",
    ("viewer", "lead"): "trial-list",
    ("operator", None): "drill-preview silence-preview route-preview",
    ("operator", "operator"): "run-drill drill-new annotation-add silence-new",
    ("lead", "lead"): "run-import price-list budget-list",
    ("admin", "admin"): "receiver-new route-new route-edit people-list token-list",
    (None, "viewer"): "device-new receiver-test",
    (None, "operator"): "node-sample node-retire run-retire run-preflight preflight-files "
    "drill-end alert-acknowledge alert-comment alert-unacknowledge alert-assign alert-silence "
    "alert-mark-false alert-unmark-false alert-resolve silence-end delivery-settle-all "
    "delivery-settle",
    (None, "lead"): "trial-end budget-end",
    (None, "admin"): "person-change token-revoke",
}
# Their callers prove who they are in other ways.
OTHERS = {
    *("sign-in", "sign-out", "account", "live", "healthz", "readyz", "device-renew"),
    *("slack-interaction", "metrics", "metrics-neuron", "metrics-node", "sd-prometheus"),
    *("ingest-neuron-monitor", "ingest-efa", "ingest-prometheus", "ingest-otlp", "ingest-steps"),
}


def addresses(resolver: URLResolver, prefix: str = "/") -> Iterator[tuple[str, str]]:
    """Yield name and route of each page; the API has a table of its own."""
    for each in resolver.url_patterns:
        route = prefix + str(each.pattern)
        if isinstance(each, URLPattern):
            yield str(each.name), route
        elif each.namespace is None:
            yield from addresses(each, route)


def answers(method: str, role: str | None, route: str) -> Iterator[tuple[str, set[int]]]:
    """Yield visitors and what they get; a name in the route is unknown."""
    if role is None:
        yield "admin", {405}
        return
    below = ROLES[: ROLES.index(role)]
    if below:
        yield below[-1], {403}
    if below or method == "POST":
        yield ANONYMOUS, {403}
    if "<" in route:
        yield role, {404}
    elif method == "POST":
        yield role, {200, 302, 422}


def test_every_page_is_in_the_table() -> None:
    listed = [name for names in PAGES.values() for name in names.split()]

    assert sorted(listed) == sorted(set(listed))
    assert {name for name, _ in addresses(get_resolver())} == {*listed, *OTHERS}


@pytest.mark.django_db
def test_pages_refuse_who_may_not_and_what_they_do_not_know(
    redis_url: str, settings: Settings
) -> None:
    settings.ANONYMOUS_READING = True
    # A refused method is answered without a page, which would take most of the time.
    plain = {"Accept": "application/json"}
    visitors = {ANONYMOUS: Client(headers=plain)}
    strict = Client(enforce_csrf_checks=True, headers=plain)
    for role in ROLES:
        user = User.objects.create_user(role)
        user.groups.add(Group.objects.get(name=role))
        visitors[role] = Client(headers=plain)
        visitors[role].force_login(user)
    strict.force_login(user)
    routes = dict(addresses(get_resolver()))
    form = "application/x-www-form-urlencoded"

    wrong = []
    for (reads, posts), names in PAGES.items():
        for name in names.split():
            path = re.sub(r"<(\w+):\w+>", lambda m: "0" if m[1] == "int" else "x", routes[name])
            other = [("PUT", None)] if reads and posts else []
            for method, asked in [("GET", reads), ("POST", posts), *other]:
                for visitor, expected in answers(method, asked, routes[name]):
                    status = visitors[visitor].generic(method, path, "", form).status_code
                    if status not in expected:
                        wrong.append(f"{method} {path} by {visitor}: {status}, not {expected}")
            if posts and strict.post(path).status_code != 403:
                wrong.append(f"{path} takes a form of another site")

    assert wrong == []
