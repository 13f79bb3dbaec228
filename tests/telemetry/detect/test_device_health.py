"""Unhealthy devices: the newest state of each counts, for as long as it stands."""

import json

import numpy as np
import pytest

from telemetry.blocks import FloatArray, Span
from telemetry.detect import find, unhealthy_devices
from telemetry.detect.node_errors import HEALTH, STATE_S, device_health
from tests.telemetry.detect.runs import inputs, steps_at

NAN = np.nan
AGES_S = np.array([600, 120, 30, 15, 0])
NOW = 10_000


def states(*moments: FloatArray) -> Span:
    """The states of two nodes with three devices at the newest of the ages that are read."""
    ticks = NOW - AGES_S[-len(moments) :]
    return Span("s", ticks, ("steady", "hot"), {HEALTH: np.array(moments)})


def node(*devices: float) -> FloatArray:
    """The states of all devices: the first node is healthy."""
    return np.array([[0.0] * 3, devices])


def test_healthy_devices_and_unknown_ones_are_no_finding() -> None:
    assert unhealthy_devices(states(node(0, 0, 0))) == []
    assert unhealthy_devices(states(node(NAN, NAN, NAN))) == []
    assert unhealthy_devices(Span("s", np.array([NOW]), ("hot",), {})) == []


def test_an_unhealthy_device_is_named() -> None:
    (finding,) = unhealthy_devices(states(node(0, 0, 0), node(0, 1, NAN)), run="llama")
    assert (finding.rule, finding.cause) == ("device_unhealthy", "device_unhealthy")
    assert (finding.node, finding.device, finding.run) == ("hot", 1, "llama")
    assert (finding.severity, finding.onset_s) == ("page", NOW)
    assert (finding.evidence["devices"], finding.evidence["n_devices"]) == ([1], 3)
    assert json.loads(json.dumps(finding.evidence, allow_nan=False)) == finding.evidence


def test_several_devices_of_a_node_are_one_finding() -> None:
    (finding,) = unhealthy_devices(states(node(1, 0, 1)))
    assert (finding.device, finding.evidence["devices"]) == (None, [0, 2])
    # Nothing runs there.
    assert finding.severity == "warn"


@pytest.mark.parametrize(
    ("moments", "device"),
    [
        ([node(0, 0, 1), node(NAN, NAN, NAN)], 2),
        ([node(0, 0, 1), node(0, 0, 0)], None),
        ([node(0, 0, 1), node(NAN, NAN, 0), node(NAN, NAN, NAN)], None),
        ([node(0, 0, 1), node(0, NAN, NAN), node(NAN, NAN, NAN)], 2),
    ],
)
def test_the_newest_state_of_each_device_counts(
    moments: list[FloatArray], device: int | None
) -> None:
    found = unhealthy_devices(states(*moments))
    assert [finding.device for finding in found] == ([] if device is None else [device])


def test_a_state_is_valid_for_two_minutes() -> None:
    def after(age_s: float) -> Span:
        ticks = np.array([NOW - age_s, NOW])
        values = np.array([node(0, 0, 1), np.full((2, 3), NAN)])
        return Span("s", ticks, ("steady", "hot"), {HEALTH: values})

    assert len(unhealthy_devices(after(STATE_S))) == 1
    assert unhealthy_devices(after(STATE_S + 1)) == []
    assert np.isnan(device_health(after(STATE_S + 1))).all()


def test_find_looks_at_the_states_it_is_given() -> None:
    (finding,) = find(inputs(steps_at([0.1] * 9), counts=states(node(1, 0, 0))))
    assert finding.rule == "device_unhealthy"
