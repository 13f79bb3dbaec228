"""Cores that are scraped each 15 s, with noise of their own: no page by chance, faults found."""

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import pytest

from telemetry.blocks import FloatArray, Span
from telemetry.detect.inputs import OpenProblem
from telemetry.detect.parts import CORES, MEMORY, find_unhealthy_hardware, limit_of_chance
from tests.telemetry.detect.runs import T0, inputs, steps_at

N_CORES, EVERY_S, HALF_HOUR_S = 32, 15, 1_800
Draw = Callable[[np.random.Generator, tuple[int, int]], FloatArray]
NOISES: dict[str, Draw] = {
    "normal": lambda rng, shape: rng.standard_normal(shape),
    "heavy-tailed": lambda rng, shape: rng.standard_t(5, shape) / (5 / 3) ** 0.5,
}


class Scraped:
    """Nodes whose cores are 70 % busy; core 6 of node 1 may become slow after ten minutes."""

    def __init__(self, n_nodes: int, noise_ratio: float, draw: Draw, slower: float = 0.0) -> None:
        self.nodes = tuple(f"n-{i:02}" for i in range(n_nodes))
        self.shape = (n_nodes, N_CORES)
        self.noise_ratio, self.draw, self.slower = noise_ratio, draw, slower
        self.now = T0
        self.scrapes: dict[int, FloatArray] = {}

    def scrape(self, number: int) -> FloatArray:
        if number not in self.scrapes:
            rng = np.random.default_rng([1, number])
            values = 0.7 * (1 + self.noise_ratio * self.draw(rng, self.shape))
            if number * EVERY_S >= T0 + 600:
                values[1] *= 1 - self.slower
                values[1, 6] /= 1 - self.slower
            self.scrapes[number] = values
        return self.scrapes[number]

    def seconds(self, ticks: Iterable[int]) -> Span:
        """Each node is scraped in a second of its own; a value is held until the next."""
        ticks = np.array(list(ticks))
        late_s = np.arange(len(self.nodes)) * EVERY_S // len(self.nodes)
        numbers = (ticks[:, None] - late_s) // EVERY_S
        values = np.empty((len(ticks), *self.shape))
        for number in np.unique(numbers):
            at = numbers == number
            values[at] = np.broadcast_to(self.scrape(int(number)), values.shape)[at]
        return Span("s", ticks, self.nodes, {CORES.metric: values})

    def __call__(self, _: Sequence[str], last_s: int) -> Span:
        return self.seconds(range(self.now - last_s + 1, self.now + 1))

    def hardware_at(self, _: Sequence[str], ages_s: Sequence[int]) -> Span:
        return self.seconds(self.now - age for age in ages_s)

    def watch(self, seconds: int) -> list[tuple[int, str | None, int | None]]:
        """List what is found, and when: (second, node, core)."""
        found, open_ = list[tuple[int, str | None, int | None]](), tuple[OpenProblem, ...]()
        for second in range(300, seconds, 3):
            self.now = T0 + second
            problems = find_unhealthy_hardware(
                inputs(
                    steps_at([0.1])[:0],
                    self,
                    hardware_at=self.hardware_at,
                    nodes=self.nodes,
                    now_s=float(self.now),
                    cores_per_device=4,
                    report_every_s=EVERY_S,
                    open_problems=open_,
                )
            )
            found += [(second, each.node, each.device) for each in problems]
            open_ = tuple(OpenProblem("core_slow", p.cause, p.node, p.device) for p in problems)
        return found


@pytest.mark.parametrize("draw", NOISES.values(), ids=NOISES)
@pytest.mark.parametrize(("n_nodes", "noise_ratio"), [(16, 0.01), (64, 0.02), (16, 0.04)])
def test_no_core_is_called_slow_by_chance(n_nodes: int, noise_ratio: float, draw: Draw) -> None:
    assert Scraped(n_nodes, noise_ratio, draw).watch(HALF_HOUR_S) == []


@pytest.mark.parametrize("draw", NOISES.values(), ids=NOISES)
@pytest.mark.parametrize(("noise_ratio", "within_s"), [(0.01, 45), (0.02, 120), (0.03, 180)])
def test_a_core_slower_by_a_tenth_is_found_in_minutes(
    noise_ratio: float, within_s: int, draw: Draw
) -> None:
    found = Scraped(16, noise_ratio, draw, slower=0.1).watch(1_000)
    assert {(node, core) for _, node, core in found} == {("n-01", 6)}
    assert 600 < found[0][0] <= 600 + within_s
    # Found once, it stays found.
    assert found[-1][0] == 999 - 999 % 3


def test_the_limit_lets_pass_as_much_noise_as_it_promises() -> None:
    """With few looks per false page, count them: about one in so many means exceeds the limit."""
    rng = np.random.default_rng(2)
    n_looks, n_parts, n_beyond = 2_000, 64, 0
    for _ in range(n_looks):
        ratios = 1 + 0.02 * rng.standard_normal((2, 1, n_parts))
        # A year of a run of one part that reports every so often is 100 looks.
        limit = limit_of_chance(
            ratios, 0, n_reports=2, n_compared=1, report_every_s=365 * 86_400 // 100
        )
        n_beyond += int((ratios.mean(axis=0) - 1 >= limit).sum())
    assert 0.2 < n_beyond / (n_looks * n_parts / 100) <= 1.2


def test_held_values_count_once() -> None:
    reports = 1 + 0.02 * np.random.default_rng(3).standard_normal((2, 16, 64))
    limits = {
        limit_of_chance(
            np.repeat(reports, held_s, axis=0), 0, n_reports=2, n_compared=32, report_every_s=15
        )
        for held_s in (1, 15)
    }
    assert max(limits) - min(limits) < 0.02 * min(limits)


def test_a_node_that_mostly_waits_shows_too_little_of_its_memories() -> None:
    rng, n_nodes, n_devices = np.random.default_rng(4), 16, 8
    nodes = tuple(f"n-{i:02}" for i in range(n_nodes))

    def seconds(ages_s: Iterable[int]) -> Span:
        ages = np.array(list(ages_s))
        shape = (len(ages), n_nodes, n_devices)
        bytes_per_s = 2e11 * (1 + 0.02 * rng.standard_normal(shape))
        # The last node computes in the newest two seconds only, and one device by chance less.
        bytes_per_s[(ages >= 2) & (ages < 10), -1] *= 1e-5
        bytes_per_s[ages < 2, -1, 5] *= 0.92
        return Span("s", T0 - ages, nodes, {MEMORY.metric: bytes_per_s})

    data = inputs(
        steps_at([0.1])[:0],
        lambda _, last_s: seconds(range(last_s)[::-1]),
        hardware_at=lambda _, ages_s: seconds(ages_s),
        nodes=nodes,
        now_s=float(T0),
    )
    assert find_unhealthy_hardware(data) == []
