"""Compile events: stored once, with reason and changed key fields."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from fleet.models import CompileEvent, Run
from fleet.runs.compile_summaries import cache_kind, change_lines, short
from fleet.runs.compiles import store_compiles
from telemetry.compiles import HIT, MISS, Compile
from tests.helpers import NOON, NOON_S

DAY_S = 86_400.0


def asked(
    module: str, outcome: str = MISS, *, after_s: float = 0.0, process: str = "a", **more: Any
) -> Compile:
    seconds = {} if outcome == HIT else {"seconds": 60.0}
    return Compile(module, outcome, at_s=NOON_S + after_s, process=process, **seconds | more)


def keep(run: Run, *events: Compile, **more: Any) -> Sequence[CompileEvent]:
    return store_compiles(run, events, now=NOON, **more)


def verdicts(run: Run) -> list[str]:
    return [event.verdict for event in run.compiles.order_by("at", "pk")]


def another(run: Run, **other: Any) -> Run:
    return Run.objects.create(
        **{
            "name": "another",
            "team": run.team,
            "model": run.model,
            "instance_type": run.instance_type,
            "n_nodes": run.n_nodes,
            "seq_len": run.seq_len,
            "global_batch": run.global_batch,
            "usd_per_node_hour": 1.0,
            "price_basis": "",
            "phase_since": NOON,
            "started_at": NOON,
        }
        | other
    )


def test_what_no_one_had_is_compiled_for_the_first_time(run: Run) -> None:
    keep(run, asked("MODULE_1+a"), asked("MODULE_2+a", after_s=60))

    assert verdicts(run) == ["first", "first"]


def test_reported_twice_it_is_kept_once_and_stays_what_it_was(run: Run) -> None:
    keep(run, asked("MODULE_1+a"))
    keep(run, asked("MODULE_1+a"))

    assert verdicts(run) == ["first"]


def test_other_flags_make_it_compile_again_and_are_named(run: Run) -> None:
    keep(run, asked("MODULE_1+a", flags="--target=trn2 -O1"), asked("MODULE_1+a", HIT, after_s=9))
    (again,) = keep(run, asked("MODULE_1+b", after_s=DAY_S, flags="--target=trn2 -O2"))

    assert (again.verdict, short(again.change)) == ("again", "flags")
    assert change_lines(again.change) == ["flags: -O1 became -O2"]
    assert again.change is not None
    assert again.change["before_s"] == NOON_S + 9


def test_another_compiler_is_named(run: Run) -> None:
    keep(run, asked("MODULE_1+a", compiler="2.19.1"))
    (again,) = keep(run, asked("MODULE_1+a", after_s=DAY_S, compiler="2.21.3"))

    assert change_lines(again.change) == ["compiler: neuronx-cc 2.19.1 became 2.21.3"]


def test_the_same_key_again_means_that_the_cache_lost_it(run: Run) -> None:
    keep(run, asked("MODULE_1+a"))
    (again,) = keep(run, asked("MODULE_1+a", after_s=DAY_S))

    assert (again.verdict, short(again.change)) == ("again", "same key")


def test_another_place_for_the_cache_is_named(run: Run) -> None:
    keep(run, asked("MODULE_1+a", cache="/fsx/cache"))
    (again,) = keep(run, asked("MODULE_1+a", after_s=DAY_S, cache="/var/tmp/cache"))

    assert change_lines(again.change) == ["cache: /fsx/cache became /var/tmp/cache"]


def test_processes_that_compile_side_by_side_share_no_cache(run: Run) -> None:
    keep(run, *(asked("MODULE_1+a", after_s=n, process=f"node-{n}") for n in range(4)))

    assert verdicts(run) == ["first", "beside", "beside", "beside"]


def test_a_new_graph_during_training_is_unplanned(run: Run) -> None:
    keep(run, asked("MODULE_1+a", shape="8x4096"))
    trained_from = NOON + timedelta(seconds=100)
    (amid,) = keep(
        run,
        asked("MODULE_2+a", after_s=90),
        asked("MODULE_3+a", after_s=200, shape="7x4096"),
        trained_from=trained_from,
    )

    assert verdicts(run) == ["first", "first", "amid"]
    assert short(amid.change) == "new graph"


def test_a_shape_that_both_tell_is_named(run: Run) -> None:
    keep(run, asked("MODULE_1+a", shape="8x4096"))
    (amid,) = keep(run, asked("MODULE_2+a", after_s=200, shape="7x4096"), trained_from=NOON)

    assert change_lines(amid.change) == ["shapes: 8x4096 became 7x4096"]


def test_what_was_announced_is_no_accident(run: Run) -> None:
    keep(run, asked("MODULE_1+a"))

    assert keep(run, asked("MODULE_1+b", after_s=DAY_S, is_planned=True)) == []
    assert verdicts(run) == ["first", "planned"]


def test_a_graph_that_the_team_had_compiled_elsewhere_is_compiled_again(run: Run) -> None:
    keep(another(run), asked("MODULE_1+a", flags="-O1"))
    (again,) = keep(run, asked("MODULE_1+b", after_s=DAY_S, flags="-O2"))

    assert (again.change or {})["run"] == "another"


def test_another_teams_compiles_are_no_reason(run: Run) -> None:
    keep(another(run, team="others"), asked("MODULE_1+a"))

    assert keep(run, asked("MODULE_1+a", after_s=DAY_S)) == []


def test_what_failed_left_nothing_to_find(run: Run) -> None:
    keep(run, asked("MODULE_1+a", "fail"))
    keep(run, asked("MODULE_1+a", after_s=DAY_S))

    assert verdicts(run) == ["", "first"]


def test_the_run_states_what_its_newest_compile_was_called_with(run: Run) -> None:
    keep(run, asked("MODULE_1+a", flags="-O1", compiler="2.19"))
    keep(run, asked("MODULE_1+b", after_s=DAY_S, flags="-O2"))
    run.refresh_from_db()

    assert (run.compiler_flags, run.compiler_version) == ("-O2", "2.19")


@pytest.mark.parametrize(
    ("path", "is_seen"),
    [
        ("s3://bucket/cache", "shared"),
        ("/fsx/cache", "shared"),
        ("/var/tmp/neuron-compile-cache", "local"),
        ("/opt/cache", "unknown"),
    ],
)
def test_a_path_shows_who_sees_it(path: str, is_seen: str) -> None:
    assert cache_kind(path) == is_seen
