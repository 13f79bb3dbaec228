"""Wait and transfer time of a step from the workers' reports."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from telemetry.ingest.lines import RefusedError
from telemetry.ingest.step_assembly import WorkerStep, assemble_steps, shared, worker_step_of
from telemetry.ingest.step_reports import StepLine, read_step_line
from telemetry.steps import PHASES, is_reported

SECONDS = st.floats(0.0, 10.0)


def piece(worker: str, collectives: list[float] | None, **shown: object) -> WorkerStep:
    usual: dict[str, object] = {
        "node": worker,
        "rank": 0,
        "stage": 0,
        "group": "",
        "n_workers": 0,
        "ended_at_s": 100.0,
        "step_s": 50.0,
    }
    return WorkerStep(worker, collectives=collectives, **usual | shown)  # type: ignore[arg-type]


def test_the_last_to_arrive_only_transfers() -> None:
    wait_s, transfer_s = shared([piece("a", [3.0]), piece("b", [1.0]), piece("c", [2.0])])

    np.testing.assert_allclose(transfer_s, [1, 1, 1])
    np.testing.assert_allclose(wait_s, [2, 0, 1])


def test_each_exchange_has_its_own_last() -> None:
    wait_s, transfer_s = shared([piece("a", [3.0, 1.0]), piece("b", [1.0, 3.0])])

    np.testing.assert_allclose(transfer_s, [2, 2])
    np.testing.assert_allclose(wait_s, [2, 2])


def test_those_who_count_differently_are_compared_as_a_whole() -> None:
    wait_s, transfer_s = shared([piece("a", [3.0, 1.0]), piece("b", [3.0])])

    np.testing.assert_allclose(transfer_s, [3, 3])
    np.testing.assert_allclose(wait_s, [1, 0])


def test_groups_wait_only_for_their_own() -> None:
    pieces = [
        piece("a", [5.0], stage=0),
        piece("b", [4.0], stage=0),
        piece("c", [2.0], stage=1),
        piece("d", [1.0], stage=1),
    ]

    np.testing.assert_allclose(shared(pieces)[0], [1, 0, 1, 0])


def test_arrivals_tell_where_clocks_agree_and_not_where_they_do_not() -> None:
    near = [piece("a", [3.0], arrivals=[10.0]), piece("b", [1.01], arrivals=[12.0])]
    off = [piece("a", [3.0], arrivals=[10.0]), piece("b", [1.0], arrivals=[99.0])]

    np.testing.assert_allclose(shared(near)[1], [1.0, 1.01])
    np.testing.assert_allclose(shared(off)[1], [1.0, 1.0])


def test_one_alone_of_many_cannot_be_split() -> None:
    assert np.isnan(shared([piece("a", [3.0], n_workers=4)])).all()
    np.testing.assert_allclose(shared([piece("a", [3.0], n_workers=1)]), [[0.0], [3.0]])


@pytest.mark.parametrize(("n_nodes", "wait_s"), [(1, 0.0), (8, 3.0)])
def test_one_alone_of_several_nodes_cannot_be_split(n_nodes: int, wait_s: float) -> None:
    phases = assemble_steps("real", {1: [piece("a", [3.0])]}, ["a"], n_nodes=n_nodes).phases

    np.testing.assert_array_equal(phases["wait_s"], [[wait_s]])
    np.testing.assert_array_equal(phases["transfer_s"], [[3.0 - wait_s]])


def test_what_no_one_reports_is_not_a_number() -> None:
    batch = assemble_steps("real", {1: [piece("a", None, step_s=2.0)]}, ["a", "b"])

    np.testing.assert_allclose(batch.phases["compute_s"], [[2.0, math.nan]])
    assert np.isnan(batch.phases["wait_s"]).all()
    assert np.isnan(batch.phases["input_s"]).all()
    np.testing.assert_allclose(batch.step_s, [2.0])
    assert np.isnan(batch.tokens).all()


@given(
    st.lists(st.tuples(SECONDS, SECONDS, SECONDS), min_size=1, max_size=8),
    st.sampled_from([0, 1, 9]),
)
def test_time_is_conserved(reported: list[tuple[float, float, float]], n_workers: int) -> None:
    """Also of one alone of many: its exchange is waiting."""
    pieces = [
        piece(f"w{i}", [exchange], input_s=input_s, checkpoint_s=saved_s, n_workers=n_workers)
        for i, (exchange, input_s, saved_s) in enumerate(reported)
    ]
    batch = assemble_steps("real", {7: pieces}, [each.worker for each in pieces])

    np.testing.assert_allclose(batch.worker_step_s, np.full((1, len(reported)), 50.0), rtol=1e-9)
    assert all((np.nan_to_num(batch.phases[phase]) >= 0).all() for phase in PHASES)


@given(st.lists(st.lists(SECONDS, min_size=3, max_size=3), min_size=2, max_size=6))
def test_it_agrees_with_the_rule_followed_literally(table: list[list[float]]) -> None:
    wait_s, transfer_s = shared([piece(f"w{i}", row) for i, row in enumerate(table)])

    for i, row in enumerate(table):
        moved = sum(min(each[k] for each in table) for k in range(3))
        assert transfer_s[i] == pytest.approx(moved)
        assert wait_s[i] == pytest.approx(sum(row) - moved)


def test_a_step_ended_when_most_clocks_say_so() -> None:
    ends = (100.0, 100.2, 400.0)
    pieces = [piece(f"w{i}", [1.0], ended_at_s=end) for i, end in enumerate(ends)]

    assert assemble_steps("real", {1: pieces}, ["w0", "w1", "w2"]).ended_at_s == [100.2]


def test_a_steps_loss_is_the_mean_over_those_who_tell_it() -> None:
    steps = {
        1: [piece("a", None, loss=2.0), piece("b", None, loss=3.0)],
        2: [piece("a", None), piece("b", None, loss=1.5)],
        3: [piece("a", None), piece("b", None)],
    }

    np.testing.assert_array_equal(
        assemble_steps("real", steps, ["a", "b"]).loss, [2.5, 1.5, np.nan]
    )
    assert assemble_steps("real", {3: steps[3]}, ["a", "b"]).reported_loss is None


def test_a_runtime_trace_shows_who_waits() -> None:
    # Of 10 s, a executes for 9 s: 1 s at barriers, 4 s in collectives, of which b needed 1 s.
    traced = [
        piece("a", None, step_s=10.0, executing_s=9.0, barrier_s=1.0, collective_trace_s=4.0),
        piece("b", None, step_s=10.0, executing_s=9.5, barrier_s=0.0, collective_trace_s=1.0),
    ]
    phases = assemble_steps("run", {1: traced}, ("a", "b")).phases

    np.testing.assert_allclose(phases["wait_s"], [[4, 0]])
    np.testing.assert_allclose(phases["transfer_s"], [[0, 0]])
    np.testing.assert_allclose(phases["other_s"], [[1.0, 0.5]])
    np.testing.assert_allclose(phases["compute_s"], [[5.0, 9.5]])


def test_what_a_hook_times_goes_before_the_trace() -> None:
    timed = [
        piece("a", [3.0], barrier_s=1.0, collective_trace_s=4.0, executing_s=9.0),
        piece("b", [1.0], barrier_s=0.0, collective_trace_s=1.0, executing_s=9.5),
    ]
    phases = assemble_steps("run", {1: timed}, ("a", "b")).phases

    np.testing.assert_allclose(phases["wait_s"], [[2, 0]])
    np.testing.assert_allclose(phases["transfer_s"], [[1, 1]])


def test_one_trace_of_a_larger_job_shows_no_wait() -> None:
    traced = [
        piece("a", None, n_workers=2, executing_s=9.0, barrier_s=1.0, collective_trace_s=4.0),
        piece("b", None, n_workers=2),
    ]

    assert np.isnan(assemble_steps("run", {1: traced}, ("a", "b")).phases["wait_s"]).all()


@pytest.mark.parametrize(
    ("losses", "shown"),
    [
        ((2.0, math.nan), "nan"),
        ((2.0, math.inf), "inf"),
        ((-math.inf, -math.inf), "-inf"),
        ((math.inf, -math.inf), "nan"),
        ((3e38, 3e38), "3e+38"),
    ],
)
def test_a_loss_that_is_not_finite_is_that_of_the_step(
    losses: tuple[float, float], shown: str
) -> None:
    pieces = [piece(name, None, loss=loss) for name, loss in zip("ab", losses, strict=True)]
    steps = {1: pieces, 2: [piece("a", None)]}

    loss = assemble_steps("real", steps, ["a", "b"]).loss

    assert str(float(loss[0])) == shown
    assert is_reported(loss).tolist() == [True, False]


@pytest.mark.parametrize(
    ("written", "loss"),
    [
        ("NaN", math.nan),
        ("nan", math.nan),
        ('"NaN"', math.nan),
        ("-nan", math.nan),
        ("Infinity", math.inf),
        ("-Infinity", -math.inf),
        ("-inf", -math.inf),
        ('"Infinity"', math.inf),
        ("1e30", 1e30),
        ("2.5", 2.5),
        ("null", None),
    ],
)
def test_a_report_may_have_a_loss_that_is_not_finite(written: str, loss: float | None) -> None:
    text = f'{{"kind": "step", "run": "r", "worker": "w", "step": 1, "loss": {written}, '
    line = read_step_line((text + '"ended_at": 1700000000, "step_s": 2}').encode())

    assert isinstance(line, StepLine)
    found = worker_step_of(line, correction_s=0.0).loss
    assert str(found) == str(loss)


@pytest.mark.parametrize("written", ["many", '"many"', "NaNs", "1e39"])
def test_any_other_loss_is_refused_by_its_name(written: str) -> None:
    text = f'{{"kind": "step", "run": "r", "worker": "w", "step": 1, "loss": {written}, '
    with pytest.raises(RefusedError) as refused:
        read_step_line((text + '"ended_at": 1700000000, "step_s": 2}').encode())

    assert written in ("many", "NaNs") or refused.value.field == "loss"


@pytest.mark.parametrize(
    ("reported", "expected"),
    [
        ((4096.0, 4096.0), 4096.0),
        ((None, 4096.0), 4096.0),
        ((16777216.0, 16777217.0), 16777216.0),
        ((4096.0, 4032.0), 9000.0),
        ((None, None), 9000.0),
    ],
)
def test_tokens_on_which_workers_differ_are_not_the_jobs(
    reported: tuple[float | None, float | None], expected: float
) -> None:
    workers = [piece(name, [1.0], tokens=n) for name, n in zip("ab", reported, strict=True)]

    assert assemble_steps("real", {1: workers}, ["a", "b"], tokens=9000.0).tokens[0] == expected
