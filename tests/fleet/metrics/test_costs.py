"""Cost series: price per million tokens, actual and expected, and budgets."""

from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path

import pytest
from prometheus_client import Metric

from fleet.metrics import collectors, node_collectors
from fleet.metrics.collectors import (
    AlertCollector,
    BudgetCollector,
    cost_families,
    fleet_registry,
)
from fleet.models import Alert, Budget, Node, Run
from fleet.runs.summaries import runs_now
from telemetry.exporter.exposition import Spec
from telemetry.store.hot import HotStore
from tests.alerts import straggling
from tests.helpers import just_now, steps

DOCUMENT = Path(__file__).parents[3] / "docs/metrics.md"
DEFINED = (vars(collectors) | vars(node_collectors)).values()
SPECS = [each for each in DEFINED if isinstance(each, Spec)]
DAY = timedelta(days=1)


def values_of(families: Iterable[Metric], spec: Spec) -> dict[tuple[str, ...], float]:
    """Return the series of one family by their labels."""
    (family,) = [each for each in families if each.name == spec.family_name]
    return {tuple(sample.labels.values()): sample.value for sample in family.samples}


@pytest.fixture
def training(run: Run, steady: Node, limping: Node, hot: HotStore) -> Run:
    """Let a run make steps of two seconds just now, with the tokens of its row."""
    tokens = float(run.global_batch * run.seq_len)
    ended_at_s = just_now().timestamp() - 40
    hot.append_steps(steps(n_steps=20, ended_at_s=ended_at_s, tokens=tokens, compute_s=2.0))
    return run


def run_families(hot: HotStore) -> list[Metric]:
    now = just_now()
    return cost_families(runs_now(hot, Run.objects.all(), now_s=now.timestamp()))


def test_what_tokens_take_is_reported_next_to_what_they_should(
    hot: HotStore, training: Run
) -> None:
    families = run_families(hot)

    # Four nodes, two seconds, 1,024 sequences of 4,096 tokens.
    taken = values_of(families, collectors.NODE_SECONDS)["llama",]
    assert taken == pytest.approx(4 * 2 / (1024 * 4096) * 1e6)
    expected = values_of(families, collectors.EXPECTED)
    assert set(expected) == {("llama", "estimate")}
    assert values_of(families, collectors.PER_HOUR) == {("llama",): 86.0}


def test_a_model_that_no_one_knows_is_held_to_its_own_hours(hot: HotStore, training: Run) -> None:
    tokens = float(training.global_batch * training.seq_len)
    own = {"tokens": tokens, "n_active": 2.0, "since_s": 0.0, "cost": 1.5e-6}
    Run.objects.update(model="our-own", spending={"own": own})

    assert values_of(run_families(hot), collectors.EXPECTED) == {
        ("llama", "own"): pytest.approx(1.5)
    }
    Run.objects.update(spending={"own": own | {"tokens": 2 * tokens}})
    assert values_of(run_families(hot), collectors.EXPECTED) == {}


def test_what_no_one_knows_is_not_reported(hot: HotStore, run: Run) -> None:
    Run.objects.update(usd_per_node_hour=0.0)

    families = run_families(hot)

    assert [list(family.samples) for family in families] == [[], [], []]


def test_of_a_run_that_is_over_nothing_continues(hot: HotStore, training: Run) -> None:
    Run.objects.update(finished_at=just_now())

    assert values_of(run_families(hot), collectors.PER_HOUR) == {}


def test_budgets_of_now_are_reported_with_their_forecast(run: Run) -> None:
    now = just_now()
    Run.objects.update(started_at=now - timedelta(hours=2))
    for usd, begins, ends in ((1000, -DAY, DAY), (2000, DAY, 2 * DAY), (3000, -2 * DAY, -DAY)):
        whose = {"team": "LLM"} if usd != 2000 else {"run": run}
        period = {"starts_at": now + begins, "ends_at": now + ends}
        Budget.objects.create(usd=usd, set_by="ada", set_at=now, **period, **whose)
    mine = Budget.objects.create(
        run=run, usd=10, starts_at=now - DAY, ends_at=now + DAY, set_by="ada", set_at=now
    )

    families = list(BudgetCollector(now=now).collect())

    team = (str(Budget.objects.get(usd=1000).pk), "LLM", "")
    runs = (str(mine.pk), "", "llama")
    held, spent_of_it, forecast, burn, end = collectors.BUDGET
    assert values_of(families, held) == {team: 1000.0, runs: 10.0}
    assert values_of(families, spent_of_it)[team] == pytest.approx(172, rel=1e-3)
    assert values_of(families, forecast)[runs] == pytest.approx(26 * 86, rel=1e-3)
    assert values_of(families, burn)[team] == 86.0
    assert values_of(families, end)[team] == pytest.approx((now + DAY).timestamp())


def test_alerts_are_reported_by_run_and_by_those_of_its_nodes(run: Run, limping: Node) -> None:
    now = just_now()
    straggling(run, limping, at=now)
    of_node = straggling(run, limping, at=now, rule="core_slow", subject="node:limping")
    Alert.objects.filter(pk=of_node.pk).update(run=None)
    straggling(run, limping, at=now, rule="hang", subject="x", resolved_at=now)

    series = values_of(AlertCollector().collect(), collectors.RUN_ALERTS)

    assert series == {("llama", "allreduce_share"): 1.0, ("llama", "core_slow"): 1.0}


def test_a_scrape_has_them(hot: HotStore, training: Run) -> None:
    names = {family.name for family in fleet_registry(hot, now=just_now()).collect()}

    assert {spec.family_name for spec in SPECS} <= names


def test_every_series_is_documented() -> None:
    document = DOCUMENT.read_text()

    assert [each.name for each in SPECS if f"\n## {each.name}\n" not in document] == []
