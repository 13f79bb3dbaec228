"""Random scenarios: the same for the same seed, valid, of every kind."""

from pathlib import Path

from bench.drill_worker import scenario_named
from bench.healthy_runs import (
    MATRIX,
    healthy_hooks_scenario,
    healthy_scenario,
    matrix_scenario,
)
from bench.random_scenarios import (
    KINDS,
    MOST_SHARE_RATIO,
    STEP_S,
    TUNING_SEEDS,
    RandomScenario,
    lasting_fault_scenario,
    random_scenario,
    single_fault_scenario,
)
from fleet.alerts.snapshots import WINDOW_S
from telemetry.simulate.inputs import FULL
from telemetry.simulate.plan import Noise
from telemetry.simulate.step_model import step_plan
from telemetry.simulate.tuning import check_feasible


def test_a_seed_draws_the_same_scenario_each_time() -> None:
    assert RandomScenario(7).table() == RandomScenario(7).table()
    assert RandomScenario(7).table() != RandomScenario(8).table()


def test_random_scenarios_are_valid_and_of_many_kinds() -> None:
    kinds, instances = set(), set()
    for seed in range(TUNING_SEEDS, TUNING_SEEDS + 60):
        scenario = random_scenario(seed)
        run = scenario.runs[0]
        plan = step_plan(run)
        check_feasible(plan)
        assert plan.allreduce_share_ratio <= MOST_SHARE_RATIO
        assert STEP_S[0] <= plan.step_s <= STEP_S[1]
        assert scenario.faults
        assert all(fault.start_s < scenario.duration_s for fault in scenario.faults)
        kinds |= {fault.kind for fault in scenario.faults}
        instances.add(run.instance)
    assert kinds == set(KINDS)
    assert len(instances) >= 7


def test_lasting_faults_outlast_the_steps_that_detection_keeps() -> None:
    drawn = [lasting_fault_scenario(seed) for seed in range(TUNING_SEEDS, TUNING_SEEDS + 10)]
    faults = [fault for scenario in drawn for fault in scenario.faults]
    assert min(fault.duration_s for fault in faults) >= 1500 > 3 * WINDOW_S
    assert {len(scenario.faults) for scenario in drawn} == {1, 2}


def test_background_events_are_part_of_single_faults_and_healthy_hours() -> None:
    drawn = (single_fault_scenario(TUNING_SEEDS), lasting_fault_scenario(TUNING_SEEDS))
    healthy = (healthy_scenario(1), healthy_hooks_scenario(1), healthy_hooks_scenario(2))

    assert all(scenario.noise.background for scenario in (*drawn, *healthy))
    assert random_scenario(TUNING_SEEDS).noise == Noise()


def test_a_scenario_s_name_says_how_its_steps_vary(tmp_path: Path) -> None:
    usual = scenario_named(f"single-{TUNING_SEEDS}@agent_hooks")
    steady = scenario_named(f"single-{TUNING_SEEDS}@agent_hooks+busy+steady+environment=1.5")
    recorded = scenario_named(f"hooks-1@full+busy+recorded={tmp_path}/a+b.csv")

    assert steady.runs == usual.runs
    assert usual.noise == Noise(background=True)
    assert steady.noise == Noise(measured=False, background=True, node_cv=0.01, environment=1.5)
    assert steady.inputs.busy_while_waiting
    assert healthy_hooks_scenario(1).noise.step_cv > 0
    paced = Noise(background=True, recorded=f"{tmp_path}/a+b.csv")
    assert recorded.noise == paced
    assert recorded.inputs == FULL


def test_every_third_healthy_hour_has_benign_events_and_none_has_a_fault() -> None:
    hours = [healthy_scenario(seed) for seed in range(9)]
    assert [bool(hour.benign) for hour in hours] == [True, False, False] * 3
    assert not any(hour.faults for hour in hours)
    assert {hour.runs[0].instance for hour in hours} == {
        "trn1.32xlarge",
        "trn2.48xlarge",
        "p5.48xlarge",
    }


def test_the_matrix_has_each_shape_with_each_noise_and_nothing_else() -> None:
    hours = [matrix_scenario(number) for number in range(len(MATRIX))]
    assert len({(run.model, run.nodes) for hour in hours for run in hour.runs}) == 7
    assert len({(hour.noise.step_cv, hour.noise.tail) for hour in hours}) == 12
    assert not any(hour.faults or hour.benign or hour.noise.harmless for hour in hours)
    again = matrix_scenario(len(MATRIX))
    assert (again.runs, again.noise) == (hours[0].runs, hours[0].noise)
    assert again.seed != hours[0].seed
