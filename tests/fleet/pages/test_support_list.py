"""The list of support checks, and the form that starts one."""

import pytest
from django.contrib.auth.models import User
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from pytest_django import DjangoAssertNumQueries

from fleet.checks.support import store_check
from fleet.models import SupportCheck, Trial
from tests.fleet.checks.test_support_checks import checked
from tests.fleet.pages.conftest import Page
from tests.helpers import NOON
from tests.telemetry.checks.files import DATA

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("redis_url")]


def upload(name: str, text: bytes | None = None) -> SimpleUploadedFile:
    return SimpleUploadedFile(name, (DATA / name).read_bytes() if text is None else text)


def test_without_checks_it_states_how_to_begin(page: Page, viewer: User) -> None:
    text = page("/support/")

    assert "No checks." in text
    assert "an operator can upload it here" in text
    assert 'type="file"' not in text


def test_an_operator_checks_a_file(client: Client, operator: User) -> None:
    trial = Trial.objects.create(name="move", question="?", created_by="x", created_at=NOON)
    response = client.post(
        "/support/", {"file": upload("export.txt"), "text": "", "trial": "move"}, follow=True
    )

    kept = SupportCheck.objects.get()
    assert response.redirect_chain == [(f"/support/{kept.pk}/", 302)]
    assert (kept.file, kept.by, kept.trial) == ("export.txt", "olga", trial)
    assert "1 of 9 operators is unsupported, 2 unknown." in response.text


def test_an_operator_pastes_a_list_and_gives_the_report(client: Client, operator: User) -> None:
    data = {"text": "aten::add 3\naten::cumsum", "report": upload("result.json")}
    response = client.post("/support/", data, follow=True)

    kept = SupportCheck.objects.get()
    assert "All 2 operators are supported." in response.text
    assert (kept.file, kept.basis["report"]["file"]) == ("pasted text", "result.json")


@pytest.mark.parametrize(
    ("data", "field", "shown"),
    [
        ({"text": ""}, "file", "upload a file or paste text"),
        ({"text": "aten::add\nhow are you"}, "file", "line 2: “how are you” is no operator"),
        ({"text": "aten::add", "trial": "missing"}, "trial", "there is none called"),
    ],
)
def test_what_is_wrong_is_named_and_what_was_given_is_kept(
    client: Client, operator: User, data: dict[str, str], field: str, shown: str
) -> None:
    response = client.post("/support/", data)

    assert response.status_code == 422
    assert list(response.context["form"].errors) == [field]
    assert shown in response.text
    assert data["text"] in response.text
    assert not SupportCheck.objects.exists()


def test_a_file_and_its_text_are_one_too_many(client: Client, operator: User) -> None:
    response = client.post("/support/", {"text": "aten::add", "file": upload("list.txt")})

    assert response.status_code == 422
    assert "not both" in response.text


def test_a_report_that_is_none_is_named(client: Client, operator: User) -> None:
    response = client.post("/support/", {"text": "aten::add", "report": upload("list.txt")})

    assert list(response.context["form"].errors) == ["report"]


def test_hostile_names_and_text_are_shown_as_text(client: Client, operator: User) -> None:
    evil = SimpleUploadedFile("<script>x.txt", b"aten::add\n")
    client.post("/support/", {"file": evil, "text": ""})
    response = client.post("/support/", {"text": "</textarea><script>"})

    assert "<script>x" not in response.text
    assert "</textarea><script>" not in response.text


def test_the_trial_asked_for_is_chosen(page: Page, operator: User) -> None:
    Trial.objects.create(name="move", question="?", created_by="x", created_at=NOON)

    assert '<option value="move" selected>' in page("/support/?trial=move")


def test_it_stays_within_its_queries(
    client: Client, operator: User, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    trial = Trial.objects.create(name="move", question="?", created_by="x", created_at=NOON)
    for _ in range(5):
        store_check(checked(), by="lee", now=NOON, trial=trial)

    with django_assert_max_num_queries(10):
        text = client.get("/support/").text
    assert text.count('class="check"') == 5
