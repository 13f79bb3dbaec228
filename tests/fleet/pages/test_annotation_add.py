"""The annotation form, on every page that has it."""

from datetime import timedelta

import pytest
from django.test import Client

from fleet.models import Annotation, Run
from tests.helpers import just_now

URL = "/annotations/add/"
DEPLOY = {"kind": "deploy", "text": "loader 2.4.1", "run": "llama"}
FROM_FORM = {"HX-Request": "true", "HX-Target": "annotate"}


def test_an_operator_is_the_author(client: Client, operator: object, run: Run) -> None:
    back = f"/runs/{run.name}/"
    response = client.post(URL, DEPLOY | {"back": back})
    note = Annotation.objects.get()

    assert (note.by, note.run, note.kind) == ("olga", run, "deploy")
    assert response["Location"] == back


def test_it_may_have_happened_before(client: Client, operator: object, run: Run) -> None:
    at = just_now().replace(microsecond=0) - timedelta(hours=2)
    client.post(URL, DEPLOY | {"at": f"{at:%Y-%m-%dT%H:%M:%S}"})

    assert Annotation.objects.get().at == at


def test_the_form_answers_itself_and_reports_the_page(
    client: Client, operator: object, run: Run
) -> None:
    response = client.post(URL, DEPLOY, headers=FROM_FORM)

    assert response["HX-Trigger"] == '{"annotations-changed": {}}'
    assert "Annotation saved." in response.text
    assert "<html" not in response.text


@pytest.mark.parametrize(
    ("field", "given"),
    [("kind", "party"), ("text", " "), ("at", "yesterday"), ("run", "missing")],
)
def test_an_invalid_value_is_reported_next_to_its_input(
    client: Client, operator: object, run: Run, field: str, given: str
) -> None:
    response = client.post(URL, DEPLOY | {field: given}, headers=FROM_FORM)

    assert response.status_code == 422
    assert list(response.context["annotation_form"].errors) == [field]
    assert not Annotation.objects.exists()


def test_it_never_sends_anybody_to_another_site(
    client: Client, operator: object, run: Run
) -> None:
    response = client.post(URL, DEPLOY | {"back": "https://evil.example/"})

    assert response["Location"] == "/"


def test_it_stands_by_itself_too(client: Client, operator: object) -> None:
    response = client.get(f"{URL}?run=llama&kind=deploy")

    assert "<h1>Annotations</h1>" in response.text
    assert 'name="run" value="llama"' in response.text
    assert "HX-Target" in response["Vary"]


def test_it_lists_what_was_noted_of_the_run(client: Client, operator: object, run: Run) -> None:
    client.post(URL, DEPLOY)

    assert "loader 2.4.1" in client.get(f"{URL}?run=llama").text
    assert "loader 2.4.1" not in client.get(f"{URL}?run=other").text


def test_the_run_s_page_has_the_form(client: Client, operator: object, alive: Run) -> None:
    page = client.get(alive.get_absolute_url()).text

    assert 'action="/annotations/add/"' in page
    assert f'href="{URL}?run=llama"' in page
