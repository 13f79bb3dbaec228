"""Compiles reported by jobs, judged by the run's earlier cache keys."""

import time
from typing import Any

import pytest

from fleet.models import CompileEvent, Run
from tests.fleet.api.training_jobs import ABOUT, NODES, line, step_lines
from tests.fleet.ingest.conftest import Deliver, Follow


@pytest.fixture
def now_s() -> float:
    return float(int(time.time()) // 10 * 10)


def compiled(module: str, *, at: float, worker: str = NODES[0], **shown: Any) -> bytes:
    usual: dict[str, Any] = {"outcome": "miss", "seconds": 30.0}
    return line("compile", worker=worker, module=module, at=at, **usual | shown)


def test_a_compile_comes_with_all_it_states(deliver: Deliver, now_s: float) -> None:
    event = compiled(
        "MODULE_1+a", at=now_s - 40, flags="-O1", compiler="2.21", cache="/fsx/c", shape="8x128"
    )
    outcome = deliver(line("run", **ABOUT), event, at_s=now_s)
    kept = CompileEvent.objects.get()

    assert (outcome.n_accepted, outcome.n_refused) == (2, 0)
    assert (kept.run.name, kept.verdict, kept.seconds) == ("real", "first", 30.0)
    assert (kept.flags, kept.cache, kept.shape) == ("-O1", "/fsx/c", "8x128")
    assert Run.objects.get().compiler_flags == "-O1"


def test_sent_twice_it_is_kept_once(deliver: Deliver, now_s: float) -> None:
    for _ in range(2):
        deliver(compiled("MODULE_1+a", at=now_s - 40), at_s=now_s)

    assert CompileEvent.objects.count() == 1


@pytest.mark.parametrize(("n_steps", "verdict"), [(3, "first"), (12, "amid")])
def test_once_the_job_trains_a_new_graph_is_unplanned(
    deliver: Deliver, follow: Follow, now_s: float, n_steps: int, verdict: str
) -> None:
    for number in range(1, n_steps + 1):
        deliver(*step_lines(number, ended_at=now_s - 60 + number), at_s=now_s - 60 + number)
    follow(now_s - 40)
    deliver(compiled("MODULE_2+a", at=now_s - 40), at_s=now_s)

    assert CompileEvent.objects.get().verdict == verdict


@pytest.mark.parametrize(
    ("shown", "field"),
    [
        ({"outcome": "maybe"}, "outcome"),
        ({"seconds": -1}, "seconds"),
        ({"module": "MODULE 1"}, "module"),
        ({"flags": "x" * 501}, "flags"),
        ({"color": "blue"}, "color"),
    ],
)
def test_what_cannot_be_is_refused_by_its_field(
    deliver: Deliver, now_s: float, shown: dict[str, Any], field: str
) -> None:
    usual: dict[str, Any] = {"module": "MODULE_1+a", "at": now_s}
    outcome = deliver(compiled(**usual | shown), at_s=now_s)

    assert [refused.field for refused in outcome.refused] == [field]
    assert not CompileEvent.objects.exists()


def test_what_a_run_states_of_its_toolchain_is_kept(deliver: Deliver, now_s: float) -> None:
    shown = {"compiler_flags": "-O2", "compiler_version": "2.21", "sdk_version": "2.26.1"}
    deliver(line("run", **ABOUT | shown), at_s=now_s)
    run = Run.objects.get()

    assert (run.compiler_flags, run.compiler_version, run.sdk_version) == ("-O2", "2.21", "2.26.1")
