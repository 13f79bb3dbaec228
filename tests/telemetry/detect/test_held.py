"""A measurement that covers many seconds counts once."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest

from telemetry.agent.sources import N_ROUNDS, ROUNDS_APART_S
from telemetry.blocks import FloatArray, Span
from telemetry.detect.fabric import PACKETS, PROBE_S, RETRANSMITS, find_efa_symptoms
from telemetry.detect.findings import Problem
from telemetry.detect.inputs import (
    OpenProblem,
    is_persistent,
    new_measurements,
    newest_measurements,
    recent,
)
from telemetry.detect.parts import find_unhealthy_hardware
from tests.telemetry.detect.runs import T0, inputs, steps_at

N_NODES, N_EFA, PERIOD_S = 16, 16, 60
NODES = tuple(f"n-{i:02d}" for i in range(N_NODES))
LATENCY, CORES = "efa_latency_s", "core_utilization_ratio"
USUAL_S = 16e-6
NAN = np.nan


@dataclass
class Held:
    """Nodes whose probes come once a period and stand until the next; one in 100 is late.

    While all of them lose packets, from ``lossy[0]`` to ``lossy[1]``, probes are late too. Nodes
    are probed ``offsets_s`` into a period, for ``takes_s``, and report every ``report_s`` what is
    known at its end.
    """

    seed: int
    until_s: int = T0
    period_s: int = PERIOD_S
    offsets_s: Sequence[int] = (0,) * N_NODES
    takes_s: int = 0
    report_s: int = 1
    sick: dict[tuple[int, int], tuple[int, float]] = field(default_factory=dict)
    probes: dict[int, FloatArray] = field(default_factory=dict)
    lossy: tuple[int, int] | None = None

    def probe(self, number: int) -> FloatArray:
        """Return what all devices were found to take in one period."""
        if number not in self.probes:
            rng = np.random.default_rng([self.seed, number])
            late = np.where(rng.random((N_NODES, N_EFA)) < 0.01, 1.8, 1.0)
            latency = USUAL_S * late * (1 + 0.02 * rng.standard_normal((N_NODES, N_EFA)))
            for (node, device), (since_s, times) in self.sick.items():
                began_s = number * self.period_s + self.offsets_s[node] - self.takes_s
                if began_s >= since_s:
                    latency[node, device] = USUAL_S * times * (1 + 0.02 * rng.standard_normal())
            if self.lossy and self.lossy[0] <= number * self.period_s < self.lossy[1]:
                latency *= 1.4
            self.probes[number] = latency
        return self.probes[number]

    def seconds(self, metrics: Sequence[str], ticks: Sequence[int]) -> Span:
        """Return some seconds."""
        reported_s = -(-np.array(ticks) // self.report_s) * self.report_s
        values = np.stack(
            [
                [self.probe(int(number))[row] for row, number in enumerate(numbers)]
                for numbers in (reported_s[:, None] - np.array(self.offsets_s)) // self.period_s
            ]
        )
        kept = {LATENCY: values} if LATENCY in metrics else {}
        if self.lossy and RETRANSMITS in metrics:
            lost = [self.lossy[0] < tick <= self.lossy[1] for tick in ticks]
            # No second sends exactly as much as the one before.
            sent = 2e5 + np.array(ticks)[:, None, None] % 97 + np.zeros(values.shape)
            kept |= {PACKETS: sent, RETRANSMITS: 0.07 * sent * np.array(lost)[:, None, None]}
        return Span("s", np.array(ticks), NODES, kept)

    def __call__(self, metrics: Sequence[str], last_s: int) -> Span:
        """Return the newest seconds."""
        return self.seconds(metrics, range(self.until_s - last_s + 1, self.until_s + 1))

    def hardware_at(self, metrics: Sequence[str], ages_s: Sequence[int]) -> Span:
        """Return single seconds."""
        return self.seconds(metrics, [self.until_s - age for age in ages_s])

    def watch(
        self, duration_s: int, *, every_s: int = 5, held: tuple[OpenProblem, ...] = ()
    ) -> list[tuple[int, Problem]]:
        """Look at the links now and then; return what was found, and when."""
        found, open_ = list[tuple[int, Problem]](), held
        for second in range(0, duration_s, every_s):
            self.until_s = T0 + second
            seen = inputs(
                steps_at([0.1] * 4),
                self,
                hardware_at=self.hardware_at,
                nodes=NODES,
                now_s=float(self.until_s),
                open_problems=open_,
                report_every_s=self.report_s,
            )
            mine = find_efa_symptoms(seen)
            found += [(second, each) for each in mine]
            named = tuple(OpenProblem("efa_degraded", s.cause, s.node, s.device) for s in mine)
            open_ = named or held
        return found


@pytest.mark.parametrize("seed", range(6))
def test_calm_links_that_are_probed_once_a_minute_have_no_finding(seed: int) -> None:
    assert Held(seed).watch(3_600) == []


@pytest.mark.parametrize("period_s", [60, 15, 5])
def test_a_slow_link_that_is_probed_now_and_then_is_found(period_s: int) -> None:
    held = Held(1, period_s=period_s, sick={(5, 3): (T0 + 600, 1.4)})
    found = held.watch(1_200)
    assert {(s.cause, s.node, s.device) for _, s in found} == {("efa_latency", "n-05", 3)}
    first, symptom = found[0]
    assert 600 < first <= 600 + 3 * max(period_s, 15) + 10
    assert abs(symptom.onset_s - T0 - 600) <= period_s + 16
    # Found once it stays found: a probe in between ends nothing.
    assert found[-1][0] == 1_195


def test_a_node_in_another_rack_is_not_accused_by_its_probes() -> None:
    far = {(5, device): (0, 1.45) for device in range(4)}
    assert Held(1, sick=far).watch(1_200) == []


def test_probes_of_a_far_node_that_meet_traffic_together_accuse_none_of_its_devices() -> None:
    held = Held(1, sick={(5, device): (0, 1.45) for device in range(N_EFA)})
    for number in (10, 13, 14):
        held.probe(T0 // PERIOD_S + number)[5] *= 1.6
    assert held.watch(1_200) == []


def test_late_probes_that_outlast_a_loss_are_no_second_problem() -> None:
    found = Held(1, lossy=(T0 + 600, T0 + 795)).watch(1_200)
    assert {(s.cause, s.node) for _, s in found} == {("efa_loss", None)}
    assert 600 < found[0][0] < 620
    assert 790 <= found[-1][0] < 815


LONGER_STEPS = (
    OpenProblem("step_slow", "unknown", evidence={"kind": "step", "onset_s": T0 - 60.0}),
)
SLOW_LINK = {(5, 3): (T0 + 600, 6.0)}
SLOW_FABRIC = {(i, j): (T0 + 600, 6.0) for i in range(N_NODES) for j in range(N_EFA)}


@pytest.mark.parametrize(
    ("sick", "node"), [(SLOW_LINK, "n-05"), (SLOW_FABRIC, None)], ids=["link", "fabric"]
)
def test_while_steps_take_longer_one_very_late_probe_is_enough(
    sick: dict[tuple[int, int], tuple[int, float]], node: str | None
) -> None:
    first, symptom = Held(1, sick=sick).watch(900, held=LONGER_STEPS)[0]
    assert (symptom.cause, symptom.node) == ("efa_latency", node)
    assert 600 <= first < 600 + PERIOD_S
    first, _ = Held(1, sick=sick).watch(900)[0]
    assert first >= 600 + 2 * PERIOD_S - 20


def test_the_first_nodes_that_are_probed_in_a_slow_fabric_are_not_accused() -> None:
    began_s = T0 + 600
    longer = OpenProblem("step_slow", "unknown", evidence={"kind": "step", "onset_s": began_s})
    found = Held(1, sick=SLOW_FABRIC, offsets_s=range(0, 48, 3)).watch(900, held=(longer,))
    assert {(symptom.cause, symptom.node) for _, symptom in found} == {("efa_latency", None)}
    assert 600 <= found[0][0] < 600 + PERIOD_S


def test_a_probe_takes_as_long_as_the_rounds_of_the_agent() -> None:
    assert PROBE_S == (N_ROUNDS - 1) * ROUNDS_APART_S


@pytest.mark.parametrize("report_s", [1, 5])
@pytest.mark.parametrize(("onset_s", "usual_s"), [(601, 0.5), (570, 32.0)])
def test_a_probe_in_the_first_longer_step_may_have_begun_before_its_fault(
    onset_s: int, usual_s: float, report_s: int
) -> None:
    evidence = {"kind": "step", "onset_s": T0 + onset_s, "baseline_step_s": usual_s}
    longer = OpenProblem("step_slow", "unknown", evidence=evidence)
    offsets_s = [(T0 + second) % PERIOD_S for second in [605] * 4 + [612] * 2 + [650] * 10]
    held = Held(1, sick=SLOW_FABRIC, offsets_s=offsets_s, takes_s=PROBE_S, report_s=report_s)
    found = held.watch(760, every_s=1, held=(longer,))
    assert {(symptom.cause, symptom.node) for _, symptom in found} == {("efa_latency", None)}


@pytest.mark.parametrize("seed", range(3))
def test_late_probes_by_chance_name_no_link_while_steps_take_longer(seed: int) -> None:
    assert Held(seed).watch(600, held=LONGER_STEPS) == []


def test_probes_that_leave_gaps_in_place_of_holding_are_found_too() -> None:
    values = np.full((12, 1, 1), NAN)
    values[[0, 5, 10], 0, 0] = [1.0, 2.0, 2.0]
    assert new_measurements(values)[:, 0, 0].nonzero()[0].tolist() == [0, 5]


def test_the_newest_measurements_are_the_last_that_differ() -> None:
    values = np.array([1.0, 1, 2, NAN, 2, 3, 3])[:, None]
    assert newest_measurements(values, 2)[:, 0].tolist() == [2.0, 3.0]
    assert np.isnan(newest_measurements(values, 4)[0, 0])


@pytest.mark.parametrize(
    ("period", "n_above", "wanted"),
    [(1, 5, 1), (1, 4, 0), (5, 8, 1), (5, 3, 0), (8, 8, 0)],
)
def test_reports_that_come_less_often_must_all_say_so_and_two_at_least(
    period: int, n_above: int, wanted: int
) -> None:
    ticks = np.arange(8)
    reports = ticks % period == 0
    assert is_persistent(ticks >= 8 - n_above, reports, least=5) == wanted


def test_a_core_that_stands_out_in_one_report_only_is_not_slow() -> None:
    def cores(n_reports: int) -> list[Problem]:
        rng = np.random.default_rng(3)
        level = 0.6 * (1 + 0.01 * rng.standard_normal((8, 4, 8)))
        level[:, 2, 5] = 0.95
        if n_reports < 8:
            level = np.repeat(level[:n_reports], -(-8 // n_reports), axis=0)[:8]
        span = Span("s", np.arange(8), NODES[:4], {CORES: level})
        past = np.full((6, 4, 8), 0.6)
        seen = inputs(
            steps_at([0.1] * 4),
            lambda metrics, last_s: span,
            hardware_at=lambda metrics, ages_s: Span("s", np.arange(6), NODES[:4], {CORES: past}),
            nodes=NODES[:4],
        )
        return find_unhealthy_hardware(seen)

    assert cores(1) == []
    assert [(s.node, s.device) for s in cores(2)] == [("n-02", 5)]
    assert [(s.node, s.device) for s in cores(8)] == [("n-02", 5)]


def test_measurements_without_a_gap_are_marked_alike() -> None:
    """All at once or tick by tick: a gap elsewhere changes nothing."""
    rng = np.random.default_rng(5)
    values = rng.integers(0, 3, (30, 4, 2)).astype(np.float32)
    with_gap = np.concatenate([values, np.full((30, 1, 2), np.nan, np.float32)], axis=1)

    np.testing.assert_array_equal(new_measurements(values), new_measurements(with_gap)[:, :4])


@pytest.mark.parametrize("silent", [{"c": 50}, {"c": None}, {"c": 50, "d": None}])
def test_a_node_without_reports_does_not_hide_the_newest_ones_of_others(
    silent: dict[str, int | None],
) -> None:
    now_s, behind_s = T0 + 1_000, {"a": 2, "b": 9, **silent}

    def hardware(metrics: Sequence[str], last_s: int) -> Span:
        ticks = np.arange(now_s - last_s + 1, now_s + 1)
        age_s = now_s - ticks
        values = [
            np.full(last_s, NAN) if lag_s is None else np.where(age_s >= lag_s, ticks, NAN)
            for lag_s in behind_s.values()
        ]
        held = {name: np.stack(values, axis=1)[..., None].astype(float) for name in metrics}
        return Span("x", ticks, tuple(behind_s), held)

    steps = steps_at([0.1] * 20)
    seen = inputs(steps, hardware, now_s=float(now_s), report_every_s=15)
    newest = recent(seen, ["efa_latency_s"], 8).values["efa_latency_s"][-1, :, 0]
    assert newest[:2].tolist() == [now_s - 2, now_s - 9]
    assert np.isnan(newest[2:]).all()
