"""The text that Prometheus reads: as its own client would write it, only faster."""

import subprocess

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics import exposition

from telemetry.collecting import FamilyCollector
from telemetry.families import Family, Spec, numbers, text
from telemetry.store.packing import decode, encode

HEAT = Spec("trnwatch_heat_ratio", "gauge", 'How "hot" it is:\nback\\slash.', ("node", "core"))
COUNT = Spec("trnwatch_things_total", "counter", "Things.")


def families(*values: float, label: str = "a") -> list[Family]:
    heat, count = Family(HEAT), Family(COUNT)
    for i, value in enumerate(values):
        heat.add(value, label, str(i))
    count.add(3)
    return [heat, Family(Spec("trnwatch_nothing", "gauge", "Nothing.")), count]


def open_metrics(found: CollectorRegistry) -> bytes:
    page: bytes = exposition.generate_latest(found)  # type: ignore[no-untyped-call]
    return page


def registry(made: list[Family]) -> CollectorRegistry:
    found = CollectorRegistry()
    found.register(FamilyCollector(made))
    return found


@given(
    st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=1, max_size=5),
    st.text(max_size=8),
)
def test_it_writes_what_the_client_writes(values: list[float], label: str) -> None:
    made = families(0.5, *values, label=label)

    assert text(made) == generate_latest(registry(made))
    assert text(made, is_open_metrics=True) == open_metrics(registry(made))


def test_what_is_absent_has_no_line() -> None:
    page = text(families(np.nan, 1.0, np.inf)).decode()

    assert page.count('trnwatch_heat_ratio{core="') == 1
    assert "trnwatch_nothing" not in page


@pytest.mark.parametrize("packing", ["ratio", "rounded", "exact"])
def test_a_number_is_written_as_finely_as_it_is_kept(packing: str) -> None:
    rng = np.random.default_rng(0)
    values = rng.uniform(0, 1, 500) if packing == "ratio" else np.exp(rng.uniform(-20, 30, 500))
    codes = encode(values, packing)

    written = np.array([float(each) for each in numbers(codes, packing)])

    np.testing.assert_allclose(written, decode(codes, packing), rtol=6e-4, atol=6e-5)


@pytest.mark.prometheus
def test_promtool_has_nothing_to_say() -> None:
    check = subprocess.run(
        ["promtool", "check", "metrics"],
        input=text(families(0.1)),
        capture_output=True,
        check=False,
    )

    assert (check.returncode, check.stdout, check.stderr) == (0, b"", b"")
