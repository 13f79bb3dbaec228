"""Preflight chart: measured and expected collective time by size."""

import pytest
from django.test import Client

from tests.fleet.pages.preflights import asked, done
from tests.fleet.test_anonymous_access import member

pytestmark = pytest.mark.django_db


def test_it_draws_all_nodes_and_the_chosen_next_to_the_expected(client: Client) -> None:
    preflight = done()

    drawn = client.get(f"/preflight/{preflight.pk}/charts/collective").json()

    assert drawn["labels"][0] == "1\u202fKiB"
    assert drawn["labels"][-1] == "1\u202fGiB"
    expected, everyone, chosen = drawn["series"]
    assert (everyone["label"], chosen["label"]) == (
        "measured, all 16 nodes",
        "measured, 12 nodes",
    )
    assert chosen["values"][-1] == pytest.approx(expected["values"][-1], rel=0.15)
    # The slowest link takes three times the round trip, so it carries a third of the bytes. The
    # number of the preflight draws the scatter of the ratio: its deviation is 0.07.
    assert everyone["values"][-1] / expected["values"][-1] == pytest.approx(3, abs=0.36)


def test_without_scripts_it_is_a_table(client: Client) -> None:
    there = f"/preflight/{done().pk}/charts/collective"
    text = client.get(there, headers={"Accept": "text/html"}).text

    assert "<td>1\u202fGiB</td>" in text
    assert "expected of 12 nodes" in text


def test_before_the_collective_there_is_nothing_to_draw(client: Client) -> None:
    there = f"/preflight/{asked().pk}/charts/collective"

    assert client.get(there).json()["series"] == []
    assert client.get("/preflight/999999/charts/collective").status_code == 404
    client.force_login(member("admin"))
    assert client.post(there).status_code == 405
