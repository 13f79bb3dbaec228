"""The overview: open alerts, location, duration, owner, cost."""

import re
import time
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
from django.test import Client
from django.utils import timezone
from django.utils.html import strip_tags
from pytest_django import DjangoAssertNumQueries, Settings

from fleet.models import Alert, Node, Run
from fleet.pages.overview import overview_heat, overview_points
from telemetry.store.hot import HotStore
from tests.alerts import straggling
from tests.fleet.test_anonymous_access import member
from tests.helpers import block, free_port, steps, watch_since

STANDS = r"which (hangs|has stopped|has had its reports refused) since"


@pytest.fixture(autouse=True)
def _open_to_all(settings: Settings) -> None:
    settings.ANONYMOUS_READING = True


@pytest.fixture
def alive(hot: HotStore, run: Run, steady: Node, limping: Node) -> Run:
    """Let two nodes report and their run make steps now."""
    now_s = int(time.time())
    hot.append([block(tick=now_s, nodes=("steady", "limping"), fill=0.5)])
    hot.append_steps(steps(n_steps=10, ended_at_s=now_s - 20, compute_s=1.4, transfer_s=0.6))
    watch_since(hot, now_s - 3600)
    return run


@pytest.fixture
def alert(alive: Run, limping: Node) -> Alert:
    """Fire one unacknowledged alert that accuses a node."""
    now = datetime.now(UTC)
    return straggling(alive, limping, at=now, evidence={"share_ratio": 0.314, "limit_ratio": 0.25})


def text(client: Client, **headers: str) -> str:
    """Return the page's text, narrow spaces made plain."""
    return client.get("/", headers=headers).text.replace("\u202f", " ")


@pytest.mark.parametrize(
    ("cause", "word"),
    [("unknown", "hangs"), ("workers_ended", "stopped"), ("reports_refused", "refused")],
    ids=str,
)
def test_a_run_that_hangs_is_shown_as_such_on_each_page(
    client: Client, run: Run, limping: Node, hot: HotStore, cause: str, word: str
) -> None:
    now_s = time.time()
    # Its alert is open for longer than its steps are kept.
    hot.append([block(tick=int(now_s), nodes=("limping",), fill=0.5)])
    since = datetime.fromtimestamp(now_s - 1200, UTC)
    hang = straggling(run, limping, at=since, rule="hang", cause=cause)

    for url in ("/", "/runs/", run.get_absolute_url()):
        page = client.get(url).text
        assert re.search(rf'<span class="tag[^>]*>.{{0,40}} {word}</span>\s+<small', page), url
        assert "▸" not in page
    node = client.get(limping.get_absolute_url()).text
    assert "is training" not in node
    assert re.search(STANDS, node)
    assert client.get(f"/api/v1/runs/{run.name}").json()["standstill"] == word

    # Nodes that it does not accuse are those of a run that hangs, too.
    hang.node = None
    hang.save()
    assert re.search(STANDS, client.get(limping.get_absolute_url()).text)
    hang.resolved_at = timezone.now()
    hang.save()
    assert "▸" in client.get(run.get_absolute_url()).text
    assert client.get(f"/api/v1/runs/{run.name}").json()["standstill"] == ""


def test_the_alert_that_costs_most_comes_first(
    client: Client, alive: Run, limping: Node, steady: Node
) -> None:
    now = datetime.now(UTC)
    cheap, costly = (
        straggling(
            alive,
            node,
            at=now - timedelta(minutes=minutes),
            subject=f"node:{node}",
            evidence={"step_s": step_s, "baseline_step_s": 2.0},
        )
        for node, minutes, step_s in ((limping, 10, 2.2), (steady, 1, 9.0))
    )
    for url in ("/", alive.get_absolute_url()):
        page = client.get(url).text
        assert page.index(f'id="alert-{costly.pk}"') < page.index(f'id="alert-{cheap.pk}"')
    past = client.get(f"/?at={int(now.timestamp())}").text
    assert past.index(f'id="alert-{costly.pk}"') < past.index(f'id="alert-{cheap.pk}"')


def test_a_run_that_waits_for_its_nodes_again_is_without_steps(
    client: Client, run: Run, limping: Node, hot: HotStore
) -> None:
    now_s = int(time.time())
    hot.append([block(tick=now_s, nodes=("limping",), fill=0.5)])
    watch_since(hot, now_s - 3600)
    run.phase = Run.Phase.PENDING
    run.save()
    # A new run that waits is no run that has stopped.
    assert "without steps" not in text(client)
    hot.append_steps(steps(n_steps=10, ended_at_s=now_s - 200, compute_s=1.4, transfer_s=0.6))
    assert "llama without steps" in text(client)


def test_without_scripts_a_node_still_shows_how_busy_it_is(client: Client, alive: Run) -> None:
    assert '<noscript><svg aria-hidden="true"><rect width="50%"' in text(client)


def test_it_answers_whether_anything_is_wrong(client: Client, alive: Run) -> None:
    page = text(client)

    assert "nothing is wrong" in page
    assert "2 <small>of 2</small>" in page
    assert "30.0 %" in page


def test_it_names_what_is_wrong_and_who_has_it(client: Client, alert: Alert) -> None:
    page = text(client)

    assert "1 unacknowledged" in page
    assert "Core 7 of limping is slow" in page
    assert "Restart the run without limping." in page


def state_of(page: str) -> list[str]:
    """Return the words of the marks that a run's line has on a wide screen."""
    row = page.partition('id="run-llama"')[2].partition("</tr>")[0]
    cell = row.rpartition("<td")[2]
    return [label.strip() for label in re.findall(r"</span> ([\w ]+)</span>", cell)]


def test_a_healthy_run_states_what_it_does_and_how_well(client: Client, alive: Run) -> None:
    Run.objects.update(allreduce_limit_ratio=0.4)

    assert state_of(text(client)) == ["training", "healthy"]


def test_a_run_above_its_limit_is_not_healthy(client: Client, alive: Run) -> None:
    assert state_of(text(client)) == ["training", "over limit"]


@pytest.mark.parametrize("path", ["/", "/runs/"])
def test_an_acknowledged_alert_stays_on_its_run_and_in_the_count(
    client: Client, alert: Alert, path: str
) -> None:
    assert state_of(client.get(path).text) == ["training", "firing"]
    Alert.objects.update(acknowledged_at=datetime.now(UTC), acknowledged_by="olga")

    page = client.get(path).text
    assert state_of(page) == ["training", "acknowledged"]
    if path == "/":
        assert "<b>0 <small>of 1 open</small></b>" in page
        assert "Firing" not in page


def test_it_shows_a_node_that_fell_silent(client: Client, alive: Run, silent: Node) -> None:
    page = text(client)

    assert "2 <small>of 3</small>" in page
    assert "1 silent" in page


def test_a_node_is_not_silent_before_it_had_its_turn(
    client: Client, alive: Run, silent: Node, hot: HotStore
) -> None:
    watch_since(hot, time.time())
    page = text(client)

    assert "1 silent" not in page
    assert "starting: 1 not reporting yet" in page
    assert "nothing is wrong" not in page


@pytest.mark.parametrize(
    ("since_s", "stopped_s", "words"),
    [
        (None, None, "nothing is evaluated yet"),
        # Silent nodes and hanging runs show later.
        (3, -3600, "silent nodes and hangs show in"),
        (3600, 40, "own workers have been stopped for"),
        (3600, -3600, "nothing is wrong"),
    ],
    ids=["before the first evaluation", "just started", "stopped", "watching"],
)
def test_nothing_is_wrong_only_where_all_is_evaluated(
    client: Client,
    alive: Run,
    hot: HotStore,
    since_s: float | None,
    stopped_s: float | None,
    words: str,
) -> None:
    hot.execute("HDEL", "service:gauges", "listening_since_s", "watched_at_s")
    if since_s is not None and stopped_s is not None:
        hot.gauge("listening_since_s", time.time() - since_s)
        hot.gauge("watched_at_s", time.time() - stopped_s)

    for url in ("/", "/alerts/"):
        page = client.get(url).text
        assert words in page, url
        assert ("nothing is wrong" in page) == (words == "nothing is wrong"), url


def test_no_node_is_silent_while_trnwatch_itself_is_stopped(
    client: Client, alive: Run, silent: Node, hot: HotStore
) -> None:
    hot.gauge("watched_at_s", time.time() - 40)

    page = text(client)

    assert "unknown: trnwatch is stopped" in page
    assert "1 silent" not in page
    assert "not reporting yet" not in page


def test_nodes_that_report_are_known_before_they_are_evaluated_again(
    client: Client, alive: Run, hot: HotStore
) -> None:
    hot.gauge("watched_at_s", time.time() - 40)

    page = text(client)

    assert "unknown: trnwatch is stopped" not in page
    assert "not reporting yet" not in page


def test_what_is_not_heard_while_trnwatch_itself_is_stopped_is_unknown_never_zero(
    client: Client, run: Run, steady: Node, silent: Node, hot: HotStore
) -> None:
    hot.append_steps(steps(n_steps=20, ended_at_s=time.time() - 60, compute_s=1.0))
    hot.gauge("watched_at_s", time.time() - 40)

    page = " ".join(strip_tags(text(client)).replace("\u2013", "?").split())

    assert "Nodes reporting ? of 2" in page
    assert "Worst all-reduce share ? unknown now" in page
    assert "Tokens per second ? unknown now" in page
    assert "? per 1M tokens" in page
    rows = client.get("/nodes/").text
    assert rows.count("unknown</") >= 2
    assert "waiting</" not in rows
    assert text(client).count('muted">unknown</span>') == 2
    hot.gauge("watched_at_s", time.time())
    assert "no current steps" in text(client)


def test_alerts_are_listed_without_redis_and_none_is_not_called_well(
    client: Client, alive: Run, settings: Settings
) -> None:
    settings.REDIS_URL = f"redis://127.0.0.1:{free_port()}/0"

    page = client.get("/alerts/").text

    assert "Redis is not responding" in page
    assert "nothing is wrong" not in page


def test_the_demo_says_that_its_past_is_not_complete(
    client: Client, alive: Run, settings: Settings
) -> None:
    settings.DEMO = True
    Run.objects.update(is_simulated=True, past_until=timezone.now())

    said = "Simulated fleet. History is ready for 0 of 1 runs."
    assert said in " ".join(strip_tags(text(client)).split())
    trials, alerts = client.get("/trials/").text, client.get("/alerts/").text
    assert said in " ".join(strip_tags(trials).split())
    assert "0 resolved" not in text(client)
    assert "0 resolved" not in client.get(alive.get_absolute_url()).text
    # What is missing does not read as none.
    assert "No trials." not in trials
    assert "its trials follow" in trials
    assert "No resolved alerts" not in alerts
    assert "resolved alerts follow" in alerts

    Run.objects.update(past_until=None)

    assert "No trials." in client.get("/trials/").text
    assert "No resolved alerts yet." in client.get("/alerts/").text
    assert "0 resolved in 24 h" in text(client)
    assert "0 resolved alerts" in client.get(alive.get_absolute_url()).text
    assert "History is ready" not in text(client)


def test_a_demo_without_its_fleet_says_that_it_starts(
    client: Client, db: None, redis_url: str, settings: Settings
) -> None:
    settings.DEMO = True
    page = client.get("/")

    assert "The simulated fleet is being created." in page.text
    assert 'http-equiv="refresh" content="2"' in page.text
    assert "This page reloads every 2\N{NARROW NO-BREAK SPACE}seconds." in page.text
    assert "Create an ingest token" not in page.text


def test_an_empty_fleet_shows_how_to_begin(client: Client, db: None, redis_url: str) -> None:
    page = text(client)

    assert "No nodes are reporting" in page
    assert "/api/v1/ingest/prometheus" in page


@pytest.mark.parametrize("partial", ["past", "strip", "heat-map", "runs", "alerts"])
def test_it_gives_htmx_only_the_partial_it_asks_for(
    client: Client, alert: Alert, partial: str
) -> None:
    response = client.get("/", headers={"HX-Request": "true", "HX-Target": partial})

    assert f'id="{partial}"' in response.text
    assert "<html" not in response.text
    assert "HX-Target" in response["Vary"]


def test_it_ignores_a_target_that_is_no_partial(client: Client, alive: Run) -> None:
    assert "<html" in text(client, **{"HX-Request": "true", "HX-Target": "x"})


def test_it_has_the_figures_as_a_table_too(client: Client, alive: Run) -> None:
    table = text(client, **{"HX-Request": "true", "HX-Target": "heat-rows"})

    assert "limping" in table
    assert "50.2 %" in table or "50.0 %" in table or "49.8 %" in table


def test_it_asks_the_database_no_more_for_many_nodes(
    client: Client,
    alert: Alert,
    django_assert_max_num_queries: DjangoAssertNumQueries,
) -> None:
    for i in range(100):
        Node.objects.create(
            name=f"more-{i:02d}",
            instance_type="trn1.32xlarge",
            shard="llama/1",
            run=alert.run,
            rank=i,
            n_cores=32,
            n_devices=16,
            first_seen_at=alert.fired_at,
        )
    with django_assert_max_num_queries(10):
        client.get("/")


def test_names_are_escaped(client: Client, alive: Run) -> None:
    Node.objects.filter(name="steady").update(name="rock&roll")

    assert "rock&amp;roll" in text(client)


def test_it_is_for_reading_only(client: Client, alive: Run) -> None:
    client.force_login(member("admin"))
    assert client.post("/").status_code == 405


def test_anonymous_users_are_sent_to_sign_in(
    client: Client, alive: Run, settings: Settings
) -> None:
    settings.ANONYMOUS_READING = False

    assert client.get("/").status_code == 302


def test_it_shows_how_late_the_ticks_are(client: Client, hot: HotStore, alive: Run) -> None:
    hot.gauge("tick_lateness_s", 0.23)
    hot.count("ticks_late", 12)
    page = text(client)
    assert "12 samples processed late" in page
    assert "ms late" not in page

    hot.gauge("tick_lateness_s", 4.2)
    assert re.search(r"4\.20?\s*s late", text(client))


def test_of_many_rows_of_the_heat_map_each_has_its_turn() -> None:
    row = SimpleNamespace(cells="x" * 100)
    rows = [SimpleNamespace(name=f"n{i}", **vars(row)) for i in range(400)]

    def sent(tick: int) -> set[str]:
        context = {"groups": [SimpleNamespace(rows=rows)], "fleet": SimpleNamespace(tick=tick)}
        return set(overview_heat(context))

    turns = [sent(tick) for tick in range(3)]
    assert max(len(turn) for turn in turns) * 100 <= 20_000
    assert set.union(*turns) == {row.name for row in rows}
    rows[10:] = []
    assert sent(0) == sent(1) == {f"n{i}" for i in range(10)}


def test_of_many_runs_the_worst_are_shown_and_few_are_charted(
    client: Client, alert: Alert, hot: HotStore
) -> None:
    run = Run.objects.get()
    for i in range(40):
        run.pk, run.name, run.n_nodes = None, f"more-{i:02}", 1
        run.save()

    page = text(client)

    assert page.count('<tr id="run-') == 25
    assert page.index('id="run-llama"') < page.index('id="run-more-')
    assert "All 41 runs" in " ".join(strip_tags(page).split())
    charted = [line["label"] for line in client.get("/overview/shares").json()["series"]]
    assert len(charted) == 12
    assert charted[0] == "llama"
    assert overview_points(since_s=time.time() - 25)["shares"]["labels"] == charted
