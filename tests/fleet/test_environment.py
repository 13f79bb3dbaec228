"""Settings from the environment: text, numbers, flags, lists, and secrets in files."""

import re
from pathlib import Path

import pytest
from django.core.exceptions import ImproperlyConfigured

from fleet.ops.environment import Environment


def test_what_is_not_set_is_its_default() -> None:
    env = Environment({"EMPTY": ""})

    assert env.text("EMPTY", "a") == "a"
    assert env.text("ABSENT") == ""
    assert not env.flag("EMPTY")
    assert env.whole_number("EMPTY", 7) == 7
    assert env.names("EMPTY", "a,b") == ["a", "b"]


def test_a_list_forgives_spaces_and_a_comma_too_many() -> None:
    assert Environment({"HOSTS": "a.example, b.example,"}).names("HOSTS") == [
        "a.example",
        "b.example",
    ]


def test_a_secret_may_lie_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("s3cret\n", encoding="utf-8")

    assert Environment({"KEY_FILE": str(file)}).text("KEY") == "s3cret"


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"KEY": "a", "KEY_FILE": "/b"}, "KEY and KEY_FILE are both set"),
        ({"KEY_FILE": "/nowhere/at/all"}, "KEY_FILE: cannot read /nowhere/at/all"),
    ],
)
def test_a_secret_that_cannot_be_had_is_reported(values: dict[str, str], named: str) -> None:
    with pytest.raises(ImproperlyConfigured, match=named):
        Environment(values).text("KEY")


def test_a_file_that_is_no_text_is_reported(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_bytes(b"\xff\xfe\x00")

    with pytest.raises(ImproperlyConfigured, match="KEY_FILE: cannot read"):
        Environment({"KEY_FILE": str(file)}).text("KEY")


def test_what_is_neither_on_nor_off_is_reported() -> None:
    with pytest.raises(ImproperlyConfigured, match="TLS must be 1 or 0, not 'yes'"):
        Environment({"TLS": "yes"}).flag("TLS")


def test_what_is_no_number_is_reported() -> None:
    with pytest.raises(
        ImproperlyConfigured, match="DAYS must be a whole number from 0 to 2147483647, not 'ten'"
    ):
        Environment({"DAYS": "ten"}).whole_number("DAYS", 1)


@pytest.mark.parametrize(
    "given", ["0", "0.009", "8761", "-1", "nan", "1e2", "٦", "6 ", ".5", "9" * 39, "six"]
)
def test_a_number_outside_its_limits_is_reported(given: str) -> None:
    named = "PAGES must be a number from 0.01 to 8760, not "
    with pytest.raises(ImproperlyConfigured, match=named + re.escape(repr(given))):
        Environment({"PAGES": given}).number("PAGES", 6, least=0.01, most=8760)


def test_a_decimal_number_within_its_limits_is_taken() -> None:
    env = Environment({"LEAST": "0.01", "MOST": "8760", "EMPTY": ""})

    read = [env.number(name, 6, least=0.01, most=8760) for name in ("LEAST", "MOST", "EMPTY")]

    assert read == [0.01, 8760, 6]


@pytest.mark.parametrize("name", ["OLD", "OLD_FILE"])
def test_a_former_setting_that_is_still_given_is_named_with_what_to_do(name: str) -> None:
    environment = Environment({name: "/nowhere/at/all", "OTHER": ""})

    said = environment.without_effect({"OLD": "use NEW", "OTHER": "use NEW"})

    assert said == ["OLD has no effect any more: use NEW."]
