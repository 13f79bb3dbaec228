"""Devices that no longer report while others of their node do."""

import json

import numpy as np
import pytest

from telemetry.blocks import FloatArray, Span
from telemetry.detect import find, missing_devices
from telemetry.detect.node_errors import ECC_METRICS, whole_nodes
from tests.telemetry.detect.runs import inputs, steps_at

AGES_S = np.array([600, 120, 30, 15, 0])
NOW, N_DEVICES = 10_000, 16


def counts(*missing: set[int] | None) -> Span:
    """ECC counts of two nodes at the moments that are read; None: no report of the second."""
    values = np.zeros((len(missing), 2, N_DEVICES))
    for row, devices in enumerate(missing):
        values[row, 1, list(range(N_DEVICES) if devices is None else devices)] = np.nan
    ticks = NOW - AGES_S[-len(missing) :]
    return Span("s", ticks, ("steady", "hot"), {ECC_METRICS[0]: values})


def test_a_device_that_no_longer_reports_is_named() -> None:
    (finding,) = missing_devices(counts(set(), set(), set(), {9}, {9}), run="llama")

    assert (finding.rule, finding.cause) == ("device_missing", "device_missing")
    assert (finding.node, finding.device, finding.severity) == ("hot", 9, "page")
    assert finding.onset_s == NOW - 30
    figures = finding.evidence["n_reporting"], finding.evidence["n_devices"]
    assert figures == (15, 16)
    assert json.loads(json.dumps(finding.evidence, allow_nan=False)) == finding.evidence


def test_several_devices_are_one_finding() -> None:
    (finding,) = missing_devices(counts(set(), set(), {3, 9}, {3, 9}, {3, 9}))

    assert (finding.device, finding.evidence["devices"]) == (None, [3, 9])
    # Nothing runs there.
    assert finding.severity == "warn"


@pytest.mark.parametrize(
    "missing",
    [
        (set(), set(), set(), set(), set()),
        # One report lacks a part of its values.
        (set(), set(), set(), set(), {9}),
        (set(), set(), {9}, set(), {9}),
        # It is back.
        (set(), {9}, {9}, {9}, set()),
        # The node does not report at all, or began to.
        (set(), set(), None, None, None),
        (None, None, None, {9}, {9}),
        # The device never reported.
        ({9}, {9}, {9}, {9}, {9}),
    ],
)
def test_what_is_no_missing_device(missing: tuple[set[int] | None, ...]) -> None:
    assert missing_devices(counts(*missing)) == []


def test_moments_between_two_reports_do_not_count() -> None:
    assert missing_devices(counts(set(), set(), None, {9}, None)) == []
    (finding,) = missing_devices(counts(set(), {9}, None, {9}, None))
    assert finding.device == 9


def test_exporters_that_count_for_the_node_have_no_devices() -> None:
    whole: FloatArray = np.full((5, 1, N_DEVICES), np.nan)
    whole[:, :, 0] = 3.0
    span = Span("s", NOW - AGES_S, ("hot",), {ECC_METRICS[0]: whole})

    assert missing_devices(span) == []
    assert missing_devices(Span("s", NOW - AGES_S, ("hot",), {})) == []


def test_only_a_whole_node_ends_its_alert() -> None:
    assert whole_nodes(counts(*[{9}] * 5)) == ["steady"]
    assert whole_nodes(counts({9}, {9}, {9}, {9}, set())) == ["steady", "hot"]
    assert whole_nodes(counts(None, None, None, None, None)) == ["steady"]


def test_find_looks_for_them() -> None:
    (finding,) = find(inputs(steps_at([0.1] * 9), counts=counts(set(), set(), {9}, {9}, {9})))

    assert finding.rule == "device_missing"
