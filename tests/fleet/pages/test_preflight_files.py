"""Upload of probe files: judged like by command, or refused and not stored."""

import io
import tarfile
import zipfile
from collections.abc import Callable

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from pytest_django import Settings

from fleet.models import Preflight, PreflightNode
from tests.fleet.checks.probe_output import group
from tests.fleet.test_anonymous_access import member

pytestmark = pytest.mark.django_db
TYPE = {"files_instance_type": "trn1.32xlarge", "files_take": ""}


@pytest.fixture
def at_the_form(client: Client) -> Client:
    """Give an operator's browser."""
    client.force_login(member("operator"))
    return client


def given(*files: tuple[str, bytes], **other: str) -> dict[str, object]:
    uploads = [SimpleUploadedFile(name, data) for name, data in files]
    return {**TYPE, **other, "files": uploads}


def zipped(files: list[tuple[str, bytes]]) -> bytes:
    body = io.BytesIO()
    with zipfile.ZipFile(body, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("__MACOSX/out/._pair__a__b.txt", b"what desktops add")
        for name, data in files:
            archive.writestr(f"out/{name}", data)
    return body.getvalue()


def altered(local: int, central: int, value: int) -> bytes:
    """Return an archive of one file, a byte of its two headers another."""
    data = bytearray(zipped([("pair__a__b.txt", b"0" * 100)]))
    for mark, offset in ((b"PK\x03\x04", local), (b"PK\x01\x02", central)):
        # The last entry: desktops add unused entries before it.
        data[data.rindex(mark) + offset] = value
    return bytes(data)


def tarred(files: list[tuple[str, bytes]]) -> bytes:
    body = io.BytesIO()
    with tarfile.open(fileobj=body, mode="w:gz") as archive:
        for name, data in files:
            entry = tarfile.TarInfo(f"./out/{name}")
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return body.getvalue()


def test_files_are_judged_and_kept(at_the_form: Client) -> None:
    response = at_the_form.post("/preflight/files", given(*group()), follow=True)

    preflight = Preflight.objects.get()
    assert response.redirect_chain == [(f"/preflight/{preflight.pk}/", 302)]
    assert (preflight.asked_by, preflight.source) == ("operator", "files")
    assert preflight.verdict == "pass"
    assert "All 5 nodes can be used." in response.text
    assert "uploaded; requested by" in response.text
    assert "Criteria" in response.text


@pytest.mark.parametrize(("name", "pack"), [("out.zip", zipped), ("out.tar.gz", tarred)])
def test_one_archive_holds_them_all(
    at_the_form: Client, name: str, pack: Callable[[list[tuple[str, bytes]]], bytes]
) -> None:
    at_the_form.post("/preflight/files", given((name, pack(group()))))

    assert Preflight.objects.get().names == list("abcde")


@pytest.mark.parametrize(
    ("files", "shows"),
    [
        ([], "there are none"),
        ([("pair__a__b.txt", b"nothing that any probe prints")], "pair__a__b.txt"),
        ([("notes.txt", b"hello")], "notes.txt"),
        ([("pair__a__b.txt", b"\x89PNG\r\n\x1a\n" + bytes(range(256)))], "pair__a__b.txt"),
        ([("pair__a__b.txt", "bytes #sent".encode("utf-16"))], "pair__a__b.txt"),
        ([("pair__a__b.txt", b"")], "pair__a__b.txt"),
        ([("node__a.json", b"{")], "node__a.json"),
        ([("out.zip", b"PK\x03\x04 cut short")], "out.zip is no .zip or .tar.gz"),
        ([("out.tgz", b"\x1f\x8b cut short")], "out.tgz is no .zip or .tar.gz"),
        ([("out.zip", altered(6, 8, 1))], "locked by a password"),
        ([("out.zip", altered(8, 10, 99))], "packed in another way"),
    ],
    ids=[
        "none",
        "text",
        "name",
        "binary",
        "utf16",
        "empty",
        "json",
        "zip",
        "gzip",
        "locked",
        "method",
    ],
)
def test_what_cannot_be_read_is_named_and_nothing_is_kept(
    at_the_form: Client, files: list[tuple[str, bytes]], shows: str
) -> None:
    response = at_the_form.post("/preflight/files", given(*group()[:2], *files) if files else TYPE)

    assert response.status_code == 422
    assert shows in response.text
    assert 'aria-invalid="true"' in response.text.partition('id="from-files"')[2]
    assert not Preflight.objects.exists()
    assert not PreflightNode.objects.exists()


def test_a_type_or_a_number_that_cannot_be_is_named(at_the_form: Client) -> None:
    for other, field in (
        ({"files_instance_type": "abacus"}, "instance_type"),
        ({"files_take": "9"}, "take"),
        ({"files_take": "many"}, "take"),
    ):
        response = at_the_form.post("/preflight/files", given(*group(), **other))

        assert response.status_code == 422
        assert list(response.context["files_form"].errors) == [f"files_{field}"]
    assert not Preflight.objects.exists()


def test_an_archive_that_swells_is_refused(
    at_the_form: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fleet.checks.preflight_files.MOST_UNPACKED_BYTES", 1_000_000)
    bomb = zipped([*group(), ("pair__a__c.txt", b"0" * 2_000_000)])
    assert len(bomb) < 20_000

    response = at_the_form.post("/preflight/files", given(("out.zip", bomb)))

    assert response.status_code == 422
    assert "hold more than 1 MB unpacked" in response.text
    assert not Preflight.objects.exists()


def test_too_many_files_at_once_are_refused(at_the_form: Client, settings: Settings) -> None:
    settings.DATA_UPLOAD_MAX_NUMBER_FILES = 3

    assert at_the_form.post("/preflight/files", given(*group())).status_code == 400
    assert not Preflight.objects.exists()
