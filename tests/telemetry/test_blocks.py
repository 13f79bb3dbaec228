"""Joining spans of blocks, also empty ones."""

import numpy as np

from telemetry.blocks import Span

NODES = ("steady", "limping")


def span(tick: int, n_parts: int, nodes: tuple[str, ...] = NODES) -> Span:
    """Return one second of a metric with so many parts, all of them 0.5."""
    values = {"core_utilization_ratio": np.full((1, len(nodes), n_parts), 0.5)}
    return Span("llama/0", np.array([tick]), nodes, values)


def test_a_second_of_which_nothing_is_stored_is_no_obstacle() -> None:
    joined = Span.join_times([span(1, 0), span(2, 3)])

    assert joined is not None
    assert list(joined.ticks) == [1, 2]
    reported = joined.values["core_utilization_ratio"]
    assert reported.shape == (2, 2, 3)
    assert np.isnan(reported[0]).all()
    assert (reported[1] == 0.5).all()


def test_nodes_of_which_nothing_is_stored_stand_next_to_others() -> None:
    joined = Span.join_nodes([span(1, 3), span(1, 0, ("mute",))])

    reported = joined.values["core_utilization_ratio"]
    assert joined.nodes == (*NODES, "mute")
    assert (reported[:, :2] == 0.5).all()
    assert np.isnan(reported[:, 2]).all()


def test_no_span_is_none() -> None:
    assert Span.join_times([]) is None
