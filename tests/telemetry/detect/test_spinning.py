"""GPUs whose cores spin while they wait: busy as can be, and they hang all the same."""

import numpy as np

from telemetry.blocks import FloatArray, Span
from telemetry.detect.inputs import DetectionInput
from telemetry.detect.stopped import hang
from tests.telemetry.detect.runs import CHARACTERS, inputs, steps_at


def spinning(
    *cores: float,
    hosts: tuple[float, ...] = (0.1,),
    moved: float = 0.0,
    overdue_s: float = 12,
    rests_s: float = np.inf,
) -> DetectionInput:
    """Return GPUs that ended no step for so long: each node's cores, and what memory moves now.

    It moves no more than that in the newest ``rests_s``.
    """
    steps = steps_at([0.1] * 9, n_workers=len(cores))
    ended_s = float(steps.ended_at_s[-1])
    now_s = float(np.ceil(ended_s + overdue_s))
    names = CHARACTERS[: len(cores)]

    def span(ticks: FloatArray) -> Span:
        waits = ticks > ended_s
        busy = np.where(waits[:, None], np.array(cores), 0.9)
        traffic = np.where(waits & (ticks > now_s - rests_s), moved, 1e12)[:, None] * np.ones(
            len(cores)
        )
        values = {
            "core_utilization_ratio": np.repeat(busy[..., None], 8, axis=2),
            "vcpu_usage_ratio": np.broadcast_to(
                np.resize(hosts, len(cores))[:, None], (len(ticks), len(cores), 1)
            ),
            "hbm_bandwidth_bytes_per_s": np.repeat(traffic[..., None], 8, axis=2),
            # No step needs these links.
            "efa_tx_bytes_per_s": np.full((len(ticks), len(cores), 4), 2e3),
        }
        return Span("llama/0", ticks.astype(int), names, values)

    return inputs(
        steps,
        lambda _, last_s: span(now_s - np.arange(last_s)[::-1]),
        hardware_at=lambda _, ages_s: span(now_s - np.array(ages_s)),
        now_s=now_s,
    )


def test_cores_that_spin_in_a_collective_do_not_hide_a_hang() -> None:
    (found,) = hang(spinning(1.0, 0.02, 1.0, 1.0))
    assert (found.cause, found.node) == ("hang", "limping")
    assert set(found.victims) == {"steady", "calm", "quiet"}


def test_cores_that_spin_everywhere_hang_without_a_culprit_after_some_patience() -> None:
    assert hang(spinning(1.0, 1.0, 1.0, 1.0)) == []
    (found,) = hang(spinning(1.0, 1.0, 1.0, 1.0, overdue_s=40))
    assert (found.cause, found.node) == ("unknown", None)


def test_of_a_pair_the_one_whose_host_and_cores_rest_did_not_join() -> None:
    (found,) = hang(spinning(1.0, 0.02, hosts=(0.1, 0.02)))
    assert (found.cause, found.node) == ("hang", "limping")
    assert hang(spinning(1.0, 0.02)) == []


def test_a_second_between_two_steps_in_which_nothing_moves_is_no_hang() -> None:
    assert hang(spinning(1.0, 1.0, 1.0, 1.0, overdue_s=60, rests_s=1)) == []
    assert hang(spinning(1.0, 1.0, 1.0, 1.0, overdue_s=60, rests_s=3))


def test_cores_that_compute_a_long_step_do_not_hang() -> None:
    assert hang(spinning(1.0, 1.0, 1.0, 1.0, moved=5e11, overdue_s=60)) == []
    assert hang(spinning(1.0, 0.1, 0.1, 0.1, overdue_s=40)) == []


def test_cores_that_are_as_busy_as_can_be_for_very_long_hang_all_the_same() -> None:
    assert hang(spinning(1.0, 1.0, 1.0, 1.0, moved=5e11, overdue_s=599)) == []
    (found,) = hang(spinning(1.0, 1.0, 1.0, 1.0, moved=5e11, overdue_s=620))
    assert (found.rule, found.cause) == ("hang", "unknown")
