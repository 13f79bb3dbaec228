"""A chart over hot store, rollups and long-term store."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from django.test import Client
from pytest_django import Settings

from fleet.models import Node
from telemetry.blocks import Span
from telemetry.store import durable
from telemetry.store.hot import HotStore
from tests.helpers import just_now
from tests.long_term_stores import Past, moody_server
from tests.telemetry.long_term.conftest import StoreOf

pytestmark = pytest.mark.django_db
MINUTE_S, HOUR_S = 60, 3600
HALF_AN_ANSWER = (200, {"X": "y"}, b'{"status":"success","data":{"result":[{"metric":{}}]}}')
LONG_AGO, LATELY, NOW = 0.25, 0.5, 0.75  # what the vCPUs read in each part


@dataclass
class Course:
    """A node that read one figure until a border, another until lately, and a third since."""

    node: Node
    hot: HotStore

    def __post_init__(self) -> None:
        self.now_s = int(just_now().timestamp()) - 5
        self.border = self.now_s // HOUR_S * HOUR_S - 3 * HOUR_S
        self.fresh = (self.now_s - 300) // MINUTE_S * MINUTE_S
        self.start = self.border - 6 * HOUR_S
        for figure, begin, end in (
            (LONG_AGO, self.start, self.border),
            (LATELY, self.border, self.fresh),
        ):
            durable.write_rollups(self.reading(figure, np.arange(begin, end, 30)))
        self.hot.append(self.reading(NOW, np.arange(self.fresh, self.now_s)).blocks())

    def reading(self, figure: float, ticks: np.ndarray[Any, Any]) -> Span:
        values = {"vcpu_usage_ratio": np.full((len(ticks), 1, 1), figure)}
        every_s = int(ticks[1] - ticks[0])
        return Span(self.node.shard, ticks, (self.node.name,), values, every_s)

    def forget(self) -> None:
        durable.delete_older_than(0.0, now_s=self.border + HOUR_S)


@pytest.fixture
def past(steady: Node, hot: HotStore) -> Course:
    return Course(steady, hot)


def chart(client: Client, past: Course) -> dict[str, Any]:
    """Ask for the vCPUs of nine hours, as a frozen page does."""
    address = f"/nodes/{past.node.name}/charts/vcpu"
    asked = {"from": past.start, "to": past.now_s}
    drawn: dict[str, Any] = client.get(address, asked).json()
    return drawn


def read(drawn: dict[str, Any]) -> dict[int, float]:
    """Return the figures of a chart by second; a gap is none."""
    pairs = zip(drawn["t"], drawn["series"][0]["values"], strict=True)
    return {second: value for second, value in pairs if value is not None}


def test_it_shows_every_minute_of_all_three(
    store_of: StoreOf, past: Course, admin_client: Client, settings: Settings
) -> None:
    scraped = Past()
    seconds = np.arange(past.start, past.now_s, 15)
    # What the database has as well is not asked for.
    figures = np.where(seconds < past.border, LONG_AGO, 1.0)
    scraped.add(f'trnwatch_node_vcpu_usage_ratio{{node="{past.node.name}"}}', seconds, figures)
    past.forget()
    settings.LONG_TERM_READ_URL = store_of(scraped).url

    found = read(drawn := chart(admin_client, past))

    whole = [second for second in found if second < past.now_s // MINUTE_S * MINUTE_S]
    assert whole == list(range(past.start, past.now_s // MINUTE_S * MINUTE_S, MINUTE_S))
    for second in whole:
        expected = LONG_AGO if second < past.border else LATELY if second < past.fresh else NOW
        assert found[second] == pytest.approx(expected, abs=0.003)
    assert [(part["tier"], part["since"]) for part in drawn["reach"]] == [
        ("long term", past.start),
        ("durable", past.border),
    ]


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (
            (200, {}, b"<html>not what you think</html>"),
            "answers no PromQL (200)",
        ),
        (
            (422, {}, b'{"status":"error","error":"too many points"}'),
            "store refuses: too many",
        ),
        (
            (200, {}, b'{"status":"success","data":{"result":[{"metric":{}}]}}'),
            "answers no PromQL (200)",
        ),
        ((503, {}, b""), "answers no PromQL (503)"),
    ],
)
def test_a_store_that_answers_nonsense_costs_its_own_part_alone(
    past: Course,
    admin_client: Client,
    settings: Settings,
    answer: tuple[int, dict[str, str], bytes],
    why: str,
) -> None:
    past.forget()
    with moody_server() as moody:
        settings.LONG_TERM_READ_URL = moody.url
        moody.answers.append(answer)

        drawn = chart(admin_client, past)

    assert why in drawn["reach"][0]["why"]
    assert min(read(drawn)) == past.border
    assert moody.paths == ["/api/v1/query_range"]


def test_a_store_that_is_away_is_asked_once_for_a_page(
    past: Course, admin_client: Client, settings: Settings
) -> None:
    past.forget()
    broken_off = (200, {"Content-Length": "9", "Connection": "close"}, b"{")
    with moody_server() as moody:
        settings.LONG_TERM_READ_URL = moody.url
        moody.answers += [broken_off] * 5

        whys = [chart(admin_client, past)["reach"][0]["why"] for _ in range(3)]

    assert set(whys) == {"the long-term store does not answer"}
    assert len(moody.paths) == 1


def test_an_answer_without_end_is_cut_off(
    past: Course, admin_client: Client, settings: Settings
) -> None:
    past.forget()
    with moody_server() as moody:
        settings.LONG_TERM_READ_URL = moody.url
        moody.answers.append((200, {}, b" " * (33 << 20)))

        drawn = chart(admin_client, past)

    assert drawn["reach"][0]["why"] == "the long-term store does not answer"
    assert min(read(drawn)) == past.border


@pytest.mark.parametrize(
    ("keep_days", "has_store", "offered"),
    [(1, False, []), (7, False, ["7d"]), (30, False, ["7d", "30d"]), (1, True, ["7d", "30d"])],
)
def test_longer_windows_are_offered_where_they_can_be_served(
    past: Course,
    admin_client: Client,
    settings: Settings,
    keep_days: int,
    has_store: bool,  # noqa: FBT001
    offered: list[str],
) -> None:
    settings.DURABLE_KEEP_DAYS = keep_days
    settings.LONG_TERM_READ_URL = "http://127.0.0.1:1" if has_store else ""

    page = admin_client.get(f"/nodes/{past.node.name}/").text

    assert [name for name in ("7d", "30d") if f'href="?window={name}"' in page] == offered


def test_without_a_store_nothing_is_reported(past: Course, admin_client: Client) -> None:
    drawn = chart(admin_client, past)

    assert "reach" not in drawn
    assert len(read(drawn)) > 500


def test_its_table_states_which_part_is_from_where(
    past: Course, admin_client: Client, settings: Settings
) -> None:
    past.forget()
    settings.LONG_TERM_READ_URL = "http://127.0.0.1:1"

    page = admin_client.get(
        f"/nodes/{past.node.name}/charts/vcpu",
        {"from": past.start, "to": past.now_s},
        headers={"Accept": "text/html"},
    ).text

    assert "1 min · nothing before" in page
    assert "the long-term store does not answer" in page
    assert "127.0.0.1:1" not in page
