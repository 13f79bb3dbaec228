"""A trial's CSV read by a spreadsheet library equals the page and the JSON."""

from collections.abc import Iterator
from itertools import groupby
from typing import Any

import pyexcel
import pytest
from django.test import Client
from pytest_django import Settings

from fleet.formatting import count, usd
from fleet.models import Run, Trial
from fleet.trials.figures import load_figures
from fleet.trials.services import update_figures
from fleet.trials.text import ARM_COLUMNS, COMPARISON_COLUMNS, written, written_csv
from telemetry.store.hot import HotStore
from tests.fleet.trials.conftest import LATER, train
from tests.helpers import NOON_S

PARTS = ("usd_ready", "usd_warm_up", "usd_settled", "usd_between")
COLUMNS = ("candidate", "run", "measure", "word", "arm", "instance_type", "price_basis")
Table = list[dict[str, Any]]


def tables(sheet: pyexcel.Sheet) -> Iterator[Table]:
    """Return the tables of a sheet, which an empty row parts, by their headings."""
    for is_empty, rows in groupby(sheet.to_array(), key=lambda row: not any(row)):
        if not is_empty:
            head, *body = rows
            yield [dict(zip(filter(None, head), row, strict=False)) for row in body]


def opened(text: str) -> list[Table]:
    """Return the tables of a CSV as a spreadsheet has them, which guesses what is a number."""
    return list(tables(pyexcel.get_sheet(file_type="csv", file_content=text)))


@pytest.fixture(autouse=True)
def _open_to_all(settings: Settings) -> None:
    settings.ANONYMOUS_READING = True


@pytest.fixture
def trial(hot: HotStore, trial: Trial) -> Trial:
    """Work a trial out whose baseline is paid half as much from the 300th second on."""
    began = {"from_s": NOON_S, "n_nodes": 4, "usd_per_node_hour": 90.0, "basis": "on demand"}
    later = {**began, "from_s": NOON_S + 300, "usd_per_node_hour": 45.0, "basis": "reserved"}
    Run.objects.update(tokens_per_epoch=50_000_000, optimizer="AdamW")
    Run.objects.filter(name="vit-p5").update(tariff=[began, later])
    train("vit-p5", [10.0] * 5 + [2.0] * 195, began_s=100.0, loss=[3.0] * 200)
    train("vit-trn2", [1.25] * 200, loss=[3.0] * 200)
    made = Trial.objects.with_arms().get(pk=trial.pk)
    update_figures(hot, made, now=LATER)
    return made


@pytest.fixture
def compared(trial: Trial, client: Client) -> Table:
    return opened(client.get("/trials/bakeoff/figures.csv").text)[0]


@pytest.fixture
def took(trial: Trial, client: Client) -> Table:
    return opened(client.get("/trials/bakeoff/figures.csv").text)[1]


@pytest.fixture
def page(trial: Trial, client: Client) -> str:
    return client.get("/trials/bakeoff/").text


def test_every_figure_is_a_number_and_not_text(compared: Table, took: Table) -> None:
    assert [tuple(row) for row in compared] == [COMPARISON_COLUMNS] * len(compared)
    assert [tuple(row) for row in took] == [ARM_COLUMNS] * 2
    for row in (*compared, *took):
        for name, cell in row.items():
            is_unknown = cell == ""
            assert isinstance(cell, str if name in COLUMNS else int | float) or is_unknown, name
    assert all(row[part] != "" for row in took for part in (*PARTS, "usd", "settled_tokens"))


def test_steps_times_tokens_are_the_tokens(took: Table) -> None:
    for row in took:
        assert row["n_warm_up"] + row["n_settled"] == row["n_steps"] == 200
        assert row["n_settled"] * row["tokens_per_step"] == pytest.approx(row["settled_tokens"])
        assert row["n_steps"] * row["tokens_per_step"] == pytest.approx(row["n_tokens"])


def test_portions_add_up_to_the_dollars_of_the_page(took: Table, page: str) -> None:
    for row in took:
        total = sum(row[part] for part in PARTS)
        assert total == pytest.approx(row["usd"])
        for value in (total, *(row[part] for part in PARTS)):
            assert f'<td class="num">{usd(value)}</td>' in page
        assert f'<td class="num">{count(row["n_settled"])}</td>' in page
    # 100 s to get ready, 50 s of warm-up; 150 s of steps at $0.10 and 240 s at $0.05.
    p5 = took[0]
    assert p5["usd_ready"] == pytest.approx(10, rel=1e-3)
    assert p5["usd_warm_up"] == pytest.approx(5, rel=1e-3)
    assert p5["usd_settled"] == pytest.approx(150 * 0.10 + 240 * 0.05, rel=1e-3)
    assert p5["usd"] == pytest.approx(300 * 0.10 + (86_400 - 300) * 0.05)


def test_dollars_per_million_tokens_follow_from_dollars_and_tokens(
    compared: Table, took: Table, page: str
) -> None:
    reported = {row["measure"]: row for row in compared}
    for name, row in zip(("baseline", "value"), took, strict=True):
        per_mtok = row["usd_settled"] / row["settled_tokens"] * 1e6
        assert per_mtok == pytest.approx(reported["usd_per_mtok"][name])
        assert written("usd_per_mtok", per_mtok) in page
        assert 1e6 / per_mtok == pytest.approx(reported["tokens_per_usd"][name])
        assert 50 * per_mtok == pytest.approx(reported["usd_per_epoch"][name])
        pace = row["settled_tokens"] / row["settled_s"]
        assert pace == pytest.approx(reported["tokens_per_s"][name])
        assert row["settled_s"] / row["n_settled"] == pytest.approx(reported["step_s"][name])


def test_each_ratio_is_that_of_its_two_figures_and_lies_in_its_interval(compared: Table) -> None:
    assert len(compared) >= 8
    for row in compared:
        assert row["value"] / row["baseline"] - 1 == pytest.approx(row["ratio"], abs=1e-9)
        if row["low_95"] != "":
            assert row["low_95"] - 1e-9 <= row["ratio"] <= row["high_95"] + 1e-9


def test_the_json_has_the_same_figures(
    client: Client, compared: Table, took: Table, trial: Trial
) -> None:
    reported = client.get("/api/v1/trials/bakeoff").json()

    for row, arm in zip(took, reported["figures"], strict=True):
        for name in ARM_COLUMNS[1:]:
            assert row[name] == ("" if arm[name] is None else arm[name]), name
    for row, each in zip(compared, reported["candidates"][0]["comparisons"], strict=True):
        assert (row["measure"], row["word"]) == (each["measure"], each["word"])
        assert row["baseline"] == pytest.approx(each["baseline"], rel=1e-12)
        assert row["ratio"] == pytest.approx(each["ratio"], rel=1e-12)


def test_every_byte_reads_the_same_in_whichever_encoding(trial: Trial) -> None:
    figures = load_figures(trial.figures)
    assert figures is not None
    assert figures.arms[0].label == "4 \u00d7 p5.48xlarge"

    text = written_csv(figures)

    assert text.isascii()
    assert "4 x p5.48xlarge" in text
