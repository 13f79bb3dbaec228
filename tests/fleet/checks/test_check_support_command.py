"""`manage.py check_support`: text, JSON and exit codes."""

import json
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from fleet.models import SupportCheck, Trial
from tests.helpers import NOON
from tests.telemetry.checks.files import DATA


def run(*args: object) -> tuple[int, str]:
    """Run the command; return its exit code and output."""
    out = StringIO()
    try:
        call_command("check_support", *map(str, args), stdout=out)
    except SystemExit as ended:
        return int(str(ended.code)), out.getvalue()
    return 0, out.getvalue()


def test_all_supported_is_0(tmp_path: Path) -> None:
    file = tmp_path / "ops.txt"
    file.write_text("aten::add\naten::mm\n")

    code, shown = run(file)
    assert code == 0
    assert shown.startswith("All 2 operators are supported.")


def test_some_unsupported_is_1() -> None:
    code, shown = run(DATA / "export.txt")

    assert code == 1
    assert shown.startswith("1 of 9 operators is unsupported, 2 unknown.")
    assert "first on line 10: not on the published list" in shown
    assert "it is incomplete" in shown


def test_some_unknown_is_1(tmp_path: Path) -> None:
    file = tmp_path / "ops.txt"
    file.write_text("aten::add\naten::cumsum\n")

    assert run(file)[0] == 1


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("aten::add\nhow are you\n", "file: line 2: “how are you” is no operator; write one"),
        ("", "file: the file is empty"),
    ],
)
def test_bad_input_is_2(tmp_path: Path, text: str, shown: str) -> None:
    file = tmp_path / "ops.txt"
    file.write_text(text)

    with pytest.raises(CommandError, match=shown) as caught:
        run(file)
    assert caught.value.returncode == 2


@pytest.mark.parametrize("args", [["nowhere.txt"], [DATA / "list.txt", "--report", "nowhere"]])
def test_a_file_that_is_not_there_is_2(args: list[object]) -> None:
    with pytest.raises(CommandError, match="cannot read nowhere") as caught:
        run(*args)
    assert caught.value.returncode == 2


def test_json_holds_every_operator() -> None:
    code, shown = run(DATA / "export.txt", "--report", DATA / "result.json", "--json")

    answer: dict[str, Any] = json.loads(shown)
    assert code == 1
    assert (answer["form"], answer["n_operators"], answer["kept"]) == ("list", 9, None)
    assert sum(answer[f"n_{state}"] for state in ("supported", "unsupported", "unknown")) == 9
    by_name = {each["name"]: each for each in answer["operators"]}
    assert by_name["aten::cumsum"]["state"] == "supported"
    assert by_name["aten::cumsum"]["basis"] == "report"
    assert by_name["rl::advantage"]["to_do"]


@pytest.mark.django_db
def test_it_is_kept_with_a_trial() -> None:
    trial = Trial.objects.create(name="move", question="?", created_by="x", created_at=NOON)

    _, shown = run(DATA / "list.txt", "--trial", "move", "--by", "lee", "--json")
    kept = SupportCheck.objects.get()
    assert (kept.trial, kept.by, kept.file) == (trial, "lee", "list.txt")
    assert json.loads(shown)["kept"] == kept.pk


@pytest.mark.django_db
def test_a_trial_that_is_not_there_is_2_and_keeps_nothing() -> None:
    with pytest.raises(CommandError, match="trial: there is none called 'missing'") as caught:
        run(DATA / "list.txt", "--trial", "missing")

    assert caught.value.returncode == 2
    assert not SupportCheck.objects.exists()
