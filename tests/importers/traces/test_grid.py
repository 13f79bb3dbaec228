"""Laying a trace out: what is not whole is left out, what makes no sense is refused."""

from dataclasses import replace

import numpy as np
import pytest

from importers.traces.trace import BoolArray, Trace, TraceError, is_kind
from importers.traces.trace_graph import grid_of
from importers.traces.what_if import analyse_trace
from tests.importers.made_traces import Job

COLUMNS = Trace.__slots__[:10]


def where(trace: Trace, rows: BoolArray) -> Trace:
    return Trace(**{name: getattr(trace, name)[rows] for name in COLUMNS})


def test_a_step_that_was_cut_off_is_left_out(limping: Trace) -> None:
    cut = where(limping, (limping.step < 2) | (limping.start_s < 5.0))
    grid = grid_of(cut)

    assert grid.steps.tolist() == [0, 1]
    assert grid.n_left_out == 1
    assert grid.n_missing == 0


def test_tensor_parallel_ranks_are_one_worker() -> None:
    alone, together = (analyse_trace(Job(tp=tp, noise=0.1).trace(), run="x") for tp in (1, 4))

    assert together.grid.n_workers == alone.grid.n_workers == 16
    assert together.found.real_s == pytest.approx(alone.found.real_s)


def test_nothing_at_all_is_refused(limping: Trace) -> None:
    with pytest.raises(TraceError, match="holds no operation"):
        grid_of(where(limping, np.zeros(len(limping), bool)))


def test_a_worker_that_was_not_recorded_is_named(limping: Trace) -> None:
    seen = (limping.dp != 1) | (limping.stage != 3)

    with pytest.raises(TraceError, match="replica 1, stage 3"):
        grid_of(where(limping, seen))


def test_orders_that_contradict_each_other_are_refused(limping: Trace) -> None:
    early = is_kind(limping.kind, "backward-compute", "backward-recv") & (limping.stage == 0)
    backwards = replace(limping, start_s=limping.start_s - 1e3 * early)

    with pytest.raises(TraceError, match="circle"):
        analyse_trace(backwards, run="x")


def test_where_each_step_begins_does_not_matter(limping: Trace) -> None:
    later = replace(limping, start_s=limping.start_s + 1e6 * limping.step)

    first, second = (analyse_trace(trace, run="x").found for trace in (limping, later))
    assert first.real_s == pytest.approx(second.real_s, rel=1e-6)


def test_numbers_with_gaps_that_would_fill_the_memory_are_refused(limping: Trace) -> None:
    wide = replace(limping, dp=limping.dp * 3_000_000, stage=limping.stage * 3_000_000)

    with pytest.raises(TraceError, match="must count on from 0"):
        grid_of(wide)


def test_steps_that_have_nothing_in_common_are_refused(limping: Trace) -> None:
    many = np.repeat(np.arange(100), len(limping))
    columns = {name: np.tile(getattr(limping, name), 100) for name in COLUMNS}
    apart = Trace(**columns | {"step": many, "seq": columns["seq"] + 100 * many})

    with pytest.raises(TraceError, match="next to nothing in common"):
        grid_of(apart)
