"""Time ranges from the address."""

import pytest

from fleet.charts.windows import Window, lengths_within, window_of
from telemetry.errors import FieldError
from tests.helpers import NOON, NOON_S


def test_without_a_wish_it_is_the_last_quarter_of_an_hour() -> None:
    assert window_of({}, now=NOON) == Window(NOON_S - 900, NOON_S, "15m")


@pytest.mark.parametrize(
    ("name", "length_s"),
    [("15m", 900), ("1h", 3600), ("24h", 86400), ("7d", 604_800), ("30d", 2_592_000)],
)
def test_a_length_ends_now(name: str, length_s: int) -> None:
    window = window_of({"window": name}, now=NOON)

    assert (window.end - window.start, window.end) == (length_s, NOON_S)
    assert window.is_live
    assert not window.frozen


@pytest.mark.parametrize(
    ("start", "end"),
    [
        ("1700000000", "1700000900"),
        ("2023-11-14T22:13:20Z", "2023-11-14T22:28:20+00:00"),
        ("2023-11-14T22:13:20", "2023-11-14T23:28:20+01:00"),
    ],
)
def test_two_times_make_a_fixed_window(start: str, end: str) -> None:
    window = window_of({"from": start, "to": end}, now=NOON)

    assert (window.start, window.end) == (1_700_000_000, 1_700_000_900)
    assert "2023-11-14 22:13:20</time> to " in window.frozen
    assert ">2023-11-14 22:28:20</time>" in window.frozen
    assert window.query == "from=1700000000&to=1700000900"


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ({"window": ""}, "window"),
        ({"window": "2h"}, "window"),
        ({"to": "1700000000"}, "from"),
        ({"from": "1700000000"}, "to"),
        ({"from": "x", "to": "1700000000"}, "from"),
        ({"from": "1700000000", "to": "inf"}, "to"),
        ({"from": "-5", "to": "1700000000"}, "from"),
        ({"from": "1700000000", "to": "1700000000"}, "to"),
        ({"from": "1600000000", "to": "1700000000"}, "from"),
        ({"from": "1900000000", "to": "1900000900"}, "from"),
    ],
)
def test_what_cannot_be_names_its_field(query: dict[str, str], field: str) -> None:
    with pytest.raises(FieldError) as caught:
        window_of(query, now=NOON)

    assert caught.value.field == field


def test_only_what_is_kept_is_offered() -> None:
    assert lengths_within(86_400) == ["15m", "1h", "6h", "24h"]
    assert lengths_within(604_800)[-1] == "7d"


def test_the_windows_around_a_live_one_are_earlier_and_longer() -> None:
    assert window_of({"window": "15m"}, now=NOON).around() == {
        "earlier": f"from={NOON_S - 1350}&to={NOON_S - 450}",
        "later": "",
        "wider": "window=1h",
    }
    assert window_of({"window": "30d"}, now=NOON).around()["wider"] == ""


def test_the_windows_around_a_frozen_one_do_not_depend_on_the_time() -> None:
    assert Window(1000, 1600).around() == {
        "earlier": "from=700&to=1300",
        "later": "from=1300&to=1900",
        "wider": "from=700&to=1900",
    }
    assert Window(0, 20 * 86_400).around()["wider"] == ""
