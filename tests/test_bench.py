"""The command line of the benchmarks."""

import importlib
import inspect
import json

import pytest

from bench import __main__ as command
from bench import table


@pytest.mark.parametrize("name", command.CHOICES)
def test_every_benchmark_takes_the_environment_and_its_options(name: str) -> None:
    parameters = inspect.signature(importlib.import_module(f"bench.{name}").measure).parameters
    assert tuple(parameters)[1:] == command.OPTIONS.get(name, ())


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (["nonsense"], "'nonsense' is not a benchmark. Choose from store"),
        (["fleet", "--nodes", "0"], "--nodes: 0 is below 1"),
        (["store", "--hours", "3"], "--hours is an option of healthy"),
    ],
)
def test_a_wrong_argument_is_refused_with_what_would_do(
    arguments: list[str], shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as refused:
        command.main(arguments)
    assert refused.value.code == 2
    assert shown in capsys.readouterr().err


def test_json_is_one_object_with_every_table(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(table, "_as_json", False)
    monkeypatch.setattr(table, "_tables", [])
    table.collect_json()
    table.print_table("Pages", [("/", "p50 3 ms")])
    table.print_json("pages", None)
    found = json.loads(capsys.readouterr().out)
    assert found == {
        "bench": "pages",
        "tables": [{"title": "Pages", "figures": [["/", "p50 3 ms"]]}],
    }
