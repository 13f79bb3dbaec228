"""`manage.py drill`: output and invalid input."""

import json
import os
import subprocess
import sys
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from fleet.models import Alert, Run

ROOT = Path(__file__).resolve().parents[2]
SCENARIO = """
name = "brown-out"
duration_s = 210
seed = 3
[[run]]
name = "tiny"
model = "llama3.1-8b"
instance = "trn2.48xlarge"
nodes = 4
tp = 8
seq_len = 4096
global_batch = 64
compile_s = 0
[inputs]
busy_while_waiting = false
[[fault]]
kind = "slow_core"
node = "tiny-02"
device = 3
start_s = 120
duration_s = 60
magnitude = 3
"""
FAULT = {
    "kind", "node", "run", "device", "start_s", "end_s", "magnitude", "step_slowdown_ratio",
}  # fmt: skip
ALERT = {
    "rule", "cause", "node", "nodes", "run", "runs", "device", "onset_s", "fired_s",
    "located_s", "resolved_s", "score", "severity", "victims",
}  # fmt: skip


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    path = tmp_path / "scenario.toml"
    path.write_text(SCENARIO)
    return path


def drilled(*arguments: object) -> dict[str, Any]:
    out = StringIO()
    call_command("drill", *map(str, arguments), "--json", stdout=out)
    answer: dict[str, Any] = json.loads(out.getvalue())
    return answer


def refused(path: Path) -> str:
    with pytest.raises(CommandError) as refusal:
        call_command("drill", str(path))
    assert refusal.value.returncode == 2
    return str(refusal.value)


@pytest.mark.django_db
def test_it_finds_the_core_that_the_scenario_slows_by_each_seed_the_same(scenario: Path) -> None:
    answer = drilled(scenario)
    [fault], [alert] = answer["faults"], answer["alerts"]

    assert set(answer) == {
        "scenario", "seed", "duration_s", "tier", "faults", "alerts", "score",
    }  # fmt: skip
    assert (answer["scenario"], answer["seed"], answer["duration_s"]) == ("brown-out", 3, 210)
    assert (set(fault), set(alert)) == (FAULT, ALERT)
    assert (fault["start_s"], fault["end_s"], fault["magnitude"]) == (120, 180, 3)
    assert fault["step_slowdown_ratio"] > 1.05
    assert (alert["cause"], alert["node"], alert["device"]) == ("slow_core", "tiny-02", 3)
    assert 120 <= alert["fired_s"] <= 140
    assert answer["score"]["recall"] == answer["score"]["precision"] == 1
    assert not Run.objects.exists()
    assert not Alert.objects.exists()

    other = drilled(scenario, "--seed", 11)
    assert drilled(scenario) == answer
    assert other["seed"] == 11
    assert other["faults"] != answer["faults"]


@pytest.mark.django_db
def test_a_scenario_without_faults_leaves_undefined_what_is(tmp_path: Path) -> None:
    quiet = tmp_path / "quiet.toml"
    quiet.write_text(SCENARIO.partition("[[fault]]")[0])

    score = drilled(quiet)["score"]

    assert score["recall"] is None
    assert score["precision"] is None
    assert score["time_to_detect_s"] == {"p50": None, "p90": None}
    assert score["false_alerts"] == 0


def test_it_prints_text_and_needs_neither_the_database_nor_redis(
    scenario: Path, tmp_path: Path
) -> None:
    nowhere = {
        "DATABASE_URL": "postgres://missing@127.0.0.1:1/none",
        "REDIS_URL": "redis://127.0.0.1:1/0",
        "TRNWATCH_DATA_DIR": str(tmp_path),
    }
    done = subprocess.run(
        [sys.executable, "manage.py", "drill", str(scenario)],
        cwd=ROOT,
        env=os.environ | nowhere,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert "slow_core" in done.stdout
    assert "detected after" in done.stdout


@pytest.mark.parametrize(
    ("text", "field", "remedy"),
    [
        ("name = ", "scenario", "mend the file"),
        ('name = "x"\nduration_s = 60\nrun = []', "run", "describe at least one"),
        (SCENARIO.replace("tiny-02", "tiny-09"), "fault[0].node", "choose one of"),
        (SCENARIO.replace("slow_core", "slow_cor"), "fault[0].kind", "did you mean"),
        (SCENARIO.replace("magnitude = 3\n", "magnitude = 3e3\n"), "fault[0].magnitude", "give a"),
        (SCENARIO.replace("duration_s = 210", "duration_s = -1"), "duration_s", "give seconds"),
        (SCENARIO.replace("nodes = 4", "notes = 4"), "run[0].notes", "did you mean 'nodes'"),
    ],
)
def test_it_names_the_field_that_is_wrong_and_the_remedy(
    tmp_path: Path, text: str, field: str, remedy: str
) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text(text)

    shown = refused(path)

    assert shown.startswith(f"{field}: ")
    assert remedy in shown


def test_it_asks_for_a_file_that_can_be_read(tmp_path: Path) -> None:
    assert "give the path of a TOML file" in refused(tmp_path / "none.toml")
    assert "give the path of a TOML file" in refused(tmp_path)
    (tmp_path / "image").write_bytes(b"\x89PNG\xff")
    assert "is not UTF-8" in refused(tmp_path / "image")
