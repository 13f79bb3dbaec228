"""A trial's schedule by the API equals the command's output."""

import io
import json
from typing import Any

import pytest
from django.core.management import call_command

from fleet.models import Run, Trial
from fleet.trials.schedule import update_observed_runs
from telemetry.store.hot import HotStore
from tests.fleet.api.conftest import Ask
from tests.fleet.trials.arms import let_train, trial_of_two
from tests.fleet.trials.conftest import LATER
from tests.helpers import NOON

PATH = "trials/bakeoff/schedule"


@pytest.fixture
def trial(db: None) -> Trial:
    """Start a trial of two arms."""
    return trial_of_two()


@pytest.fixture
def seen(hot: HotStore, trial: Trial) -> Trial:
    """Let both arms train, end the trial, and look at them as of then."""
    let_train()
    Trial.objects.update(ended_at=LATER)
    update_observed_runs(hot, now=LATER)
    return Trial.objects.get()


def printed(*options: str) -> dict[str, Any]:
    """Return what the command prints."""
    out = io.StringIO()
    call_command("project", "--trial", "bakeoff", *options, "--json", stdout=out)
    reported: dict[str, Any] = json.loads(out.getvalue())
    return reported


@pytest.mark.usefixtures("seen")
@pytest.mark.parametrize(
    ("query", "options"),
    [
        ("", ()),
        ("days=7&porting_usd=2500", ("--days", "7", "--porting-usd", "2500")),
        ("tokens=3e11&failures=0.01", ("--tokens", "3e11", "--failures", "0.01")),
        ("reuse=no&candidate=vit-trn2", ("--no-reuse", "--candidate", "vit-trn2")),
        ("reuse=yes", ("--reuse",)),
    ],
)
def test_it_is_what_the_command_prints(ask: Ask, query: str, options: tuple[str, ...]) -> None:
    reported = ask(f"{PATH}?{query}", scope="read").json()

    assert {name: reported[name] for name in printed(*options)} == printed(*options)
    assert reported["trial"] == "bakeoff"


@pytest.mark.usefixtures("seen")
def test_it_shows_the_answer_as_text(ask: Ask) -> None:
    reported = ask(f"{PATH}?porting_usd=1000&failures=0").json()

    assert "pays back its porting after" in reported["sentence"]
    assert "\u202f" not in reported["sentence"]
    assert reported["as_of"].startswith("2026-03-03T12:00:00")


@pytest.mark.usefixtures("seen")
def test_across_price_kinds_it_shows_what_equal_ones_save(ask: Ask) -> None:
    Run.objects.filter(name="vit-trn2").update(price_basis="capacity block, 2026-10")
    reported = ask(f"{PATH}?failures=0").json()

    kinds = reported["price_kinds"]
    assert (kinds["baseline"], kinds["candidate"], kinds["is_alike"]) == (
        "on demand",
        "capacity block",
        False,
    )
    (block,) = kinds["at_equal"]
    assert (block["kind"], block["baseline_usd_per_node_hour"]) == ("capacity block", 47.76)
    saved = [way["saved_usd"]["value"] for way in block["scenarios"]]
    assert [way["has_reuse"] for way in block["scenarios"]] == [True, False]
    # Of 47.76 and 35.7608 dollars, not of 90 and 72.
    assert saved[0] < 0.6 * reported["scenarios"][0]["saved_usd"]["value"]
    assert reported["sentence"].startswith("At equal capacity-block list prices")
    assert reported["scenarios"][0]["extra_days"]["value"] < 0
    assert reported["assumed_sentence"] == ""


@pytest.mark.usefixtures("seen")
@pytest.mark.parametrize(
    ("query", "field", "status"),
    [
        ("days=0", "days", 400),
        ("days=nan", "days", 400),
        ("tokens=0", "tokens", 400),
        ("tokens=1e18", "tokens", 400),
        ("failures=-1", "failures", 400),
        ("porting_usd=inf", "porting_usd", 400),
        ("reuse=maybe", "reuse", 400),
        ("candidate=missing", "candidate", 409),
        ("colour=red", "colour", 400),
    ],
)
def test_what_cannot_be_is_named(ask: Ask, query: str, field: str, status: int) -> None:
    response = ask(f"{PATH}?{query}")

    assert (response.status_code, response.json()["field"]) == (status, field)


def test_a_schedule_without_measured_arms_is_refused(ask: Ask, trial: Trial) -> None:
    assert ask(PATH).status_code == 409
    assert "not measured yet" in ask(PATH).json()["detail"]


def test_an_arm_without_a_price_is_named(ask: Ask, seen: Trial) -> None:
    Run.objects.filter(name="vit-p5").update(usd_per_node_hour=0)

    response = ask(PATH)

    assert (response.status_code, response.json()["field"]) == (409, "trial")
    assert "vit-p5 has no price" in response.json()["detail"]


def test_a_trial_without_arms_has_no_schedule(ask: Ask, db: None) -> None:
    Trial.objects.create(name="bare", question="?", created_by="x", created_at=NOON)

    assert ask("trials/bare/schedule").status_code == 409
    assert ask("trials/missing/schedule").status_code == 404


def test_the_description_reports_every_refusal(ask: Ask) -> None:
    paths = ask("openapi.json").json()["paths"]

    reported = paths["/api/v1/trials/{name}/schedule"]["get"]["responses"]
    assert {"200", "304", "400", "404", "409"} <= reported.keys()
    assert "409" not in paths["/api/v1/runs/{name}"]["get"]["responses"]
