"""Schedule inputs: parsed, validated by field, written as an address."""

import pytest

from fleet.trials.schedule_forms import ScheduleRequest, parse_request
from telemetry.errors import FieldError


def test_nothing_asked_is_two_weeks_with_reuse() -> None:
    assert parse_request({}) == ScheduleRequest(days=14, porting_usd=0, has_reuse=True, by="saved")


def test_an_address_states_all_that_differs_and_reads_back_the_same() -> None:
    asked = ScheduleRequest(
        days=21.5, porting_usd=20_000, has_reuse=False, by="tokens", candidate="b", failures=0.01
    )

    assert asked.query == (
        "days=21.5&porting_usd=20000&reuse=no&by=tokens&candidate=b&failures=0.01"
    )
    assert parse_request(dict(part.split("=") for part in asked.query.split("&"))) == asked
    assert ScheduleRequest().query == ""


def test_the_command_that_states_the_same_is_written_out() -> None:
    assert ScheduleRequest().options == "--days 14"
    reported = ScheduleRequest(tokens=3e11, porting_usd=2_500, failures=0.01).options
    assert reported == "--tokens 300000000000 --porting-usd 2500 --failures 0.01"


def test_engineers_cost_by_the_day() -> None:
    given = {"porting_usd": "500", "porting_days": "10", "engineer_usd": "900"}
    asked = parse_request(given | {"waiting_engineers": "2"})

    assert asked.total_porting_usd == 500 + 10 * 900
    assert asked.waiting_usd_per_day == 1_800
    assert parse_request(dict(part.split("=") for part in asked.query.split("&"))) == asked
    assert asked.options.endswith("--porting-days 10 --waiting-engineers 2 --engineer-usd 900")


@pytest.mark.parametrize("field", ["porting_days", "waiting_engineers"])
def test_engineers_need_a_rate(field: str) -> None:
    with pytest.raises(FieldError, match=f"engineer_usd: give it with {field}"):
        parse_request({field: "3"})


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("days", "soon"),
        ("days", "0"),
        ("days", "366"),
        ("days", "nan"),
        ("days", "inf"),
        ("porting_usd", "-1"),
        ("porting_usd", "2e9"),
        ("reuse", "maybe"),
        ("by", "dollars"),
        ("tokens", "0"),
        ("tokens", "many"),
        ("failures", "-1"),
        ("failures", "25"),
        ("porting_days", "-1"),
        ("waiting_engineers", "many"),
        ("engineer_usd", "1e6"),
    ],
)
def test_what_cannot_be_names_its_field(field: str, text: str) -> None:
    with pytest.raises(FieldError) as refused:
        parse_request({field: text})

    assert refused.value.field == field
    assert str(refused.value).startswith(f"{field}: ")
