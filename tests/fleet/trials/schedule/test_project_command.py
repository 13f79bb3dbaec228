"""`manage.py project`: a trial, runs, a file; text, JSON and invalid input."""

import json
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError

from fleet.models import Run
from telemetry.store.hot import HotStore
from tests.fleet.trials.schedule.test_manual_arms import BASELINE, CANDIDATE, written


def answer(*args: str, **options: Any) -> str:
    out = StringIO()
    call_command("project", *args, stdout=out, **options)
    return out.getvalue().replace("\u202f", " ")


def figures(*args: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(answer(*args, "--json"))
    return found


@pytest.fixture
def manual(tmp_path: Path) -> str:
    return str(written(tmp_path, BASELINE + CANDIDATE))


def test_json_has_what_is_documented(manual: str) -> None:
    found = figures("--figures", manual, "--porting-usd", "20000")

    assert list(found) == [
        *("days", "porting_usd", "waiting_usd_per_day", "tokens"),
        *("arms", "scenarios", "reuse_saves"),
    ]
    assert [arm["label"] for arm in found["arms"]] == ["4 x p5.48xlarge", "4 x trn2.48xlarge"]
    kept, lost = found["scenarios"]
    assert (kept["has_reuse"], lost["has_reuse"]) == (True, False)
    assert list(kept) == [
        *("has_reuse", "arms", "break_even", "saved_usd", "extra_days"),
        "curves",
    ]
    assert kept["saved_usd"]["value"] == pytest.approx(3_764, abs=5)
    assert kept["break_even"]["days"]["value"] == pytest.approx(11.82, abs=0.01)
    assert kept["break_even"]["reason"] == "earned back"
    assert kept["curves"]["days"][-1] == 14
    assert kept["curves"]["candidate"]["usd"][-1] == pytest.approx(68_384)


def test_engineers_who_wait_cost_by_the_day_on_both_arms(manual: str) -> None:
    options = ("--figures", manual, "--porting-usd", "20000", "--engineer-usd", "900")
    found = figures(*options, "--waiting-engineers", "2", "--porting-days", "10")

    kept = found["scenarios"][0]
    assert found["porting_usd"] == 29_000
    assert found["waiting_usd_per_day"] == 1_800
    assert kept["arms"][1]["same_days_usd"] == pytest.approx(29_000 + 14 * (24 * 144 + 1_800))
    # Without them $3,764 less the porting; the baseline is done 1.5 days earlier.
    extra_days = kept["extra_days"]["value"]
    assert kept["saved_usd"]["value"] == pytest.approx(3_764 - 9_000 - extra_days * 1_800, abs=5)
    assert "2 engineers who wait" in answer(*options, "--waiting-engineers", "2")


def test_one_way_alone_may_be_asked_for(manual: str) -> None:
    ways = [
        [each["has_reuse"] for each in figures("--figures", manual, flag)["scenarios"]]
        for flag in ("--reuse", "--no-reuse")
    ]

    assert ways == [[True], [False]]


def test_text_begins_with_the_answer_and_its_basis(manual: str) -> None:
    text = answer("--figures", manual, "--porting-usd", "20000")

    assert text.startswith("4 x trn2.48xlarge pays back its compile and porting after 11.8 days")
    assert "without reuse" in text
    assert "Failures per node and day" in text


@pytest.mark.usefixtures("hot", "trained")
def test_a_trial_is_projected_from_what_its_arms_showed() -> None:
    found = figures("--trial", "bakeoff", "--days", "7", "--failures", "0")

    assert [arm["run"] for arm in found["arms"]] == ["vit-p5", "vit-trn2"]
    # A million tokens in 2.2 s at $216 an hour, half an hour of it before the first step.
    per_mtok = found["scenarios"][0]["arms"][1]["usd_per_mtok"]["value"]
    assert per_mtok == pytest.approx(216 / 3_600 * 2.2 * 7 / (7 - 0.5 / 24), rel=2e-3)
    bases = {each["name"]: each["basis"] for each in found["arms"][1]["assumptions"]}
    assert bases["usd_per_hour"] == "vit-trn2: on demand"
    assert bases["failures_per_node_day"] == "given"
    assert "not reported by vit-trn2" in bases["compile_s"]


@pytest.mark.usefixtures("hot", "trained")
def test_one_run_or_two_are_projected_without_a_trial() -> None:
    alone = figures("--run", "vit-trn2")
    both = figures("--run", "vit-p5", "--run", "vit-trn2")

    assert alone["scenarios"][0]["break_even"] is None
    assert alone["scenarios"][0]["curves"] is None
    assert [arm["run"] for arm in both["arms"]] == ["vit-p5", "vit-trn2"]
    assert both["scenarios"][0]["saved_usd"]["value"] > 0


@pytest.mark.usefixtures("hot", "trained")
@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([], "--trial: give one of --trial, --run and --figures"),
        (["--trial", "bakeoff", "--run", "vit-p5"], "--trial: give one of"),
        (["--trial", "nothing"], "--trial: no trial is called 'nothing'"),
        (["--run", "missing"], "--run: no run is called 'missing'"),
        (["--run", "vit-p5", "--run", "vit-p5"], "--run: give one run, or two different ones"),
        (["--trial", "bakeoff", "--candidate", "vit-p5"], "'vit-p5' is not a candidate of"),
        (["--trial", "bakeoff", "--days", "soon"], "--days: 'soon' is no number"),
        (["--trial", "bakeoff", "--days", "0.1"], "--days: choose 0.5 to 365"),
        (["--trial", "bakeoff", "--porting-usd", "-1"], "--porting-usd: give dollars"),
        (["--trial", "bakeoff", "--tokens", "0"], "--tokens: give how many"),
        (["--trial", "bakeoff", "--failures", "99"], "--failures: give failures per node"),
        (["--figures", "/nowhere.toml"], "--figures: /nowhere.toml: No such file"),
    ],
)
def test_bad_input_names_the_option_and_the_remedy(args: list[str], message: str) -> None:
    with pytest.raises(CommandError, match=message) as refused:
        answer(*args)

    assert refused.value.returncode == 2


@pytest.mark.usefixtures("trained")
def test_a_run_without_a_price_states_where_to_get_one(hot: HotStore) -> None:
    Run.objects.filter(name="vit-p5").update(usd_per_node_hour=0.0)

    with pytest.raises(CommandError, match=r"vit-p5 has no price; set one for p5\.48xlarge"):
        answer("--trial", "bakeoff")


@pytest.mark.usefixtures("trial")
def test_a_run_without_steps_is_sent_to_train(hot: HotStore) -> None:
    with pytest.raises(CommandError, match=r"--trial: vit-p5 has 0 settled steps .* let it train"):
        answer("--trial", "bakeoff")
