"""The compile log by the API: graph, reason, cost."""

from datetime import timedelta

import pytest
from pytest_django import DjangoAssertNumQueries

from fleet.models import CompileEvent, Run
from fleet.runs.compiles import store_compiles
from telemetry.compiles import FAIL, HIT, MISS, Compile
from tests.fleet.api.conftest import Ask
from tests.helpers import just_now

CACHE = "/fsx/cache"


@pytest.fixture
def recompiled(run: Run) -> Run:
    """Let a run compile a graph, find it, compile it again with other flags, and fail once."""
    now_s = just_now().timestamp()
    Run.objects.update(started_at=just_now() - timedelta(days=2))
    run.refresh_from_db()
    store_compiles(
        run,
        [
            Compile("MODULE_1+a", MISS, now_s - 90_000, 1800.0, flags="-O1", cache=CACHE),
            Compile("MODULE_1+a", HIT, now_s - 80_000, cache=CACHE),
            Compile("MODULE_1+b", MISS, now_s - 7_200, 1800.0, flags="-O2", cache=CACHE),
            Compile("MODULE_2+a", FAIL, now_s - 7_000, 60.0, cache=CACHE),
        ],
    )
    return run


def test_an_accident_states_what_changed_in_its_key_and_what_it_cost(
    ask: Ask, recompiled: Run
) -> None:
    (reported,) = ask("compiles?kind=unannounced").json()["items"]

    assert (reported["run"], reported["outcome"], reported["graph"]) == ("llama", "miss", "1")
    assert reported["changes"] == [{"what": "flags", "before": "-O1", "after": "-O2"}]
    assert reported["words"] == ["flags: -O1 became -O2"]
    # Half an hour of four nodes at $21.50.
    assert (reported["seconds"], reported["usd"]) == (1800.0, pytest.approx(43.0))
    assert reported["before"].startswith("found in the cache")
    assert reported["before_at"] < reported["at"]
    assert ask(f"compiles/{reported['id']}").json() == reported


@pytest.mark.parametrize(
    ("query", "outcomes"),
    [
        ("", ["fail", "miss", "hit", "miss"]),
        ("kind=compiled", ["miss", "miss"]),
        ("kind=failed", ["fail"]),
        ("kind=beside", []),
        ("run=llama&team=LLM&kind=failed", ["fail"]),
        ("run=missing", []),
        ("until=0", []),
        ("since=9e99", []),
    ],
)
def test_events_are_listed_by_what_they_are(
    ask: Ask, recompiled: Run, query: str, outcomes: list[str]
) -> None:
    reported = ask(f"compiles?{query}").json()["items"]

    assert [each["outcome"] for each in reported] == outcomes


def test_a_window_leaves_out_what_came_before_and_after(ask: Ask, recompiled: Run) -> None:
    since, until = (just_now() - timedelta(seconds=s) for s in (85_000, 7_100))
    window = f"since={since.timestamp()}&until={until.timestamp()}"

    assert len(ask(f"compiles?{window}").json()["items"]) == 2
    assert ask(f"compiles/sums?{window}").json()["n_misses"] == 1


def test_the_fleet_is_summed_up_with_what_it_lost(ask: Ask, recompiled: Run) -> None:
    sums = ask("compiles/sums", scope="read").json()

    counts = {name: sums[f"n_{name}"] for name in ("graphs", "hits", "misses", "failures", "runs")}
    assert counts == {"graphs": 3, "hits": 1, "misses": 2, "failures": 1, "runs": 1}
    assert (sums["lost_s"], sums["lost_usd"]) == (1800.0, pytest.approx(43.0))
    assert sums["wall_s"] == pytest.approx(3600.0)
    (row,) = sums["runs"]
    assert (row["run"], row["team"], row["cache"], row["sharing"]) == (
        *("llama", "LLM", CACHE, "shared"),
    )
    assert ask("compiles/sums?limit=1&run=missing").json()["runs"] == []


def test_a_run_is_reported_by_graph(ask: Ask, recompiled: Run) -> None:
    reported = ask("runs/llama/compiles").json()

    assert (reported["n_graphs"], reported["hit_ratio"], reported["n_accidents"]) == (3, 0.25, 1)
    assert (reported["lost_s"], reported["lost_usd"]) == (1800.0, pytest.approx(43.0))
    assert reported["accidents"][0]["words"] == ["flags: -O1 became -O2"]
    assert {graph["module"] for graph in reported["graphs"]} == {
        *("MODULE_1+a", "MODULE_1+b", "MODULE_2+a"),
    }
    assert ask("runs/missing/compiles").status_code == 404


def test_a_run_that_never_asked_a_cache_reports_nothing(ask: Ask, run: Run) -> None:
    reported = ask("runs/llama/compiles").json()

    assert (
        reported["n_graphs"],
        reported["hit_ratio"],
        reported["wall_s"],
        reported["cache"],
    ) == (*(0, None, None, None),)


def test_without_a_price_dollars_are_null(ask: Ask, recompiled: Run) -> None:
    Run.objects.update(usd_per_node_hour=0)

    assert ask("compiles?kind=unannounced").json()["items"][0]["usd"] is None
    assert ask("compiles/sums").json()["lost_usd"] is None
    assert ask("runs/llama/compiles").json()["lost_usd"] is None


def test_a_long_log_asks_the_database_little(
    ask: Ask, run: Run, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    ask("me")
    CompileEvent.objects.bulk_create(
        CompileEvent(run=run, module=f"MODULE_{i}+a", outcome="hit", at=just_now())
        for i in range(100)
    )

    with django_assert_max_num_queries(5):
        assert len(ask("compiles?limit=100").json()["items"]) == 100
