"""Nodes and runs are retired on the command line."""

import io
import json

import pytest
from django.core.management import CommandError, call_command

from fleet.models import Node, Run
from telemetry.store.hot import HotStore
from tests.helpers import NOON


def retire(*options: str) -> str:
    out = io.StringIO()
    call_command("retire", *options, stdout=out)
    return out.getvalue()


@pytest.fixture
def over(hot: HotStore, run: Run, steady: Node, limping: Node) -> Run:
    """End the run of two nodes."""
    Run.objects.update(finished_at=NOON)
    return run


def test_it_retires_and_brings_back(over: Run) -> None:
    names = ("--node", "steady", "--run", "llama")

    assert retire(*names) == "steady: retired\nllama: retired\n"
    assert retire(*names) == "steady: already retired\nllama: already retired\n"
    assert Node.objects.get(name="steady").retired_by == "command line"
    assert Node.objects.get(name="limping").retired_at is None

    assert json.loads(retire(*names, "--undo", "--json")) == {
        "nodes": ["steady"],
        "runs": ["llama"],
    }
    assert not Run.objects.exclude(retired_at=None).exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--node", "nothing"), "node: there is no node 'nothing'"),
        (("--run", "nothing"), "run: there is no run 'nothing'"),
        ((), "node: name what to retire"),
    ],
)
def test_bad_input_is_refused(over: Run, options: tuple[str, ...], message: str) -> None:
    with pytest.raises(CommandError, match=message) as refused:
        retire("--node", "steady", *options) if options else retire()

    assert refused.value.returncode == 2
    assert Node.objects.get(name="steady").retired_at is None
