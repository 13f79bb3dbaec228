"""Compile cache lines: hits, compiles, failures and durations."""

import math

import pytest

from importers.logs import FAIL, HIT, MISS, Compile
from tests.importers.logs.log_lines import BEGAN_S, call, done, hit, read, wrapper

A, B = "MODULE_165187+d41d8cd9", "MODULE_998877+0a1b2c3d"


def compiles(*lines: str) -> list[Compile]:
    return read("\n".join(lines)).compiles


def test_a_compile_takes_from_its_call_to_its_completion() -> None:
    (event,) = compiles(call(A, seconds=1.25), ".", "Compiler status PASS", done(A, seconds=61.5))

    assert (event.module, event.outcome, event.seconds) == (A, MISS, 60.25)
    assert event.at_s == BEGAN_S + 1.25
    assert (event.graph, event.flags_hash) == ("165187", "d41d8cd9")
    assert event.flags == "--framework=XLA --target=trn1 -O1"


def test_a_hit_names_cache_and_compiler() -> None:
    (event,) = compiles(hit(A, tag="[rank5]: "))

    assert (event.outcome, event.rank) == (HIT, 5)
    assert (event.cache, event.compiler) == ("/fsx/cache", "2.15.128.0+56dc5a86")
    assert math.isnan(event.seconds)


def test_older_releases_report_the_same_in_other_fields() -> None:
    line = hit(A).replace("NEURON_CC_WRAPPER", "NCC_WRAPPER")
    (event,) = compiles(f"{line}. Exiting with a successfully compiled graph.")

    assert (event.module, event.outcome) == (A, HIT)


def test_graphs_may_be_named_by_function_and_the_cache_be_in_s3() -> None:
    text = f"Using a cached neff for jit_step from s3://team/cache/neuronxcc-2.16/{A}/model.neff"
    (event,) = compiles(wrapper(text))

    assert (event.module, event.cache, event.compiler) == (A, "s3://team/cache", "2.16")


def test_a_failed_neff_in_the_cache_is_a_failure() -> None:
    text = (
        f"Got a cached failed neff at /fsx/cache/neuronxcc-2.15/{A}/model.neff. Will skip "
        "compilation, please set --retry_failed_compilation for recompilation"
    )

    assert [event.outcome for event in compiles(wrapper(text))] == [FAIL]


def test_a_compile_that_ends_in_an_error_is_a_failure() -> None:
    events = compiles(call(A), "Compiler status ERROR", call(B, seconds=5), done(B, seconds=7))

    assert [(e.module, e.outcome) for e in events] == [(A, FAIL), (B, MISS)]
    assert math.isnan(events[0].seconds)


def test_processes_compile_side_by_side() -> None:
    events = compiles(
        call(A, seconds=0, pid=1),
        call(B, seconds=1, pid=2),
        "Compiler status PASS",
        done(B, seconds=11, pid=2),
        done(A, seconds=30, pid=1),
    )

    assert [(e.module, e.seconds) for e in events] == [(B, 10.0), (A, 30.0)]


def test_ranks_on_other_machines_may_have_the_same_process_number() -> None:
    events = compiles(
        call(A, tag="[rank0]: "),
        call(A, seconds=2, tag="[rank1]: "),
        done(A, seconds=10, tag="[rank1]: "),
        done(A, seconds=20, tag="[rank0]: "),
    )

    assert [(e.rank, e.seconds) for e in events] == [(1, 8.0), (0, 20.0)]


def test_releases_that_only_say_pass_have_compiles_without_length() -> None:
    events = compiles(call(A), ".", "Compiler status PASS", call(B), "Compiler status PASS")

    assert [(e.module, e.outcome) for e in events] == [(A, MISS), (B, MISS)]
    assert all(math.isnan(event.seconds) for event in events)


def test_a_compile_without_an_end_is_one_all_the_same() -> None:
    assert [e.outcome for e in compiles(call(A))] == [MISS]


def test_an_end_without_a_beginning_is_a_compile_of_unknown_length() -> None:
    (event,) = compiles(done(A, seconds=5))

    assert (event.module, event.outcome) == (A, MISS)
    assert math.isnan(event.seconds)


def test_a_clock_set_back_gives_no_length() -> None:
    (event,) = compiles(call(A, seconds=50), done(A, seconds=10))

    assert math.isnan(event.seconds)


def test_the_cache_path_is_reported_once_for_all() -> None:
    path = wrapper("Compile cache path: /var/tmp/cache").replace("CC_WRAPPER", "CACHE")
    events = compiles(path, call(A), done(A))

    assert [event.cache for event in events] == ["/var/tmp/cache"]


def test_what_else_the_wrapper_states_is_understood_and_no_event() -> None:
    log = read(
        wrapper("Current remaining items are 5, locked are 0, failed are 0, done are 0")
        + "\n2026-05-01 12:00:00.000001:  1  INFO ||NEURON_PARALLEL_COMPILE||: Total graphs: 2"
    )

    assert (log.compiles, log.understood["compile cache"]) == ([], 2)


def test_very_many_events_are_counted_beyond_what_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("importers.logs.reading.MAX_COMPILES", 3)
    log = read("\n".join(hit(A, pid=n) for n in range(5)))

    assert (len(log.compiles), log.n_left_out) == (3, 2)
