"""`/metrics`: content types and completeness."""

import gzip
import subprocess
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_open
from prometheus_client.parser import text_string_to_metric_families as parse_text
from pytest_django import DjangoAssertNumQueries, Settings

from fleet.alerts import mark_false, unmark_false
from fleet.models import Alert, Node, Run, Token
from telemetry.steps import PHASES
from telemetry.store.hot import HotStore
from tests.helpers import block, steps


@pytest.fixture(autouse=True)
def reading(settings: Settings) -> None:
    """Let anyone on this machine read."""
    settings.ANONYMOUS_READING = True


@pytest.fixture
def now() -> int:
    return int(time.time())


@pytest.fixture
def trained(run: Run, hot: HotStore, now: int) -> Run:
    """Let the run make twenty steps, the last one just now."""
    hot.append_steps(
        steps(n_steps=20, ended_at_s=now - 20, compute_s=0.6, wait_s=[0.0, 0.2], transfer_s=0.2)
    )
    return run


def samples(client: Client) -> dict[tuple[str, ...], float]:
    page = client.get("/metrics").getvalue().decode()
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in parse_text(page)
        for sample in family.samples
    }


def test_it_reports_nodes(client: Client, hot: HotStore, steady: Node, now: int) -> None:
    hot.append([block(tick=now, nodes=["steady"])])

    found = samples(client)

    assert found["trnwatch_node_up", "steady"] == 1
    assert found["trnwatch_core_utilization_ratio", "0", "steady"] == pytest.approx(0.5, abs=0.01)


def test_it_reports_a_run(client: Client, trained: Run) -> None:
    found = samples(client)

    assert found["trnwatch_run_step_seconds", "llama"] == pytest.approx(0.9, rel=0.01)
    share = found["trnwatch_run_allreduce_share_ratio", "llama"]
    wait = found["trnwatch_run_allreduce_wait_ratio", "llama"]
    transfer = found["trnwatch_run_allreduce_transfer_ratio", "llama"]
    assert share == pytest.approx(wait + transfer)
    phases = {name[1]: value for name, value in found.items() if "run_phase_seconds" in name[0]}
    assert set(phases) == {phase.removesuffix("_s") for phase in PHASES}
    assert sum(phases.values()) == pytest.approx(found["trnwatch_run_step_seconds", "llama"])
    assert phases["transfer"] == pytest.approx(transfer * 0.9, rel=0.05)
    assert found["trnwatch_run_tokens_total", "llama"] == 20 * 4096
    assert found["trnwatch_run_cost_usd_total", "llama"] > 0


def test_a_run_whose_steps_stopped_has_no_pace(
    client: Client, run: Run, hot: HotStore, now: int
) -> None:
    hot.append_steps(steps(n_steps=20, ended_at_s=now - 300, compute_s=1.0))

    found = samples(client)

    assert ("trnwatch_run_step_seconds", "llama") not in found
    assert "trnwatch_run_phase_seconds" not in {name for name, *_ in found}
    assert found["trnwatch_run_tokens_total", "llama"] == 20 * 4096


def test_a_run_over_for_days_is_not_reported(client: Client, run: Run, hot: HotStore) -> None:
    Run.objects.update(finished_at=timezone.now() - timedelta(days=2))

    assert not [key for key in samples(client) if "llama" in key]


def test_it_counts_alerts_by_rule(client: Client, run: Run, hot: HotStore, now: int) -> None:
    at = datetime.fromtimestamp(now, UTC)
    Alert.objects.create(
        rule="allreduce_share",
        severity=Alert.Severity.PAGE,
        subject="run:llama",
        run=run,
        score=2.0,
        onset_at=at,
        fired_at=at,
        last_seen_at=at,
        acknowledged_at=at,
    )

    found = samples(client)

    assert found["trnwatch_alerts_firing", "allreduce_share", "page"] == 1
    assert found["trnwatch_alerts_unacknowledged", "allreduce_share", "page"] == 0
    assert found["trnwatch_alerts_firing", "node_silent", "page"] == 0


def test_false_marks_are_counted_once_and_never_fall(
    client: Client, run: Run, hot: HotStore, now: int
) -> None:
    at = datetime.fromtimestamp(now, UTC)
    usual: Any = {"run": run, "score": 2.0, "onset_at": at, "fired_at": at, "last_seen_at": at}
    page, warn = Alert.Severity.PAGE, Alert.Severity.WARN
    grew, drill, other = (
        Alert.objects.create(
            rule=rule, subject=f"run:{rule}", severity=warn, is_drill=rule == "hang", **usual
        )
        for rule in ("allreduce_share", "hang", "step_slow")
    )
    name = "trnwatch_alerts_marked_false_total"
    assert samples(client)[name, "allreduce_share", "warn"] == 0

    for alert in (grew, drill, other):
        assert mark_false(alert, by="ada", reason="noise", now=at)
    # It becomes a page, and its mark is removed.
    Alert.objects.filter(pk=grew.pk).update(severity=page)
    grew.refresh_from_db()
    assert unmark_false(grew, by="ada", now=at)

    found = samples(client)
    assert found[name, "allreduce_share", "warn"] == found[name, "step_slow", "warn"] == 1
    assert found[name, "allreduce_share", "page"] == found[name, "hang", "warn"] == 0
    mark_false(other, by="ada", reason="noise", now=at)
    unmark_false(other, by="ada", now=at)
    mark_false(other, by="ada", reason="noise", now=at)
    assert samples(client)[name, "step_slow", "warn"] == 1
    assert (name, "node_idle", "page") not in found


@pytest.mark.prometheus
def test_promtool_has_nothing_to_say(
    client: Client, trained: Run, hot: HotStore, steady: Node, limping: Node, now: int
) -> None:
    hot.append([block(tick=now)])

    page = client.get("/metrics").getvalue()
    check = subprocess.run(
        ["promtool", "check", "metrics"], input=page, capture_output=True, check=False
    )

    assert len(page) > 10_000
    assert (check.returncode, check.stdout, check.stderr) == (0, b"", b"")


def test_it_returns_text_by_default(client: Client, trained: Run) -> None:
    response = client.get("/metrics")

    assert response["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert "Accept-Encoding" in response["Vary"]


def test_it_returns_open_metrics_when_preferred(
    client: Client, hot: HotStore, trained: Run, steady: Node, now: int
) -> None:
    hot.append([block(tick=now, nodes=["steady"])])
    asked = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"
    response = client.get("/metrics", headers={"Accept": asked})

    assert response["Content-Type"].startswith("application/openmetrics-text; version=1.0.0")
    families = [*parse_open(response.getvalue().decode())]  # type: ignore[no-untyped-call]
    names = {family.name for family in families}
    assert {"trnwatch_run_step_seconds", "trnwatch_run_tokens"} <= names


def test_it_compresses_on_request(client: Client, trained: Run) -> None:
    response = client.get("/metrics", headers={"Accept-Encoding": "gzip"})

    assert response["Content-Encoding"] == "gzip"
    assert gzip.decompress(response.getvalue()).startswith(b"# HELP trnwatch_")


def test_it_does_not_compress_for_who_cannot_read_it(client: Client, trained: Run) -> None:
    for accepted in ("", "br", "gzip;q=0", "br, gzip; q=0.0", "x-gzip"):
        response = client.get("/metrics", headers={"Accept-Encoding": accepted})
        assert "Content-Encoding" not in response
    for accepted in ("gzip", "br;q=1.0, gzip;q=0.8", "deflate,gzip", "gzip; q=0.01"):
        response = client.get("/metrics", headers={"Accept-Encoding": accepted})
        assert response["Content-Encoding"] == "gzip"


def test_while_redis_is_away_the_scrape_fails(client: Client, db: None) -> None:
    response = client.get("/metrics")

    assert response.status_code == 503
    assert b"REDIS_URL" in response.content


def test_it_asks_the_database_few_times_however_large_the_fleet(
    client: Client,
    trained: Run,
    steady: Node,
    limping: Node,
    silent: Node,
    django_assert_max_num_queries: DjangoAssertNumQueries,
) -> None:
    with django_assert_max_num_queries(10):
        client.get("/metrics")


def test_every_name_is_trnwatchs_own(
    client: Client, hot: HotStore, trained: Run, steady: Node, now: int
) -> None:
    hot.append([block(tick=now, nodes=["steady"])])

    names = {family.name for family in parse_text(page(client, "/metrics"))}

    assert len(names) > 50
    assert [name for name in names if not name.startswith("trnwatch_")] == []


def test_nodes_may_be_left_to_their_own_pages(
    client: Client, hot: HotStore, trained: Run, steady: Node, now: int
) -> None:
    hot.append([block(tick=now, nodes=["steady"])])

    whole = {family.name for family in parse_text(page(client, "/metrics"))}
    rest = {family.name for family in parse_text(page(client, "/metrics?nodes=0"))}

    assert whole - rest >= {"trnwatch_node_up", "trnwatch_core_utilization_ratio"}
    assert rest >= {"trnwatch_run_step_seconds", "trnwatch_alerts_firing", "trnwatch_node_info"}


def page(client: Client, path: str) -> str:
    return client.get(path).getvalue().decode()


def test_a_runs_steps_have_an_example_that_leads_to_the_run(
    client: Client, trained: Run, settings: Settings
) -> None:
    settings.BASE_URL = "https://trnwatch.example"
    asked = {"Accept": "application/openmetrics-text;version=1.0.0"}
    families = parse_open(client.get("/metrics", headers=asked).getvalue().decode())  # type: ignore[no-untyped-call]

    [steps_made] = [family for family in families if family.name == "trnwatch_run_steps"]

    example = steps_made.samples[0].exemplar
    url = "https://trnwatch.example/runs/llama/"
    assert example.labels == {"run": "llama", "step": "20", "url": url}
    assert example.value == pytest.approx(0.9, rel=0.01)
    assert (
        "#"
        not in page(client, "/metrics").partition("trnwatch_run_steps_total{")[2].split("\n")[0]
    )


def test_an_example_leaves_out_an_address_that_is_too_long(
    client: Client, trained: Run, settings: Settings
) -> None:
    settings.BASE_URL = f"https://{'trnwatch.' * 12}example"
    asked = {"Accept": "application/openmetrics-text;version=1.0.0"}

    reported = client.get("/metrics", headers=asked).getvalue().decode()

    assert 'trnwatch_run_steps_total{run="llama"} 20.0 # {run="llama",step="20"} ' in reported


def test_it_only_reads(client: Client, trained: Run) -> None:
    _, secret = Token.issue("prometheus", Token.Scope.SCRAPE, now=timezone.now())
    bearer = {"Authorization": f"Bearer {secret}"}

    assert client.post("/metrics", headers=bearer).status_code == 405


def test_anonymous_callers_need_a_token(client: Client, db: None, settings: Settings) -> None:
    settings.ANONYMOUS_READING = False

    assert client.get("/metrics").status_code == 401
