"""Every address that is read, with each of its parameters set to what is no usable number."""

from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Any

import pytest
from django.http import HttpRequest, HttpResponse, QueryDict
from django.test import Client
from django.urls import URLPattern
from pytest_django import Settings

from fleet.models import Alert, Silence, Token
from fleet.pages.render import Filter
from fleet.urls import urlpatterns
from tests.fleet.test_anonymous_access import member
from tests.helpers import just_now

UNUSABLE = ("9" * 5_000, "-1", str(10**30), "NaN", "\u0663")
# The answer of an event stream does not end; a busy machine is not ready.
UNASKED = {"live", "readyz"}
NAMES = {"slug:name": "llama", "str:name": "limping", "slug:kind": "email"}
CHARTS = {"node-chart": "core-utilization", "alert-chart": "phases", "drill-chart": "phases"}


READ: set[str] = set()


class RecordedCopy(dict[str, Any]):
    """A dictionary of parameters that does the same.

    Unpacked as arguments, it is read by a list: by its page, and by the fields of its filter.
    """

    def __getitem__(self, key: str) -> Any:
        READ.add(key)
        return super().__getitem__(key)

    def __contains__(self, key: object) -> bool:
        READ.add(str(key))
        return super().__contains__(key)

    def get(self, key: str, default: Any = None) -> Any:
        READ.add(key)
        return super().get(key, default)

    # Where this is another than dict's own, ** asks for the keys.
    def __iter__(self) -> Iterator[str]:
        return super().__iter__()

    def keys(self) -> Any:
        READ.add("page")
        return super().keys()


class Recorded(QueryDict):
    """Parameters that remember in READ which of them were read."""

    def __getitem__(self, key: str) -> Any:
        READ.add(key)
        return super().__getitem__(key)

    def __contains__(self, key: object) -> bool:
        READ.add(str(key))
        return super().__contains__(key)

    def get(self, key: str, default: Any = None) -> Any:
        READ.add(key)
        return super().get(key, default)

    def dict(self) -> dict[str, Any]:
        return RecordedCopy(super().dict())

    def getlist(self, key: str, default: Any = None) -> Any:
        READ.add(key)
        return super().getlist(key, default)


def recording(get_response: Callable[[HttpRequest], HttpResponse]) -> Callable[..., HttpResponse]:
    """Note the parameters that a view reads (a middleware)."""

    def respond(request: HttpRequest) -> HttpResponse:
        request.GET = Recorded(request.META["QUERY_STRING"])
        return get_response(request)

    return respond


def places(pattern: URLPattern, number: int | str) -> str:
    path = f"/{pattern.pattern}".replace("<int:pk>", str(number)).replace("<int:number>", "7")
    names = NAMES | {"slug:chart": CHARTS.get(pattern.name or "", "share")}
    if path.startswith("/trials/"):
        names["slug:name"] = "bakeoff"
    for argument, name in names.items():
        path = path.replace(f"<{argument}>", name)
    return path


@pytest.fixture
def admin(
    client: Client, settings: Settings, alert: Alert, monkeypatch: pytest.MonkeyPatch
) -> Client:

    def read(of: type[Filter]) -> tuple[str, ...]:
        names = tuple(field.name for field in fields(of))
        READ.update(names)
        return names

    monkeypatch.setattr(Filter, "names", classmethod(read))
    settings.MIDDLEWARE = [*settings.MIDDLEWARE, f"{__name__}.recording"]
    client.force_login(member("admin"))
    client.raise_request_exception = False
    now = just_now()
    Silence.objects.create(matchers="run=llama", reason="x", starts_at=now, ends_at=now)
    return client


PATTERNS = [
    each
    for each in urlpatterns
    if isinstance(each, URLPattern)
    and each.name not in UNASKED
    and "api/" not in str(each.pattern)
]


def test_no_parameter_of_a_page_breaks_it(admin: Client, alert: Alert) -> None:
    broken = []
    for pattern in PATTERNS:
        path, tried = places(pattern, alert.pk), set[str]()
        READ.clear()
        first = admin.get(path)
        assert first.status_code < 500, path
        while names := READ - tried:
            for name in sorted(names):
                tried.add(name)
                answers = [(admin.get(path, {name: value}), value) for value in UNUSABLE]
                bad = [value for answer, value in answers if answer.status_code >= 500]
                broken += [(path, name, value[:32]) for value in bad]
    assert broken == []


def test_no_number_in_a_path_breaks_it(admin: Client) -> None:
    wanted = [each for each in PATTERNS if "<int:pk>" in str(each.pattern)]
    paths = [places(each, number) for each in wanted for number in (*UNUSABLE, 2**63)]
    assert [path for path in paths if admin.get(path).status_code >= 500] == []


def test_no_parameter_of_the_api_breaks_it(admin: Client) -> None:
    token = Token.issue("reader", Token.Scope.READ, now=just_now())[1]
    headers = {"Authorization": f"Bearer {token}"}
    described = admin.get("/api/v1/openapi.json", headers=headers).json()
    broken = []
    for path, operations in described["paths"].items():
        place = path.replace("{name}", "llama")
        for parameter in operations.get("get", {}).get("parameters", ()):
            for value in UNUSABLE:
                if parameter["in"] == "query":
                    answer = admin.get(place, {parameter["name"]: value}, headers=headers)
                elif value:
                    there = path.replace(f"{{{parameter['name']}}}", value)
                    answer = admin.get(there, headers=headers)
                if answer.status_code >= 500:
                    broken.append((path, parameter["name"], value[:32], answer.status_code))
    assert described["paths"]
    assert broken == []
