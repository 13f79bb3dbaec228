"""The schedule chart: two lines with bands, and the same as a table."""

import pytest
from django.test import Client

from fleet.models import Trial
from fleet.trials.schedule import update_observed_runs
from telemetry.store.hot import HotStore
from tests.fleet.trials.arms import let_train, trial_of_two
from tests.fleet.trials.conftest import LATER

CHARTS = "/trials/bakeoff/schedule/charts"


@pytest.fixture
def trial(db: None) -> Trial:
    """Start a trial of two arms."""
    return trial_of_two()


@pytest.fixture
def seen(hot: HotStore, trial: Trial) -> Trial:
    """Let both arms train, and look at them."""
    let_train()
    update_observed_runs(hot, now=LATER)
    return trial


@pytest.mark.usefixtures("seen")
def test_over_days_what_is_spent_is_sure_and_the_other_has_a_band(client: Client) -> None:
    drawn = client.get(f"{CHARTS}/dollars-by-days?porting_usd=9000").json()

    labels = [line["label"] for line in drawn["series"]]
    spent, same, low, high = (line["values"] for line in drawn["series"])
    assert labels[0] == "4 \u00d7 trn2.48xlarge"
    assert labels[1] == "4 \u00d7 p5.48xlarge, same tokens"
    assert [line["role"] for line in drawn["series"]] == [None, None, "low", "high"]
    assert (drawn["t"][0], drawn["t"][-1], drawn["x_unit"]) == (0, 14, "days")
    # Four nodes of $72 an hour for 14 days, and porting.
    assert spent[-1] == pytest.approx(9_000 + 14 * 24 * 288)
    assert low[-1] < same[-1] < high[-1]


@pytest.mark.usefixtures("seen")
def test_the_break_even_is_marked_where_the_lines_cross(client: Client) -> None:
    drawn = client.get(f"{CHARTS}/dollars-by-days?porting_usd=9000&failures=0").json()

    ((at, label, kind),) = drawn["events"]
    spent, same = (line["values"] for line in drawn["series"][:2])
    before = max(i for i, day in enumerate(drawn["t"]) if day <= at)
    assert spent[before] >= same[before]
    assert spent[before + 1] <= same[before + 1]
    assert label.startswith("earned back after ")
    assert kind == "break-even"


@pytest.mark.usefixtures("seen")
def test_over_tokens_both_have_bands(client: Client) -> None:
    drawn = client.get(f"{CHARTS}/dollars-by-tokens?porting_usd=9000").json()

    assert drawn["x_unit"] == "tokens"
    assert [line["role"] for line in drawn["series"]] == [None, "low", "high"] * 2
    assert drawn["labels"][-1].endswith(" tokens")


@pytest.mark.usefixtures("seen")
def test_what_is_saved_is_what_the_two_differ_by(client: Client) -> None:
    query = "porting_usd=9000"
    spent, same = (
        line["values"]
        for line in client.get(f"{CHARTS}/dollars-by-days?{query}").json()["series"][:2]
    )
    drawn = client.get(f"{CHARTS}/dollars-by-saved?{query}").json()

    saved = [line["values"] for line in drawn["series"]]
    assert drawn["series"][0]["label"] == "saved"
    assert saved[0][-1] == pytest.approx(same[-1] - spent[-1], abs=0.02)
    assert saved[1][-1] < saved[0][-1] < saved[2][-1]
    assert saved[0][0] == pytest.approx(-9_000, abs=5)


@pytest.mark.usefixtures("seen")
def test_what_is_never_earned_back_has_no_mark(client: Client) -> None:
    drawn = client.get(f"{CHARTS}/dollars-by-days?porting_usd=90000000").json()

    assert drawn["events"] == []


@pytest.mark.usefixtures("seen")
def test_people_without_scripts_get_a_table(client: Client) -> None:
    text = client.get(f"{CHARTS}/dollars-by-days", headers={"Accept": "text/html"}).text

    assert "day 14.00" in text
    assert "4 \u00d7 p5.48xlarge, same tokens, at most" in text


@pytest.mark.usefixtures("trial", "hot")
def test_before_anybody_looked_there_is_nothing_to_draw(client: Client) -> None:
    assert client.get(f"{CHARTS}/dollars-by-days").json()["series"] == []


@pytest.mark.usefixtures("seen")
def test_a_mistake_names_its_field(client: Client) -> None:
    response = client.get(f"{CHARTS}/dollars-by-days?days=soon")

    assert response.status_code == 400
    assert response.json()["error"]["field"] == "days"


@pytest.mark.usefixtures("seen")
@pytest.mark.parametrize("chart", ["days", "dollars-by-luck", "pie"])
def test_an_unknown_chart_is_not_found(client: Client, chart: str) -> None:
    assert client.get(f"{CHARTS}/{chart}").status_code == 404
