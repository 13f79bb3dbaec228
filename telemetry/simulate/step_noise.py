"""How steps of a healthy run vary, as measured on public runs: docs/physics.md has the sources.

A run draws its parameters once, from its seed. What a step meets is a function of its number, so
any process can compute any step: no part is a sum over the steps before.
"""

import csv
import math
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from telemetry.blocks import FloatArray, IntArray
from telemetry.errors import FieldError
from telemetry.simulate.noise import mixed, smooth, uniform_of, windows
from telemetry.simulate.plan import Noise

# 10th percentile, median and 90th percentile over configurations (506 public series).
RANGES = {
    # Robust deviation of a step, over what is usual for steps of its length.
    "scatter": (0.41, 1.0, 2.43),
    # Degrees of freedom of Student's distribution: how heavy the tail is.
    "df": (1.0, 1.7, 3.0),
    # Correlation of a step with the next one.
    "memory": (0.02, 0.12, 0.46),
    # Deviation of the level, and over how many steps it changes.
    "wander": (0.001, 0.003, 0.008),
    "wander_steps": (20.0, 60.0, 200.0),
    # Share of steps that take 5 % longer or more.
    "slow": (0.0002, 0.002, 0.02),
    # First and second step after a start, over the usual.
    "first": (1.02, 1.35, 7.3),
    "second": (1.05, 1.2, 1.7),
    # Half of what is gained or lost while warming up is over after so many seconds.
    "warm_s": (60.0, 300.0, 900.0),
    # Change of the level per hour, and altogether.
    "drift_per_h": (0.0005, 0.004, 0.035),
    "drift": (0.002, 0.009, 0.021),
    # The first step after an evaluation or a checkpoint.
    "resume_s": (0.03, 0.06, 0.12),
    # Steps from one shard of the training data to the next.
    "shard_steps": (100.0, 300.0, 1000.0),
    # Lasting deviation of nodes; that of whole runs of one configuration.
    "nodes": (0.004, 0.0055, 0.007),
    "runs": (0.0001, 0.001, 0.007),
    # Chance of a stall in a run that has them; its length in steps.
    "stall": (1 / 3000, 1 / 1700, 1 / 1000),
}
# How much faster (negative) or slower a run is at first.
WARM_UP = (-0.035, -0.005, 0.01)
# The usual robust deviation of a step of so many seconds: 1.3 % of a second, in longer steps less.
USUAL_SCATTER, SCATTER_POWER, LEAST_SCATTER, MOST_SCATTER = 0.013, -0.78, 0.0005, 0.03
# Shares of runs: with stalls, with shards that are opened in line, with a mixture of experts, and
# that run slowly for some steps after a pause.
STALLING, SHARDED, EXPERTS, RESUMING = 0.35, 0.3, 0.12, 0.1
STALL_STEPS, SHARD_S, LONG_SHARD_S, LONG_STEP_S = (2.0, 8.0), (0.1, 0.3), (1.0, 2.0), 5.0
RESUME_RATIO, RESUME_STEPS = (0.03, 0.04), 5
# Mixture of experts: share of slow steps and how slow; slow regimes of early steps.
EXPERT_CHANCE, EXPERT_RATIO, EXPERT_SCATTER = (0.0, 0.06), (0.2, 0.45), (2.0, 3.0)
EXPERT_REGIMES = ((0, 200, 0.05, 0.25), (100, 300, 0.04, 0.07), (500, 650, 0.02, 0.03))
# Jobs of one run differ from one allocation of machines to the next.
JOB_CV = 0.003
# A slow step is 5 % longer or more: half of them 10 %, one in eight 40 %. None is twice as long.
SLOW_RATIO, SLOW_MOST = 0.05, 1.0
# Steps are shortened by little: no jitter is below so many deviations.
SHORTEST, JITTER_MOST = -4.0, 0.25
# Simulated nodes always differ so much: telemetry.simulate.script.
PACE_DEVIATION = 0.004
# What of a step's scatter each worker has for itself, slowly and quickly changing (assumed), and
# of the exchange's (assumed); the exchange varies by no more than today's.
WORKER_SLOW, WORKER_FAST, TRANSFER, MOST_TRANSFER = 0.4, 0.3, 2.0, 0.03
# Steps that are computed at once and kept.
BLOCK = 256
# Memory that is older is gone.
MEMORY_STEPS = 10


class CommonNoise(NamedTuple):
    """What consecutive steps meet: (n_steps,) each.

    All work takes ``factor`` times as long. In a slow step one worker, ``who`` as a share of
    their number, is late by ``late_s``, or the exchange takes ``exchange_s`` longer. All wait for
    data for ``input_s``.
    """

    factor: FloatArray
    late_s: FloatArray
    exchange_s: FloatArray
    who: FloatArray
    input_s: FloatArray


class StepNoise:
    """The noise of one run, with its parameters drawn.

    Parameters
    ----------
    key : of a named stream of random numbers
    step_s : of a healthy step
    """

    def __init__(self, noise: Noise, *, key: Callable[[str], np.uint64], step_s: float) -> None:
        self.key, self.step_s = key, step_s
        rng = np.random.Generator(np.random.Philox(key=int(key("measured"))))
        drawn = {name: _drawn(rng, np.log(each)) for name, each in RANGES.items()}
        self._of = {name: math.exp(each) for name, each in drawn.items()}
        self._warm_up = _drawn(rng, np.array(WARM_UP))
        self._drift = self._of["drift"] * rng.choice((-1.0, 1.0))
        has = rng.random(4) < (STALLING, SHARDED, EXPERTS, RESUMING)
        self._stalls, self._sharded, self._has_experts, resuming = has.tolist()
        self._shard_s = rng.uniform(*(SHARD_S if step_s < LONG_STEP_S else LONG_SHARD_S))
        self._resume_ratio = rng.uniform(*RESUME_RATIO) * resuming
        self._experts = rng.uniform(*EXPERT_CHANCE), rng.uniform(*EXPERT_RATIO)
        self._regimes = [rng.uniform(low, high) for _, _, low, high in EXPERT_REGIMES]
        usual = max(LEAST_SCATTER, USUAL_SCATTER * step_s**SCATTER_POWER)
        wider = rng.uniform(*EXPERT_SCATTER) if self._has_experts else 1.0
        self.scatter = min(MOST_SCATTER, usual * self._of["scatter"] * wider)
        self.recording = recorded_ratios(noise.recorded) if noise.recorded else np.zeros(0)
        if len(self.recording):
            change = np.abs(np.diff(self.recording)) / math.sqrt(2)
            self.scatter = min(MOST_SCATTER, 1.4826 * float(np.median(change)))
        self.worker_slow, self.worker_fast = WORKER_SLOW * self.scatter, WORKER_FAST * self.scatter
        self.transfer = min(MOST_TRANSFER, TRANSFER * self.scatter)

    @property
    def node_cv(self) -> float:
        """Deviation of the lasting pace of nodes, beyond that of all simulated ones."""
        return math.sqrt(max(0.0, self._of["nodes"] ** 2 - PACE_DEVIATION**2))

    @property
    def run_cv(self) -> float:
        return self._of["runs"]

    def of(self, first: int, n_steps: int) -> CommonNoise:
        """Return what consecutive steps of the run meet."""
        numbers = range(first // BLOCK, (first + max(n_steps, 1) - 1) // BLOCK + 1)
        here = slice(first - numbers[0] * BLOCK, first - numbers[0] * BLOCK + n_steps)
        blocks = [_block(self, number) for number in numbers]
        if len(blocks) == 1:
            return CommonNoise(*(each[here] for each in blocks[0]))
        return CommonNoise(*(np.concatenate(each)[here] for each in zip(*blocks, strict=True)))

    def since_start(self, first_step: int, n_settled: IntArray) -> FloatArray:
        """Return how many times as long steps take that follow a start: same shape.

        Parameters
        ----------
        n_settled : steps done since the processes started with the run's step ``first_step``
        """
        job = windows("normal", mixed(self.key("job"), np.array([first_step])), 1)
        factor: FloatArray = np.ones(len(n_settled))
        if not len(self.recording):
            warming = 0.5 ** (n_settled * self.step_s / self._of["warm_s"])
            factor += JOB_CV * float(job[0, 0]) + self._warm_up * warming
        factor[n_settled == 0] *= self._of["first"]
        factor[n_settled == 1] *= self._of["second"]
        return factor

    def resuming_s(self, since: IntArray) -> FloatArray:
        """Return how much longer steps take that follow a pause as the first, second, ...: since.

        A checkpoint or an evaluation is a pause; ``since`` counts from 0 and is negative before.
        """
        longer_s = np.where(since == 0, self._of["resume_s"], 0.0)
        slow = (since >= 0) & (since < RESUME_STEPS)
        return np.asarray(longer_s + slow * self._resume_ratio * self.step_s)

    def common(self, step: IntArray) -> CommonNoise:
        """Compute what steps meet, from their numbers alone."""
        if len(self.recording):
            none = np.zeros(len(step))
            return CommonNoise(self._recorded(step), none, none, none, none)
        factor = (1 + self.scatter * self._jitter(step)) * (1 + self._level(step))
        who, way = (uniform_of(mixed(self.key(name), step)) for name in ("who", "way"))
        slow_s, is_late = self.step_s * self._slow(step), way < 1 / 2
        late_s, exchange_s = np.where(is_late, slow_s, 0), np.where(is_late, 0, slow_s)
        return CommonNoise(factor, late_s, exchange_s, who, self._waits_s(step))

    def _recorded(self, step: IntArray) -> FloatArray:
        """Read the recording forwards, then backwards, so that the level has no seam."""
        n = len(self.recording)
        start = int(mixed(self.key("recorded"), np.array([0]))[0] % np.uint64(n))
        at = (step + start) % (2 * n)
        return self.recording[np.minimum(at, 2 * n - 1 - at)]

    def _jitter(self, step: IntArray) -> FloatArray:
        """Return noise of robust deviation 1, with memory, a heavy upper tail and a light lower.

        A normal autoregression, cut off, whose values are stretched: ``z exp(h z² / 2)`` has the
        tail of Student's distribution with 1 / h degrees of freedom, and neighbours of a long
        step are not long.

        References
        ----------
        J. W. Tukey's g-and-h distributions; D. C. Hoaglin, in Exploring Data Tables, Trends, and
        Shapes, Wiley 1985.
        """
        memory = self._of["memory"]
        weights = memory ** np.arange(MEMORY_STEPS + 1)
        wide = np.arange(step[0] - MEMORY_STEPS, step[-1] + 1)
        drawn = windows("normal", mixed(self.key("jitter"), wide), 1)[:, 0].astype(float)
        z = np.convolve(drawn, weights / math.sqrt((weights**2).sum()), "valid")
        heavy = np.where(z > 0, 1.0, LOWER_TAIL) / self._of["df"]
        stretched = z * np.exp(heavy * z * z / 2)
        return np.asarray(np.clip(stretched, SHORTEST, JITTER_MOST / self.scatter))

    def _level(self, step: IntArray) -> FloatArray:
        """Return wander, drift and, of a mixture of experts, slow regimes."""
        level = np.zeros(len(step))
        for i, (times, share) in enumerate(WANDER):
            every = max(1, round(times * self._of["wander_steps"]))
            wave = smooth(self.key(f"wander {i}"), step, every=every, width=1)[:, 0]
            level += self._of["wander"] * math.sqrt(share) * wave
        hours = step * self.step_s / 3600
        most, per_h = self._drift, self._of["drift_per_h"]
        level += most * -np.expm1(-hours * per_h / abs(most))
        if self._has_experts:
            for ratio, (begin, end, _, _) in zip(self._regimes, EXPERT_REGIMES, strict=True):
                level += ratio * ((step >= begin) & (step < end))
        return np.maximum(level, -0.5)

    def _slow(self, step: IntArray) -> FloatArray:
        """Return by how much of a step isolated steps are longer, 0 for most."""
        chance, size = (uniform_of(mixed(self.key(name), step)) for name in ("slow", "size"))
        longer = np.where(
            chance < self._of["slow"], np.minimum(SLOW_RATIO / (1 - size), SLOW_MOST), 0.0
        )
        if self._has_experts:
            often, ratio = self._experts
            longer[uniform_of(mixed(self.key("experts"), step)) < often] += ratio
        if self._stalls:
            stalled = uniform_of(mixed(self.key("stall"), step)) < self._of["stall"]
            low, high = STALL_STEPS
            longer[stalled] += low * (high / low) ** size[stalled] - 1
        return longer

    def _waits_s(self, step: IntArray) -> FloatArray:
        """Return how long all wait for the next shard of the training data, 0 for most steps."""
        if not self._sharded:
            return np.zeros(len(step))
        every = self._of["shard_steps"]
        return self._shard_s * (np.floor((step + 1) / every) > np.floor(step / every))


# How heavy the lower tail is, over the upper; the scales of wander over the drawn one, and their
# shares of its variance. Chosen so that skew and block means are as measured: `bench noise`.
LOWER_TAIL = 0.1
WANDER = ((1.0, 0.6), (4.0, 0.35), (16.0, 0.05))


@lru_cache(maxsize=512)
def _block(noise: StepNoise, number: int) -> CommonNoise:
    return noise.common(np.arange(number * BLOCK, (number + 1) * BLOCK))


def _drawn(rng: np.random.Generator, range_: FloatArray) -> float:
    """Draw from a normal distribution of two halves, not beyond its 10th or 90th percentile."""
    low, middle, high = range_
    z = float(np.clip(rng.standard_normal() / 1.2816, -1, 1))
    return float(middle + z * (high - middle if z > 0 else middle - low))


@lru_cache(maxsize=32)
def recorded_ratios(path: str) -> FloatArray:
    """Read recorded step times, over their median once they have settled: (n,).

    Raises
    ------
    FieldError
        Naming what is wrong with the file and what to do about it.
    """
    seconds = np.array(list(_recorded_seconds(Path(path))))
    if len(seconds) < 2:
        raise _unusable(path, f"has {len(seconds)} step times; give 2 or more")
    # The first steps of a process take long; those of a simulated run do so by themselves.
    settled = np.flatnonzero(np.abs(seconds / np.median(seconds) - 1) < SETTLED_RATIO)
    seconds = seconds[settled[0] if len(settled) else 0 :]
    if len(seconds) < 2:
        raise _unusable(path, "settles with its last step only; give more steps")
    return np.asarray(seconds / np.median(seconds))


# Step times have settled when one is this close to their median.
SETTLED_RATIO = 0.05


def _recorded_seconds(path: Path) -> Iterator[float]:
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = csv.DictReader(file)
            if "step_s" not in (rows.fieldnames or ()):
                raise _unusable(path, "has no column step_s; name it in the first line")
            for row in rows:
                seconds = _number(row["step_s"])
                if not (math.isfinite(seconds) and seconds > 0):
                    said = f"line {rows.line_num}: step_s is {row['step_s']!r}"
                    raise _unusable(path, f"{said}; give seconds > 0, or leave the line out")
                yield seconds
    except OSError as error:
        raise _unusable(path, f"cannot be read ({error.strerror}); give a CSV file") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise _unusable(path, f"is no CSV text ({error}); give a CSV file") from error


def _number(text: str | None) -> float:
    try:
        return float(text or "nan")
    except ValueError:
        return math.nan


def _unusable(path: object, what: str) -> FieldError:
    return FieldError("recorded", f"{str(path)!r} {what}")
