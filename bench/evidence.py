"""False alarms and delays of the sequential test on recorded step times.

The folder holds MANIFEST.csv (name, label, config, k, hours) and NAME.csv (step, step_s) of each
series. The CUSUM of the first study of these series is measured beside the test.
"""

import csv
import os
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.table import print_table
from telemetry.blocks import FloatArray
from telemetry.evidence import student
from telemetry.evidence.noise import BoolArray, IntArray
from telemetry.evidence.sequential import YEAR_S, EvidenceTest

# The aim: one false alarm in 100 run-days. Each run has the budget for itself.
FALSE_PER_YEAR = YEAR_S / (100 * 86400)
SHIFTS = (0.03, 0.05, 0.10, 0.20)
N_PLACES = 6
# A shift lasts as long; not found by then is missed.
WINDOW = 100
# The agent reports every five seconds.
REPORT_S = 5.0
# A value is at least as long, as the agent's samples are.
TICK_S = 1.0
# Classes of noise: robust relative scatter of detrended values, below the limit.
CLASSES = ((0.003, "below 0.3 %"), (0.01, "0.3 to 1 %"), (0.03, "1 to 3 %"), (np.inf, "above 3 %"))
# A level that stays half of the smallest size higher has really changed.
REAL_CHANGE = 0.015
HALVES = ("develop", "held-out")
FIRST_OF_LINE = 330


@dataclass(frozen=True, slots=True)
class Series:
    name: str
    label: str
    values: FloatArray  # seconds per step, by tick
    at_s: FloatArray
    n_steps: FloatArray
    scale: float  # of Student's distribution, detrended
    df: float
    scatter: float

    @property
    def tick_s(self) -> float:
        return float(self.at_s[-1] / len(self.at_s))

    @property
    def noise_class(self) -> str:
        return next(name for limit, name in CLASSES if self.scatter < limit)


@dataclass(frozen=True, slots=True)
class Opened:
    """An alert of one member of a series: ticks of its opening and onset, estimated size."""

    series: int
    member: int
    at: int
    onset: int
    shift: float


@dataclass(frozen=True, slots=True)
class Played:
    """Which values were tested and which belong to an alert, (n_ticks, n_series), and alerts."""

    tested: BoolArray
    is_open: BoolArray
    alerts: list[Opened]


def measure(env: Mapping[str, str], *, folder: str = "", half: str = "held-out") -> dict[str, Any]:
    """Replay the recorded series of a half, without and with injected shifts."""
    series = read(recordings(folder, env), half)
    played = replay(series, None)
    places, factor = injections(series, played)
    chosen = np.flatnonzero(places[:, 0] >= 0)
    subset = [series[index] for index in chosen]
    shifted = replay(subset, factor[:, chosen])
    line, line_shifted = replay_line(series, None), replay_line(subset, factor[:, chosen])
    places = places[chosen]
    # The line needs 330 values before it tests.
    by_both = places >= FIRST_OF_LINE
    figures = {
        "half": half,
        "calm": calm(series, played),
        "shifts": rows(subset, delays(shifted.alerts, places), places >= 0),
        "shifts_where_line_tests": rows(subset, delays(shifted.alerts, places), by_both),
        "line_calm": calm(series, line),
        "line_shifts": rows(subset, delays(line_shifted.alerts, places), by_both),
    }
    _print(figures)
    return {"bench": "evidence"} | figures


def recordings(folder: str, env: Mapping[str, str], *, option: str = "--folder") -> Path:
    """Return the folder of recorded step times that is given, or that the environment names."""
    name = "TRNWATCH_STEP_TIMES"
    given = folder or env.get(name, "") or os.environ.get(name, "")
    if not given or not (Path(given) / "MANIFEST.csv").is_file():
        raise SystemExit(
            f"{option}: {given!r} holds no MANIFEST.csv. Give the folder of recorded step times,"
            " or set TRNWATCH_STEP_TIMES."
        )
    return Path(given)


def read(folder: Path, half: str) -> list[Series]:
    """Read the series of one half; repeats of a configuration are in the same half."""
    with (folder / "MANIFEST.csv").open() as file:
        rows = [
            row
            for row in csv.DictReader(file)
            if half == "all" or HALVES[zlib.crc32(row["config"].encode()) % 2] == half
        ]
    series = (_read_one(folder / f"{row['name']}.csv", row) for row in rows)
    return [each for each in series if each is not None]


def _read_one(path: Path, row: Mapping[str, str]) -> Series | None:
    recorded = np.genfromtxt(path, delimiter=",", names=True)
    step, step_s = np.atleast_1d(recorded["step"]), np.atleast_1d(recorded["step_s"])
    each = max(1, int(np.ceil(TICK_S / (float(row["k"]) * np.nanmedian(step_s)))))
    n = len(step_s) // each
    if n < 2:
        return None
    values = step_s[: n * each].reshape(n, each).mean(axis=1)
    passed = np.cumsum(values)
    at_s = passed / passed[-1] * float(row["hours"]) * 3600
    steps = np.maximum(np.diff(step[: n * each : each], prepend=step[0]), 1.0)
    residual = detrended(np.log(values))
    df, scale = fit(residual)
    scatter = float(1.4826 * np.median(np.abs(residual)))
    return Series(row["name"], row["label"], values, at_s, steps, scale, df, scatter)


def detrended(x: FloatArray, width: int = 101) -> FloatArray:
    """Take the running median off."""
    width = min(width, len(x) // 2 * 2 - 1)
    padded = np.pad(x, width // 2, mode="reflect")
    windows = np.lib.stride_tricks.sliding_window_view(padded, width)
    return np.asarray(x - np.median(windows, axis=1))


def fit(residual: FloatArray) -> tuple[float, float]:
    """Fit Student's distribution: scale by EM for each number of degrees, the likeliest of them.

    References
    ----------
    K. Lange, R. Little, J. Taylor, JASA 84 (1989), 881-896.
    """
    df = student.DEGREES[:, None]
    scale = np.full_like(df, max(float(np.median(np.abs(residual))), 1e-5))
    for _ in range(50):
        weight = (df + 1) / (df + (residual / scale) ** 2)
        mean_square = np.mean(weight * residual**2, axis=1, keepdims=True)
        scale = np.maximum(np.sqrt(mean_square), 1e-5)
    peak = np.log(student.density_of(df) / scale)
    likelihood = np.mean(peak - (df + 1) / 2 * np.log1p((residual / scale) ** 2 / df), axis=1)
    best = int(np.argmax(likelihood))
    return float(student.DEGREES[best]), float(scale[best, 0])


def replay(series: Sequence[Series], factor: FloatArray | None) -> Played:
    """Play all series at once; `factor` is (n_ticks, n_series, 1, n_members), 1 without a shift.

    Tested and open values are those of the first member.
    """
    values, at_s, n_steps = (
        _stacked([getattr(each, name) for each in series])[..., None, None]
        for name in ("values", "at_s", "n_steps")
    )
    looks = np.array([YEAR_S / each.tick_s for each in series])[:, None, None]
    shape = (len(series), 1, 1 if factor is None else factor.shape[-1])
    test = EvidenceTest(shape, looks_per_year=looks, false_per_year=FALSE_PER_YEAR)
    tested, is_open = np.zeros((2, len(values), len(series)), bool)
    alerts = []
    for tick, value in enumerate(values):
        block = np.broadcast_to(value if factor is None else value * factor[tick], shape)
        found = test.update(block, at_s[tick], n_steps=n_steps[tick])
        tested[tick] = found.tested[:, 0, 0]
        is_open[tick] = (found.is_open | found.ended)[:, 0, 0]
        for index, _, member in np.argwhere(found.opened):
            onset = int(
                np.searchsorted(series[index].at_s, float(found.onset_s[index, 0, member]))
            )
            shift = float(found.shift[index, 0, member])
            alerts.append(Opened(int(index), int(member), tick, onset, shift))
    return Played(tested, is_open, alerts)


def _stacked(rows: Sequence[FloatArray]) -> FloatArray:
    """Put series side by side, (n_ticks, n_series), NaN after the end of each."""
    n = max(len(row) for row in rows)
    padded = [np.pad(row, (0, n - len(row)), constant_values=np.nan) for row in rows]
    return np.stack(padded, axis=1)


def replay_line(series: Sequence[Series], factor: FloatArray | None) -> Played:
    """Play the line to beat: Student CUSUM, df 3, scale floor 1 %, shift +5 %, 30 nats.

    Its baseline is the median and the median distance of the 300 values that ended 30 ago, of the
    series without a shift; alarms within 300 values of the one before belong to it.
    """
    values = _stacked([each.values for each in series])
    at_s = _stacked([each.at_s for each in series])
    reference, scale = np.full((2, *values.shape), np.nan)
    for row, each in enumerate(series):
        for tick in range(FIRST_OF_LINE, len(each.values), 10):
            past = each.values[tick - 330 : tick - 30]
            usual = np.median(past)
            distance = 0.9 * 1.4826 * np.median(np.abs(past - usual))
            reference[tick : tick + 10, row] = usual
            scale[tick : tick + 10, row] = max(distance / usual, 0.01)
    members = 1 if factor is None else factor.shape[-1]
    nats = np.zeros((len(series), members))
    last = np.full((len(series), members), -300)
    onset = np.zeros((len(series), members), int)
    tested = np.isfinite(values / reference) & (at_s >= 900)
    alerts = []
    for tick in range(len(values)):
        rise = (values[tick] / reference[tick])[:, None] - 1
        if factor is not None:
            rise = (1 + rise) * factor[tick, :, 0] - 1
        spread = scale[tick][:, None]
        gain = 2 * np.log((3 + (rise / spread) ** 2) / (3 + ((rise - 0.05) / spread) ** 2))
        onset = np.where(nats > 0, onset, tick)
        nats = np.maximum(nats + np.where(tested[tick][:, None], gain, 0.0), 0.0)
        for index, member in np.argwhere(nats >= 30.0):
            if tick - last[index, member] >= 300:
                at = int(onset[index, member])
                alerts.append(Opened(int(index), int(member), tick, at, 0.05))
            last[index, member] = tick
        nats[nats >= 30.0] = 0.0
    return Played(tested, np.zeros_like(tested), alerts)


def calm(series: Sequence[Series], played: Played) -> dict[str, dict[str, Any]]:
    """Count alerts without an injected shift, by label; lasting changes of the level apart."""
    days = [
        count * each.tick_s / 86400
        for count, each in zip(played.tested.sum(axis=0), series, strict=True)
    ]
    labels: dict[str, dict[str, Any]] = {}
    for label in sorted({each.label for each in series}):
        of_label = {index for index, each in enumerate(series) if each.label == label}
        found = [alert for alert in played.alerts if alert.series in of_label]
        listed = [
            {
                "series": series[alert.series].name,
                "at": alert.at,
                "shift": alert.shift,
                "lasting": lasting_change(series[alert.series].values, alert.onset),
            }
            for alert in found
        ]
        n_false = sum(
            lasting_change(series[alert.series].values, alert.onset) < REAL_CHANGE
            for alert in found
        )
        n_days = float(sum(days[index] for index in of_label))
        labels[label] = {
            "series": len(of_label),
            "run_days": n_days,
            "false": n_false,
            "changed": len(found) - n_false,
            "false_per_100_run_days": 100 * n_false / n_days if n_days else None,
            "alerts": listed,
        }
    return labels


def lasting_change(values: FloatArray, onset: int) -> float:
    """Compare the median of 30 values from the onset with that of the 100 before it."""
    before, after = values[max(onset - 100, 0) : onset], values[onset : onset + 30]
    return float(np.median(after) / np.median(before) - 1)


def injections(series: Sequence[Series], played: Played) -> tuple[IntArray, FloatArray]:
    """Choose random places among tested values without an alert; -1 where there is none."""
    rng = np.random.default_rng(1)
    n_members = N_PLACES * len(SHIFTS)
    factor = np.ones((len(played.tested), len(series), 1, n_members), np.float32)
    places = np.full((len(series), N_PLACES), -1)
    for index, each in enumerate(series):
        possible = [
            tick
            for tick in np.flatnonzero(played.tested[:, index])
            if tick + WINDOW <= len(each.values)
            and not played.is_open[tick : tick + WINDOW, index].any()
        ]
        if not possible:
            continue
        places[index] = rng.choice(possible, N_PLACES)
        for member in range(n_members):
            first = places[index, member // len(SHIFTS)]
            factor[first : first + WINDOW, index, 0, member] += SHIFTS[member % len(SHIFTS)]
    return places, factor


def delays(alerts: Iterable[Opened], places: IntArray) -> FloatArray:
    """Ticks to the first alert in the window, (n_series, n_places, n_shifts); infinite if none."""
    found = np.full((*places.shape, len(SHIFTS)), np.inf)
    for alert in alerts:
        place, shift = divmod(alert.member, len(SHIFTS))
        ticks = alert.at - places[alert.series, place] + 1
        if 1 <= ticks <= WINDOW:
            found[alert.series, place, shift] = min(found[alert.series, place, shift], ticks)
    return found


def rows(series: Sequence[Series], ticks: FloatArray, chosen: BoolArray) -> list[dict[str, Any]]:
    """Summarise delays by class of noise and shift."""
    return [
        _row(series, ticks, chosen & of_class[:, None], name, which)
        for name in (*(name for _, name in CLASSES), "all")
        for of_class in [np.array([name in {"all", each.noise_class} for each in series])]
        for which in range(len(SHIFTS))
        if (chosen & of_class[:, None]).any()
    ]


def _row(
    series: Sequence[Series], all_ticks: FloatArray, chosen: BoolArray, name: str, which: int
) -> dict[str, Any]:
    index = np.nonzero(chosen)[0]
    ticks = all_ticks[chosen, which]
    tick_s = np.array([each.tick_s for each in series])[index]
    bounds = np.array([bound_ticks(each, SHIFTS[which]) for each in series])[index]
    waited = REPORT_S + ticks * tick_s
    found = np.isfinite(ticks)
    return {
        "noise": name,
        "shift": SHIFTS[which],
        "series": int(chosen.any(axis=1).sum()),
        "injected": int(ticks.size),
        "noticed": float(np.mean(found)),
        "noticed_in_4_bounds": float(np.mean(waited <= REPORT_S + tick_s * (4 * bounds + 1))),
        "delay_ticks": _median(ticks),
        "bound_ticks": _median(bounds),
        "delay_over_bound": _median(waited / (REPORT_S + tick_s * (bounds + 1))),
    }


def _median(x: FloatArray) -> float | None:
    """None if half or more was not found: a median is no figure then."""
    middle = float(np.median(x))
    return middle if np.isfinite(middle) else None


def bound_ticks(series: Series, shift: float) -> float:
    """Lorden's bound with the noise of the whole series, taken as independent."""
    level = np.log(YEAR_S / series.tick_s / FALSE_PER_YEAR)
    return float(level / student.divergence(np.log1p(shift), series.scale, series.df))


def _print(figures: Mapping[str, Any]) -> None:
    for title, kind in (("Nothing injected", "calm"), ("The same, line to beat", "line_calm")):
        print_table(
            f"{title} ({figures['half']})",
            (
                (
                    label,
                    f"{row['series']:3} series, {row['run_days']:5.1f} run-days:"
                    f" {row['false']} false, {row['changed']} lasting changes",
                )
                for label, row in figures[kind].items()
            ),
        )
    for title, kind in (
        ("Injected", "shifts"),
        ("Injected where the line tests too", "shifts_where_line_tests"),
        ("The same, line to beat", "line_shifts"),
    ):
        print_table(title, ((_named(row), _written(row)) for row in figures[kind]))


def _named(row: Mapping[str, Any]) -> str:
    return f"{row['noise']}, +{row['shift']:.0%}"


def _written(row: Mapping[str, Any]) -> str:
    delay, ratio = (
        "  none" if row[key] is None else f"{row[key]:6.2f}"
        for key in ("delay_ticks", "delay_over_bound")
    )
    return (
        f"{row['series']:3} series, noticed {row['noticed']:4.0%}, in 4 bounds"
        f" {row['noticed_in_4_bounds']:4.0%}, delay {delay} values, bound"
        f" {row['bound_ticks']:6.2f}, ratio {ratio}"
    )
