"""Node charts: counters that come in bursts are averaged over ten seconds."""

import numpy as np

from fleet.charts.nodes import rolling
from telemetry.series import Series

NAN = float("nan")


def series(*values: float, every_s: int = 1) -> Series:
    column = np.array(values)[:, None]
    return Series("efa_retransmits_per_s", np.arange(len(values)) * every_s, column, every_s)


def test_a_picket_fence_becomes_its_mean() -> None:
    fence = series(*[0.0, 10.0] * 20)

    np.testing.assert_allclose(rolling(fence, over_s=10).values[9:, 0], 5.0)


def test_the_first_seconds_are_averaged_over_what_there_is() -> None:
    np.testing.assert_allclose(rolling(series(6.0, 0.0, 3.0), over_s=10).values[:, 0], [6, 3, 3])


def test_a_gap_stays_a_gap_and_counts_for_nothing() -> None:
    smooth = rolling(series(4.0, NAN, 8.0), over_s=10).values[:, 0]

    np.testing.assert_allclose(smooth, [4.0, NAN, 6.0])


def test_minutes_stay_as_they_are() -> None:
    minutes = series(1.0, 5.0, every_s=60)

    assert rolling(minutes, over_s=10) is minutes
