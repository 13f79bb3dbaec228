"""`manage.py preflight`: recommended nodes, exit codes, files of real nodes."""

import json
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from pytest_django import Settings

from fleet.models import Node, Preflight, Run
from tests.fleet.checks.conftest import SIXTEEN
from tests.fleet.checks.probe_output import collective, group, node, pingpong

pytestmark = pytest.mark.django_db
FAULTS = (
    *("--efa-latency", "n-03", "5", "3"),
    *("--pair-slow", "n-06", "n-11", "2"),
    *("--chip-missing", "n-09"),
)


@pytest.fixture(autouse=True)
def _rehearsing(settings: Settings) -> None:
    settings.ALLOW_DRILLS = True


@pytest.fixture
def folder(tmp_path: Path) -> Callable[..., str]:
    """Write files of probes into a folder."""

    def write(**other: bytes) -> str:
        for name, data in group(**other):
            (tmp_path / name).write_bytes(data)
        return str(tmp_path)

    return write


def run_preflight(*arguments: str) -> tuple[int, dict[str, Any]]:
    """Return exit code and answer."""
    out, code = StringIO(), 0
    try:
        call_command("preflight", *arguments, "--json", stdout=out)
    except SystemExit as ended:
        code = int(str(ended.code))
    answer: dict[str, Any] = json.loads(out.getvalue())
    return code, answer


def sixteen(*arguments: str) -> tuple[int, dict[str, Any]]:
    return run_preflight(
        f"--nodes={','.join(SIXTEEN)}", "--instance=trn2.48xlarge", *FAULTS, *arguments
    )


def test_it_names_exactly_what_is_wrong_with_sixteen_nodes() -> None:
    code, answer = sixteen("--take=12")

    assert (code, answer["verdict"]) == (0, "pass")
    assert {(t["kind"], t["node"], t["device"]) for t in answer["troubles"]} == {
        ("efa_latency", "n-03", 5),
        ("device_missing", "n-09", None),
        ("pair_slow", "n-06", None),
    }
    assert answer["bad_pairs"] == [["n-06", "n-11"]]
    assert len(answer["take"]) == 12
    assert not {"n-03", "n-09"} & set(answer["take"])
    left = {n["node"] for n in answer["nodes"] if n["verdict"] != "pass"}
    # Of the two that are slow to each other either may stay: the noise of the probes decides.
    assert left in ({"n-03", "n-09", "n-06"}, {"n-03", "n-09", "n-11"})
    assert answer["collective_slowdown_ratio"] == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize(("arguments", "verdict"), [(["--take=14"], "fail"), ([], "hold")])
def test_it_exits_1_where_the_group_does_not_pass(arguments: list[str], verdict: str) -> None:
    code, answer = sixteen(*arguments)

    assert (code, answer["verdict"]) == (1, verdict)


def test_it_answers_people_in_text() -> None:
    out = StringIO()
    call_command("preflight", "--nodes=a,b", "--instance=trn1.32xlarge", stdout=out)

    assert "All 2 nodes can be used." in out.getvalue()
    assert out.getvalue().endswith("take: a,b\n")


def test_a_run_brings_its_nodes(run: Run, steady: Node, limping: Node) -> None:
    code, answer = run_preflight("--run=llama")

    assert (code, answer["take"]) == (0, ["steady", "limping"])
    assert Preflight.objects.get().run == run


def test_files_of_real_nodes_are_judged(folder: Callable[..., str]) -> None:
    there = folder(
        device__b__5=pingpong(48.0),
        pair__c__d__1=pingpong(40.0, rate_mb=1100.0),
        node__e=node(15),
        collective=collective(),
    )

    code, answer = run_preflight(there, "--instance=trn1.32xlarge", "--take=2")

    assert (code, answer["take"]) == (0, ["a", "c"])
    assert {(t["kind"], t["node"]) for t in answer["troubles"]} == {
        ("efa_latency", "b"),
        ("device_missing", "e"),
        ("pair_slow", "c"),
    }
    assert Preflight.objects.get().source == "files"


def test_a_slow_collective_of_healthy_nodes_holds_them(folder: Callable[..., str]) -> None:
    there = folder(collective=collective(slower=4))

    code, answer = run_preflight(there, "--instance=trn1.32xlarge")

    assert (code, answer["verdict"]) == (1, "hold")
    assert answer["collective_slowdown_ratio"] > 1.5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "nodes: give --nodes"),
        (["--nodes=a"], "instance_type: give the type"),
        (["--nodes=a", "--instance=m5.large"], "is not in the catalogue"),
        (["--run=missing"], "run: no run is called 'missing'"),
        (
            ["--nodes=a", "--instance=trn1.32xlarge", "--chip-missing", "c"],
            "is not one of the",
        ),
        (["--nodes=a", "--instance=trn1.32xlarge", "--efa-loss", "a"], "--efa-loss: 'a' is wrong"),
        (["--nodes=a", "--instance=trn1.32xlarge", "--efa-loss", "a", "x"], "give NODE DEVICE"),
        (["--nodes=a", "--instance=trn1.32xlarge", "--efa-loss", "a", "1", "9"], "0 to 0.5"),
        (["--nodes=a,b", "--instance=trn1.32xlarge", "--pair-slow", "a", "a"], "two nodes"),
        (["--nodes=a", "--instance=trn1.32xlarge", "--take=2"], "take: 2 of 1"),
        (["/nowhere/at/all.txt"], "files: cannot read"),
        (["/nowhere", "--nodes=a"], "FILES: cannot be combined"),
    ],
)
def test_bad_input_ends_with_2_and_names_the_field(arguments: list[str], message: str) -> None:
    with pytest.raises(CommandError, match=message) as refused:
        call_command("preflight", *arguments)

    assert refused.value.returncode == 2
    assert not Preflight.objects.exists()


def test_bad_files_keep_nothing(folder: Callable[..., str], tmp_path: Path) -> None:
    there = folder()
    (tmp_path / "notes.txt").write_text("hello")

    with pytest.raises(CommandError, match=r"notes\.txt: unknown file name"):
        call_command("preflight", there, "--instance=trn1.32xlarge")
    assert not Preflight.objects.exists()
