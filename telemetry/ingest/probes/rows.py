"""Rows of a probe's output, in bytes, seconds and bytes per second."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isnan, nan

NCCOM, NCCL, PINGPONG = "nccom-test", "nccl-tests", "fi_pingpong"


@dataclass(frozen=True, slots=True)
class Row:
    """One size that was measured; NaN and None where the probe does not say.

    Parameters
    ----------
    size_bytes : bytes of a message, or of a collective's buffer
    time_s : seconds of one transfer or collective, the mean
    algbw_bytes_per_s : bytes over time
    busbw_bytes_per_s : the same, with the factor that makes operations comparable
    n_errors : wrong elements, None where nothing was checked
    element : type of an element, as the probe names it
    algorithm : how a collective was done, as the probe names it
    in_place : whether a collective wrote over what it read; None where that means nothing
    is_warm_up : whether the row includes setting up the connection, and should not be judged
    percentiles_s : seconds by percentile, 50 for the median
    """

    size_bytes: float
    time_s: float = nan
    algbw_bytes_per_s: float = nan
    busbw_bytes_per_s: float = nan
    n_errors: int | None = None
    element: str = ""
    algorithm: str = ""
    in_place: bool | None = None
    is_warm_up: bool = False
    percentiles_s: Mapping[int, float] = field(default_factory=dict)

    @property
    def is_measured(self) -> bool:
        """Whether there is a time to judge."""
        return not isnan(self.time_s)


@dataclass(frozen=True, slots=True)
class Failure:
    """What a probe says went wrong, and at which size, NaN where it was not at one."""

    text: str
    size_bytes: float = nan


@dataclass(slots=True)
class Probe:
    """What one output holds; ``tool`` is empty where no table was found.

    ``n_lines`` that are neither row nor failure nor known words count as ``n_skipped``;
    ``skipped`` are the first of them with their line numbers.
    """

    tool: str = ""
    rows: list[Row] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    mean_busbw_bytes_per_s: float = nan
    n_wrong: int | None = None
    n_lines: int = 0
    n_skipped: int = 0
    skipped: list[tuple[int, str]] = field(default_factory=list)

    @property
    def is_sound(self) -> bool:
        """Whether there are rows, none has wrong elements, and nothing failed."""
        is_right = not self.n_wrong and not any(row.n_errors for row in self.rows)
        return bool(self.rows) and not self.failures and is_right
