"""A trial's CSV as a reader of tables has it, which guesses types: added up, it is the page."""

import io

import pyarrow as pa
import pytest
from pyarrow import csv

from fleet.models import Run, Trial
from fleet.templatetags.units import usd
from fleet.trials.comparing import compare
from fleet.trials.figures import Figures
from fleet.trials.tables import written_csv
from fleet.trials.words import written
from telemetry.store.hot import HotStore
from tests.fleet.trials.conftest import LATER, train

PARTS = ("usd_ready", "usd_warm_up", "usd_settled", "usd_between")


@pytest.fixture
def figures(hot: HotStore, trial: Trial) -> Figures:
    Run.objects.update(tokens_per_epoch=50_000_000, optimizer="AdamW")
    train("vit-p5", [10.0] * 5 + [2.0] * 195, began_s=100.0)
    train("vit-trn2", [1.25] * 200)
    return compare(hot, Trial.objects.with_arms().get(pk=trial.pk), now=LATER)


def opened(figures: Figures) -> list[pa.Table]:
    """Return the tables of a file, every column of the type that its cells are of."""
    tables = written_csv(figures).replace("\r\n", "\n").split("\n\n")
    return [csv.read_csv(io.BytesIO(text.encode())) for text in tables]


def test_figures_are_figures_to_whoever_opens_the_file(figures: Figures) -> None:
    compared, took = opened(figures)

    assert {compared.schema.field(name).type for name in ("baseline", "ratio")} == {pa.float64()}
    assert {took.schema.field(name).type for name in (*PARTS, "usd")} == {pa.float64()}


def test_dollars_add_up_to_what_the_page_says(figures: Figures) -> None:
    _, took = opened(figures)
    arms = {row["arm"]: row for row in took.to_pylist()}

    for arm in figures.arms:
        total = sum(arms[arm.label][part] for part in PARTS)
        assert usd(total) == usd(arm.usd)
        hours = total / arms[arm.label]["usd_per_hour"]
        assert hours == pytest.approx(24)


def test_dollars_per_token_and_epoch_follow_from_price_tokens_and_pace(figures: Figures) -> None:
    compared, took = opened(figures)
    told = {row["measure"]: row for row in compared.to_pylist()}
    per_s = {row["run"]: row["usd_per_hour"] / 3600 for row in took.to_pylist()}

    per_mtok = per_s["vit-p5"] / told["tokens_per_s"]["baseline"] * 1e6
    shown = written("usd_per_mtok", told["usd_per_mtok"]["baseline"])
    assert written("usd_per_mtok", per_mtok) == shown == "$0.2000"
    per_epoch = told["usd_per_mtok"]["value"] * 50
    assert per_epoch == pytest.approx(told["usd_per_epoch"]["value"])
    assert written("usd_per_epoch", per_epoch) == "$5.00"
