"""Prices of runs: published, contract, and changes over time."""

import math
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import numpy as np
import pytest

from fleet.models import Run, TeamPrice
from fleet.runs.prices import AS_REPORTED, PriceRequest, opening_price, set_price
from telemetry.errors import FieldError
from tests.helpers import NOON

HOUR = timedelta(hours=1)
REQUEST = PriceRequest("LLM", "trn1.32xlarge", "reserved", 10.0, NOON, "contract 7")


def a_price(usd: float, valid_from: datetime, *, team: str = "LLM", now: datetime = NOON) -> int:
    """Set a price; return how many runs it changed."""
    asked = replace(REQUEST, team=team, usd_per_node_hour=usd, valid_from=valid_from)
    return set_price(asked, by="lea", now=now)[1]


def started(at: datetime, team: str = "LLM") -> dict[str, Any]:
    """Return what a run of four nodes pays that begins at a moment."""
    return opening_price(team, "trn1.32xlarge", n_nodes=4, began=at)


@pytest.mark.django_db
def test_a_run_starts_at_its_teams_contract_price() -> None:
    a_price(10.0, NOON - 24 * HOUR)

    found = started(NOON)

    assert found["usd_per_node_hour"] == 10.0
    assert found["price_basis"] == "reserved of LLM, 2026-03-01, contract 7"
    assert started(NOON, team="search")["usd_per_node_hour"] == 21.5


@pytest.mark.django_db
def test_without_a_contract_the_catalogue_price_holds() -> None:
    unpriced = opening_price("LLM", "trn2u.48xlarge", n_nodes=4, began=NOON)

    assert started(NOON)["price_basis"].startswith("on demand, 2026")
    assert (unpriced["usd_per_node_hour"], unpriced["price_basis"]) == (0.0, "no price is known")
    assert opening_price("", "toaster", n_nodes=1, began=NOON)["usd_per_node_hour"] == 0.0


@pytest.mark.django_db
def test_a_run_keeps_the_price_of_its_time() -> None:
    a_price(10.0, NOON - 24 * HOUR)
    a_price(8.0, NOON - HOUR)

    assert started(NOON - 2 * HOUR)["usd_per_node_hour"] == 10.0
    assert started(NOON - HOUR)["usd_per_node_hour"] == 8.0


@pytest.mark.django_db
def test_a_teams_price_overrides_the_general_one() -> None:
    a_price(12.0, NOON - HOUR, team="")
    a_price(10.0, NOON - 2 * HOUR)

    assert started(NOON)["usd_per_node_hour"] == 10.0
    assert started(NOON, team="search")["usd_per_node_hour"] == 12.0


@pytest.mark.django_db
def test_of_two_from_one_time_the_later_entry_holds() -> None:
    a_price(10.0, NOON, now=NOON - 3 * HOUR)
    a_price(9.0, NOON, now=NOON - 2 * HOUR)

    assert started(NOON)["usd_per_node_hour"] == 9.0


def test_a_run_that_spans_a_change_pays_each_part_at_its_price(run: Run) -> None:
    assert a_price(10.0, NOON + HOUR) == 1
    run.refresh_from_db()

    assert run.usd_by(NOON + 2 * HOUR) == pytest.approx(4 * 21.5 + 4 * 10.0)
    assert run.usd_between(NOON + HOUR / 2, NOON + 3 * HOUR / 2) == pytest.approx(43 + 20)
    assert run.price_at(NOON)[0] == 21.5
    assert run.price_at(NOON + HOUR)[0] == 10.0


@pytest.mark.django_db
def test_one_that_begins_knows_what_is_announced() -> None:
    a_price(10.0, NOON + HOUR)
    new = Run(n_nodes=4, started_at=NOON, **started(NOON))

    assert new.usd_by(NOON + 2 * HOUR) == pytest.approx(4 * 21.5 + 4 * 10.0)


def test_a_price_of_the_past_never_makes_what_was_paid_less(run: Run) -> None:
    before = run.usd_by(NOON + 2 * HOUR)

    a_price(1.0, NOON - 24 * HOUR, now=NOON + 2 * HOUR)
    run.refresh_from_db()

    assert run.usd_by(NOON + 2 * HOUR) == before
    assert run.usd_by(NOON + HOUR) == 4 * 21.5
    assert run.usd_by(NOON + 3 * HOUR) == pytest.approx(before + 4)


def test_a_run_that_is_over_stays_as_it_is(run: Run) -> None:
    run.finished_at = NOON + HOUR
    run.save()

    assert a_price(1.0, NOON - 24 * HOUR, now=NOON + 2 * HOUR) == 0
    run.refresh_from_db()
    assert run.usd_by(NOON + 9 * HOUR) == 4 * 21.5


def test_another_announcement_replaces_what_has_not_begun(run: Run) -> None:
    a_price(10.0, NOON + HOUR)
    a_price(12.0, NOON + HOUR, now=NOON + HOUR / 2)
    run.refresh_from_db()

    assert run.usd_by(NOON + 2 * HOUR) == pytest.approx(4 * 21.5 + 4 * 12.0)
    assert len(run.tariff or ()) == 2


def test_another_team_and_what_the_job_reports_are_left_alone(run: Run) -> None:
    assert a_price(1.0, NOON, team="search") == 0
    Run.objects.update(price_basis=AS_REPORTED)

    assert a_price(1.0, NOON + HOUR) == 0


def test_a_run_without_a_price_has_paid_a_contract_that_held_all_along(run: Run) -> None:
    Run.objects.update(usd_per_node_hour=0.0, price_basis="unknown")
    run.refresh_from_db()
    assert math.isnan(run.usd_by(NOON + HOUR))

    a_price(10.0, NOON - HOUR, now=NOON + HOUR)
    run.refresh_from_db()

    assert run.usd_by(NOON + HOUR) == 40.0


def test_the_time_before_a_first_price_stays_unknown(run: Run) -> None:
    Run.objects.update(usd_per_node_hour=0.0, price_basis="unknown")
    a_price(10.0, NOON + HOUR)
    run.refresh_from_db()

    assert math.isnan(run.usd_by(NOON + 2 * HOUR))
    assert run.usd_between(NOON + HOUR, NOON + 2 * HOUR) == 40.0


WRONG = [
    ("instance_type", {"instance_type": "toaster"}),
    ("basis", {"basis": "for free"}),
    ("usd_per_node_hour", {"usd_per_node_hour": 0.0}),
    ("usd_per_node_hour", {"usd_per_node_hour": math.nan}),
    ("usd_per_node_hour", {"usd_per_node_hour": 1e9}),
    ("valid_from", {"valid_from": NOON + timedelta(days=9_999)}),
    ("team", {"team": "x" * 41}),
    ("team", {"team": "a\nb"}),
    ("source", {"source": "  "}),
]


@pytest.mark.django_db
@pytest.mark.parametrize(("field", "wrong"), WRONG)
def test_what_cannot_be_is_refused_by_name_and_leaves_nothing(
    field: str, wrong: dict[str, Any]
) -> None:
    with pytest.raises(FieldError) as error:
        set_price(replace(REQUEST, **wrong), by="lea", now=NOON)

    assert error.value.field == field
    assert not TeamPrice.objects.exists()


@pytest.mark.django_db
@pytest.mark.parametrize("seed", range(5))
def test_what_was_paid_never_falls_whatever_is_set_and_adds_up_minute_by_minute(
    run: Run, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    minute, paid, expected = timedelta(minutes=1), 0.0, 0.0

    for i in range(240):
        now = NOON + i * minute
        if rng.random() < 0.05:
            a_price(
                round(float(rng.uniform(1, 60)), 2),
                now + timedelta(minutes=int(rng.integers(-30, 90))),
                team=str(rng.choice(["LLM", ""])),
                now=now,
            )
            run.refresh_from_db()
        # A run that ends and is restarted has paid no less than before.
        run.finished_at = now if rng.random() < 0.1 else None
        assert run.usd_by(now) >= paid
        paid = run.usd_by(now)
        assert paid == pytest.approx(expected, abs=1e-6)
        expected += run.n_nodes * run.price_at(now)[0] / 60
