"""The page that imports a run: a lead has no shell."""

import gzip
import html
from pathlib import Path

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from pytest_django import Settings

from fleet.models import ReadLog, Run
from tests.fleet.test_anonymous_access import member

pytestmark = pytest.mark.django_db


@pytest.fixture
def lead(client: Client) -> Client:
    client.force_login(member("lead"))
    return client


def sent(client: Client, name: str, content: bytes, **fields: str) -> tuple[int, str]:
    """Upload one file; return the status of the answer and its text, of an import the run's."""
    given = {"files": SimpleUploadedFile(name, content), "kind": "log", "run": "elsewhere"}
    answer = client.post("/import/", given | fields, follow=True)
    return answer.redirect_chain[0][
        1
    ] if answer.redirect_chain else answer.status_code, answer.text


def test_a_log_becomes_a_run(lead: Client, file: Path) -> None:
    status, text = sent(
        lead, "train.log", file.read_bytes(), **{"global-batch": "512", "seq-len": "4096"}
    )

    run = Run.objects.get(name="elsewhere")
    assert status == 302
    assert "elsewhere imported: " in text
    assert run.n_tokens == 10 * 512 * 4096
    assert ReadLog.objects.get(run=run).file == "train.log"


def test_a_table_becomes_one_too_and_an_equals_sign_names_no_column(lead: Client) -> None:
    rows = "".join(f"{n},2.0,3.5\n" for n in range(1, 101)).encode()

    status, _ = sent(lead, "lr=1e-4.csv", b"step,step_s,loss\n" + rows, kind="table")

    assert status == 302
    assert ReadLog.objects.get(run__name="elsewhere").n_steps == 100


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"run": "a b"}, "&#x27;a b&#x27; is not a valid run name"),
        ({"started-at": "soon"}, "&#x27;soon&#x27; is not a time"),
        ({"model": "m" * 61}, "give at most 60 printable characters"),
        ({"nodes": "-1"}, "greater than or equal to 0"),
    ],
)
def test_what_is_refused_is_told_at_its_field(
    lead: Client, file: Path, fields: dict[str, str], message: str
) -> None:
    status, text = sent(lead, "train.log", file.read_bytes(), **fields)

    (name,) = fields
    errors = text[text.index(f'name="{name}"') :]
    assert status == 422
    assert message in errors[: errors.index("</div>")]
    assert not Run.objects.exists()


def test_a_file_without_a_known_line_is_quoted(lead: Client) -> None:
    status, text = sent(lead, "notes.txt", b"nothing of interest\n")

    assert status == 422
    assert "notes.txt has no line of a known kind among 1" in html.unescape(text)
    assert "/tmp/" not in text
    assert not Run.objects.exists()


def test_a_small_file_with_much_text_is_refused(lead: Client, settings: Settings) -> None:
    settings.SUPPORT_MAX_BODY_BYTES = 1_000_000

    status, text = sent(lead, "train.log.gz", gzip.compress(b"step 1\n" * 1_000_000))

    assert status == 422
    assert "train.log.gz has more than 5 MB of text" in text
