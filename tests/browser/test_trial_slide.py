"""The slide by Friday: a trial as Chromium prints it."""

import re
from datetime import timedelta

import pytest
from playwright.sync_api import Page

from fleet.models import Trial
from fleet.trials.keeping import begin, work_out
from telemetry.store.hot import HotStore
from tests.fleet.trials.conftest import made, train
from tests.parts import NOON

pytestmark = pytest.mark.browser

PAGE = re.compile(rb"/Type\s*/Page\b")
BOX = re.compile(rb"/MediaBox\s*\[\s*0 0 ([\d.]+) ([\d.]+)\s*\]")
LONG = (
    "Does the whole of our pretraining, with every team's longest of questions, move to Trainium?"
)


@pytest.fixture(params=["two arms", "five arms", "nine arms, some unlike"])
def trial(request: pytest.FixtureRequest, hot: HotStore, fleet: str) -> Trial:
    """Give a trial that tells every measure, with a long question."""
    n_candidates = {"two arms": 1, "five arms": 4}.get(request.param, 8)
    told = {"tokens_per_epoch": 50_000_000, "optimizer": "AdamW", "model": "vit-huge"}
    made("vit-p5", "p5.48xlarge", 90.0, **told)
    names = [f"vit-trn2-{i}" for i in range(n_candidates)]
    for i, name in enumerate(names):
        unlike = {"global_batch": 100 * i, "optimizer": "SGD"} if i > 4 else {}
        basis = "capacity block of retail vision, 2026-10-23"
        made(name, "trn2.48xlarge", 72.0 + i, price_basis=basis, **(told | unlike))
        train(name, [1.25] * 100, loss=[3.0] * 100)
    train("vit-p5", [2.0] * 100, loss=[3.0] * 100)
    trial = begin(
        "bakeoff",
        LONG,
        baseline="vit-p5",
        candidates=names,
        planned_steps=100,
        planned_tokens=10**9,
        by="ada",
        now=NOON,
    )
    work_out(hot, trial, now=NOON + timedelta(days=1))
    return trial


def test_it_is_one_a4_page_across_and_nothing_is_cut_off(
    page: Page, fleet: str, trial: Trial
) -> None:
    page.goto(f"{fleet}/trials/bakeoff/print/")
    page.emulate_media(media="print")

    pdf = page.pdf(prefer_css_page_size=True)
    # As wide as an A4 page less its margins, at 96 pixels per inch.
    page.set_viewport_size({"width": 1047, "height": 718})
    over = page.evaluate(
        "() => { const s = document.querySelector('.sheet');"
        " return [s.scrollHeight - s.clientHeight, s.scrollWidth - s.clientWidth]; }"
    )

    assert len(PAGE.findall(pdf)) == 1
    assert [round(float(side)) for side in BOX.findall(pdf)[0]] == [842, 595]
    assert over == [0, 0]
