"""Arms from a file: figures, and the location of each error."""

from pathlib import Path

import pytest

from fleet.trials.schedule import project
from fleet.trials.schedule_arms import arms_from_file
from telemetry.errors import FieldError
from tests.telemetry.statistics.examples import P5, TRN2

DOCUMENT = Path(__file__).parents[4] / "docs" / "schedule.md"
BASELINE = """
[[arm]]
label = "4 x p5.48xlarge"
nodes = 4
usd_per_hour = 240
tokens_per_s = 100_000
checkpoint_s_per_hour = 36
load_s = 600
failures_per_node_day = 0.05
"""
CANDIDATE = """
[[arm]]
label = "4 x trn2.48xlarge"
nodes = 4
usd_per_hour = 144
tokens_per_s = 90_000
tokens_per_s_error_ratio = 0.01
checkpoint_s_per_hour = 36
compile_s = 7200
load_s = 600
failures_per_node_day = 0.05
recompiles_per_day = 1
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "arms.toml"
    path.write_text(text)
    return path


def test_two_arms_come_to_what_the_same_figures_come_to(tmp_path: Path) -> None:
    planned = arms_from_file(written(tmp_path, BASELINE + CANDIDATE))

    saved = project(planned, days=14, porting_usd=20_000).scenario(has_reuse=True).saved_usd
    assert saved is not None
    assert saved.value == pytest.approx(3_764, abs=5)
    assert {each.basis for each in planned[0].assumptions} == {"given"}


def test_the_documented_file_has_the_figures_of_the_manual_calculation(tmp_path: Path) -> None:
    text = DOCUMENT.read_text().partition("```toml")[2].partition("```")[0]

    arms = [each.habits for each in arms_from_file(written(tmp_path, text))]

    assert arms == [P5, TRN2]


def test_an_error_of_the_pace_is_its_interval(tmp_path: Path) -> None:
    pace = arms_from_file(written(tmp_path, CANDIDATE))[0].assumptions[1]

    assert (pace.name, pace.value) == ("tokens_per_s", 90_000)
    assert pace.low == pytest.approx(90_000 / 1.0198, rel=1e-4)
    assert pace.high == pytest.approx(90_000 * 1.0198, rel=1e-4)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "arm"),
        ("[[arm]", "is no TOML"),
        (BASELINE.replace("nodes = 4", "nodes = 0"), r"arm\[0\]\.nodes: Expected `int` >= 1"),
        (BASELINE.replace("nodes = 4", "nodes = 'x'"), r"arm\[0\]\.nodes: "),
        (BASELINE.replace("usd_per_hour = 240", ""), r"arm\[0\]: .*usd_per_hour"),
        (BASELINE.replace("usd_per_hour = 240", "usd_per_hour = inf"), r"arm\[0\]\.usd_per_hour"),
        (BASELINE + "colour = 'red'", r"arm\[0\]: .*colour"),
        (BASELINE * 3, "arm: Expected `array`"),
    ],
)
def test_a_mistake_is_named_by_its_place(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(FieldError, match=message):
        arms_from_file(written(tmp_path, text))


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(FieldError, match=r"figures: .*nowhere\.toml: No such file"):
        arms_from_file(tmp_path / "nowhere.toml")


def test_a_file_that_continues_and_on_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FieldError, match="too long"):
        arms_from_file(written(tmp_path, "# " + "x" * 100_001))
