"""A trial printed by Chromium and read back from the PDF."""

import re
import subprocess
import unicodedata
from datetime import timedelta
from pathlib import Path

import pytest
from playwright.sync_api import Page, ViewportSize

from fleet.models import Run, Trial
from fleet.trials.services import begin, update_figures
from telemetry.store.hot import HotStore
from tests.fleet.trials.conftest import made, train
from tests.helpers import NOON

pytestmark = pytest.mark.browser

PAGE = re.compile(rb"/Type\s*/Page\b")
BOX = re.compile(rb"/MediaBox\s*\[\s*0 0 ([\d.]+) ([\d.]+)\s*\]")
# As wide as an A4 page less its margins, at 96 pixels per inch.
PAPER = ViewportSize(width=1047, height=718)
QUESTION = (
    "Does the whole of our pretraining, with every team's longest of questions, move to Trainium: "
    "dollars per epoch, compile time, throughput, all-reduce-heavy steps and the loss at equal "
    "tokens?"
)[:200]
LONG = "pretraining-of-the-largest-of-all-our-models-on-its-own-nodes"
# Each text of the page that is printed, but those of what is shown on a screen alone.
TEXTS = """() => {
  const walker = document.createTreeWalker(document.querySelector("main"), NodeFilter.SHOW_TEXT);
  const texts = [];
  while (walker.nextNode()) texts.push(walker.currentNode.textContent);
  return texts;
}"""
# Every element that does not fit its own box, or stands off the paper.
CUT = """() => {
  const paper = document.documentElement.clientWidth;
  return [...document.querySelectorAll(".sheet, .sheet *")].filter((element) => {
    const box = element.getBoundingClientRect();
    const { top } = element.closest(".sheet").getBoundingClientRect();
    const isOff = box.left < -1 || box.right > paper + 1 || box.bottom > top + PAPER + 1;
    const isCut = element instanceof HTMLElement && element.clientHeight > 0
      && (element.scrollHeight > element.clientHeight + 1
        || element.scrollWidth > element.clientWidth + 1);
    return isOff || isCut;
  }).map((element) => `${element.tagName}.${element.className}: ${element.textContent}`);
}""".replace("PAPER", str(PAPER["height"]))


def start_trial(hot: HotStore, n_candidates: int, *, unlike_from: int = 99) -> Trial:
    """Start a trial with every measure, of arms with long names."""
    reported = {"tokens_per_epoch": 50_000_000, "optimizer": "AdamW", "model": "vit-huge"}
    basis = "capacity block of the retail vision and recommendations team, 2026-10-23"
    made(f"{LONG}-p5", "p5.48xlarge", 90.0, **reported)
    names = [f"{LONG}-{i}"[-60:] for i in range(n_candidates)]
    for i, name in enumerate(names):
        differ = {"global_batch": 100 * i, "optimizer": "SGD"} if i >= unlike_from else {}
        made(name, "trn2.48xlarge", 72.0 + i, price_basis=basis, **(reported | differ))
        train(name, [1.25] * 100, loss=[3.0] * 100)
    train(f"{LONG}-p5", [2.0] * 100, loss=[3.0] * 100)
    trial = begin(
        "bakeoff-of-the-longest-name-that-a-trial-may-have-at-all",
        QUESTION,
        baseline=f"{LONG}-p5",
        candidates=names,
        team="Retail vision and recommendations",
        planned_steps=100,
        planned_tokens=10**9,
        by="ada",
        now=NOON,
    )
    # Names of arms as long as they may be.
    for arm in trial.arms.all():
        arm.label = f"{arm.run.n_nodes} nodes of {arm.run.instance_type}, {arm.run.name}"[:60]
        arm.save()
    update_figures(hot, trial, now=NOON + timedelta(days=1))
    return trial


@pytest.fixture(params=["one arm left", "two arms", "five arms", "nine arms, some unlike"])
def trial(request: pytest.FixtureRequest, hot: HotStore, fleet: str) -> Trial:
    """Give a trial with every element of a slide."""
    n = {"one arm left": 1, "two arms": 1, "five arms": 4}.get(request.param, 8)
    trial = start_trial(hot, n, unlike_from=5)
    Run.objects.update(is_simulated=True)
    if request.param == "one arm left":
        Run.objects.filter(name=trial.arms.get(is_baseline=False).run.name).delete()
    trial = Trial.objects.with_arms().get(pk=trial.pk)
    update_figures(hot, trial, now=NOON + timedelta(days=1))
    return trial


def bare(text: str) -> str:
    """Return a text as it is whichever way its lines are broken."""
    return "".join(unicodedata.normalize("NFKC", text).split())


def read_back(pdf: bytes, folder: Path) -> str:
    """Return the text of a PDF, as a reader of it would copy it."""
    file = folder / "slide.pdf"
    file.write_bytes(pdf)
    command = ["pdftotext", "-raw", "-enc", "UTF-8", str(file), "-"]
    return subprocess.run(command, check=True, capture_output=True, timeout=60).stdout.decode()


@pytest.mark.pdftotext
def test_it_is_a_slide_and_a_page_with_every_sentence_and_nothing_cut_off(
    page: Page, fleet: str, trial: Trial, tmp_path: Path
) -> None:
    page.goto(f"{fleet}/trials/{trial}/print/")
    page.emulate_media(media="print")
    pdf = page.pdf(prefer_css_page_size=True)
    page.set_viewport_size(PAPER)

    # Without a comparison there is no slide.
    assert len(PAGE.findall(pdf)) == min(2, trial.arms.count())
    assert {tuple(round(float(side)) for side in box) for box in BOX.findall(pdf)} == {(842, 595)}
    found = bare(read_back(pdf, tmp_path))
    texts = [text for text in page.evaluate(TEXTS) if text.strip()]
    assert [text.strip() for text in texts if bare(text) not in found] == []
    assert any("corrected for repeated looks" in text for text in texts)
    if trial.arms.count() > 1:
        assert any("cost of the settled steps" in text for text in texts)
        assert any("Recommendation" in text for text in texts)
    assert page.evaluate(CUT) == []


@pytest.mark.pdftotext
def test_without_scripts_it_runs_over_and_is_not_cut_off(
    page: Page, fleet: str, hot: HotStore, tmp_path: Path
) -> None:
    trial = start_trial(hot, 8)
    page.route("**/*.js", lambda route: route.fulfill(body="", content_type="text/javascript"))
    page.goto(f"{fleet}/trials/{trial}/print/")
    page.emulate_media(media="print")

    pdf = page.pdf(prefer_css_page_size=True)
    found = bare(read_back(pdf, tmp_path))

    assert len(PAGE.findall(pdf)) > 2
    assert [t for t in page.evaluate(TEXTS) if t.strip() and bare(t) not in found] == []
