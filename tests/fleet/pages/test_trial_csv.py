"""A trial as CSV: the sums are right."""

import csv

import pytest
from django.test import Client

from fleet.trials.services import begin, update_figures
from telemetry.store.hot import HotStore
from tests.fleet.trials.conftest import LATER, made, train
from tests.helpers import NOON


@pytest.fixture
def rows(client: Client, hot: HotStore, db: None) -> list[list[str]]:
    """Give the rows of a trial whose candidate has no price."""
    made("vit-p5", "p5.48xlarge", 90.0)
    made("free", "trn2.48xlarge", 0.0)
    train("vit-p5", [10.0] * 5 + [2.0] * 100)
    train("free", [1.25] * 100)
    trial = begin(
        "bakeoff",
        "Do we move?",
        baseline="vit-p5",
        candidates=["free"],
        planned_steps=100,
        by="ada",
        now=NOON,
    )
    trial.arms.filter(is_baseline=False).update(label="=1+1")
    update_figures(hot, trial, now=LATER)
    response = client.get("/trials/bakeoff/figures.csv")
    assert response["Content-Type"] == "text/csv; charset=utf-8"
    assert 'filename="bakeoff.csv"' in response["Content-Disposition"]
    return list(csv.reader(response.text.splitlines()))


def test_parts_add_up_to_the_whole(rows: list[list[str]]) -> None:
    head = next(i for i, row in enumerate(rows) if row[:1] == ["arm"])
    arm = dict(zip(rows[head], rows[head + 1], strict=True))
    parts = ("usd_ready", "usd_warm_up", "usd_settled", "usd_between")

    assert sum(float(arm[part]) for part in parts) == pytest.approx(float(arm["usd"]))
    # A day of four nodes at $90.
    assert float(arm["usd"]) == pytest.approx(24 * 360)
    assert int(arm["n_warm_up"]) + int(arm["n_settled"]) == int(arm["n_steps"]) == 105


def test_a_ratio_is_that_of_its_two_figures(rows: list[list[str]]) -> None:
    reported = {row[2]: row for row in rows[1 : rows.index([])]}

    assert set(reported) >= {"tokens_per_s", "step_s"}
    assert "usd_per_mtok" not in reported
    for row in reported.values():
        before, after, ratio = map(float, row[3:6])
        assert after / before - 1 == pytest.approx(ratio)


def test_no_cell_is_a_formula_and_what_is_unknown_is_empty(rows: list[list[str]]) -> None:
    assert rows[1][0] == "'=1+1"
    assert rows[-1][-1] == ""
