"""Support checks: read, judged, stored; refused with the field named."""

import io
from pathlib import Path

import pytest

from fleet.checks.support import (
    CheckedOperators,
    SupportFile,
    check_operators,
    file_name,
    judgements_of,
    store_check,
    trial_named,
)
from fleet.models import SupportCheck, Trial
from telemetry.checks.support import SupportState
from telemetry.errors import FieldError
from tests.helpers import NOON
from tests.telemetry.checks.files import DATA

MOST = 1_000_000


def given(name: str, text: bytes | None = None) -> SupportFile:
    return SupportFile(name, io.BytesIO((DATA / name).read_bytes() if text is None else text))


def checked(name: str = "export.txt", report: str = "") -> CheckedOperators:
    return check_operators(given(name), given(report) if report else None, most_bytes=MOST)


def test_it_shows_by_what_it_judged() -> None:
    assert checked().basis == {"n_listed": 41, "list_date": "2026-04"}


def test_a_report_next_to_the_graph_overrides_the_list() -> None:
    found = checked(report="result.json")

    states = {each.name: each.state for each in found.judgements}
    assert states["aten::relu"] is SupportState.UNSUPPORTED
    assert states["aten::cumsum"] is SupportState.SUPPORTED
    assert states["rl::advantage"] is SupportState.UNKNOWN
    assert found.basis["report"]["file"] == "result.json"
    assert found.basis["report"]["neuronx_cc"] == "2.15.128.0+56dc5a86"


def test_a_compiler_report_alone_gives_the_result() -> None:
    found = checked("result.json")

    assert [found.count(state) for state in SupportState] == [2, 0, 2]
    assert found.basis["report"]["torch_neuronx"] == "2.1.2"


@pytest.mark.parametrize(
    ("file", "report", "field", "shown"),
    [
        ("export.txt", "list.txt", "report", "it is a list; give the analyzer's result.json"),
        ("result.json", "result.json", "report", "the file is a report itself"),
    ],
)
def test_what_cannot_be_judged_names_its_field(
    file: str, report: str, field: str, shown: str
) -> None:
    with pytest.raises(FieldError, match=shown) as caught:
        checked(file, report)

    assert caught.value.field == field


def test_a_bad_line_is_named() -> None:
    with pytest.raises(FieldError, match="file: line 2: “how are you” is no operator"):
        check_operators(given("a.txt", b"aten::add\nhow are you\n"), most_bytes=MOST)


@pytest.mark.django_db
def test_it_is_kept_whole() -> None:
    trial = Trial.objects.create(name="move", question="?", created_by="x", created_at=NOON)
    found = checked()
    store_check(found, by="lee", now=NOON, trial=trial)

    kept = SupportCheck.objects.get()
    assert judgements_of(kept) == found.judgements
    assert (kept.file, kept.form, kept.by) == ("export.txt", "list", "lee")
    assert (kept.n_operators, kept.n_unsupported, kept.n_unknown) == (9, 1, 2)
    assert kept.digest == found.reading.digest
    assert kept.trial == trial


@pytest.mark.django_db
def test_it_outlives_its_trial() -> None:
    trial = Trial.objects.create(name="move", question="?", created_by="x", created_at=NOON)
    store_check(checked(), by="lee", now=NOON, trial=trial)
    trial.delete()

    assert SupportCheck.objects.get().trial is None


@pytest.mark.django_db
def test_a_trial_that_is_not_there() -> None:
    assert trial_named("") is None
    with pytest.raises(FieldError, match="trial: there is none called 'missing'"):
        trial_named("missing")


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/tmp/a/b.txt", "b.txt"),
        ("C:\\models\\b.txt", "b.txt"),
        ("a\nb.txt", "a_b.txt"),
        ("x" * 300, "x" * 200),
        ("/", "pasted text"),
        (str(Path("..")), ".."),
    ],
)
def test_a_name_is_kept_without_folders(path: str, name: str) -> None:
    assert file_name(path) == name
