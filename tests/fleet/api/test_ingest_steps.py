"""Ingest of step reports: accepted, refused with a reason, stored."""

import gzip
import json
import re
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from django.db import DatabaseError, connection
from django.test import Client
from pytest_django import Settings

from fleet.models import Node, Run, Token
from fleet.runs.similar_runs import job_of
from telemetry.store.hot import HotStore
from tests.fleet.api.training_jobs import ABOUT, NODES, URL, line, step, step_lines
from tests.helpers import NOON

Post = Callable[..., Any]


@pytest.fixture
def post(client: Client, secret: str, redis_url: str) -> Post:
    """Give a function that posts lines."""

    def send(*lines: bytes, bearer: str = secret, path: str = URL, **more: str) -> Any:
        headers = {name.replace("_", "-"): value for name, value in more.items()}
        headers["Authorization"] = f"Bearer {bearer}"
        return client.post(
            path, b"\n".join(lines), content_type="application/x-ndjson", headers=headers
        )

    return send


def test_a_whole_step_is_in_the_store_at_once(post: Post, hot: HotStore) -> None:
    now_s = time.time()

    answer = post(*step_lines(1, ended_at=now_s, collective_s=(0.3, 0.3, 0.1, 0.2))).json()
    batch = hot.steps("real", since_s=now_s - 60)

    assert (answer["accepted"], answer["repeated"], answer["n_refused"]) == (4, 0, 0)
    assert batch.workers == NODES
    np.testing.assert_allclose(batch.phases["transfer_s"], [[0.1, 0.1, 0.1, 0.1]])
    np.testing.assert_allclose(batch.phases["wait_s"], [[0.2, 0.2, 0.0, 0.1]], atol=1e-9)
    np.testing.assert_allclose(batch.step_s, [1.0])


def test_a_step_waits_for_all_its_workers(post: Post, hot: HotStore) -> None:
    now_s = time.time()
    first, *others = step_lines(1, ended_at=now_s)

    post(first)
    before = len(hot.steps("real", since_s=now_s - 60))
    for each in reversed(others):
        post(each)

    assert before == 0
    assert np.isfinite(hot.steps("real", since_s=now_s - 60).phases["compute_s"]).all()


def test_reports_over_several_lines_are_read(post: Post) -> None:
    lines = step_lines(1, ended_at=time.time())

    answer = post(*(json.dumps(json.loads(each), indent=2).encode() for each in lines)).json()

    assert (answer["accepted"], answer["n_refused"]) == (4, 0)


@pytest.mark.parametrize("other", [{"rank": 1}, {"step_s": 1.01}])
def test_processes_of_one_name_are_told_to_have_their_own(
    post: Post, admin_client: Client, other: dict[str, float]
) -> None:
    """As where each process of a node reports as the host: all but the first were repeats."""
    first = {"ended_at": time.time() - 0.02, "rank": 0}
    post(step(1, "trn-a", **first))

    answer = post(step(1, "trn-a", **first | other)).json()

    assert (answer["field"], "such as trn-a/1" in answer["detail"]) == ("worker", True)
    assert "Give each process a name of its own" in admin_client.get("/runs/real/").text


@pytest.mark.parametrize(
    ("step_s", "every_s", "n_refused"),
    # The last ones end in the same second.
    [(0.3, 0.3, 0), (300.0, 0.3, 2), (5.0, 0.0, 0)],
)
def test_durations_in_milliseconds_are_refused_with_the_unit(
    post: Post, admin_client: Client, step_s: float, every_s: float, n_refused: int
) -> None:
    now_s = int(time.time())
    lines = [
        step(number, "trn-a", ended_at=now_s + number * every_s, step_s=step_s, n_workers=1)
        for number in (1, 2, 3)
    ]

    answer = post(*lines).json()

    assert answer["n_refused"] == n_refused
    assert {each["field"] for each in answer["refused"]} <= {"step_s"}
    page = admin_client.get("/runs/real/").text
    assert ("give seconds, not milliseconds" in page) is bool(n_refused)


def test_what_is_sent_again_counts_once(post: Post, hot: HotStore) -> None:
    lines = step_lines(1, ended_at=time.time(), tokens=1000)

    post(*lines)
    answer = post(*lines).json()

    assert (answer["accepted"], answer["repeated"]) == (0, 4)
    assert hot.totals().tokens["real"] == 1000


def test_steps_of_a_restart_in_the_same_session_are_refused_with_the_reason(
    post: Post, hot: HotStore, admin_client: Client
) -> None:
    now_s = time.time()
    for i in range(3):
        post(*step_lines(1 + i, ended_at=now_s - 60 + i))
    # From its checkpoint on, and further than the start before.
    again = [line for i in range(3) for line in step_lines(2 + i, ended_at=now_s - 10 + i)]
    answer = post(*again).json()

    assert (answer["accepted"], answer["repeated"], answer["n_refused"]) == (4, 0, 8)
    first = answer["refused"][0]
    assert (first["line"], first["field"]) == (1, "session")
    assert "has step 2 of trn-a already, which ended 49 s before this one" in first["reason"]
    assert "Give each start of the job a session of its own" in first["reason"]
    page = admin_client.get("/runs/real/").text
    assert "8 reports refused within a minute: session: " in page
    # The reason says what helps.
    renamed = [json.loads(each) | {"session": "2"} for each in again]
    answer = post(*(json.dumps(each).encode() for each in renamed)).json()
    assert (answer["accepted"], answer["repeated"], answer["n_refused"]) == (12, 0, 0)


@pytest.mark.parametrize(("moved_s", "n_refused"), [(0.9, 0), (1.0, 4), (-1.0, 4)])
def test_a_repeat_ends_when_the_first_report_did(
    post: Post, moved_s: float, n_refused: int
) -> None:
    """Two steps of one second end at least a second apart."""
    ended_at = float(int(time.time()) - 30)
    post(*step_lines(1, ended_at=ended_at))
    answer = post(*step_lines(1, ended_at=ended_at + moved_s), line("run", **ABOUT)).json()

    assert (answer["repeated"], answer["n_refused"]) == (4 - n_refused, n_refused)


def test_the_first_report_makes_the_run_and_its_nodes(post: Post) -> None:
    post(line("run", **ABOUT), *step_lines(1, ended_at=time.time()))
    run = Run.objects.get(name="real")

    assert (run.model, run.n_nodes, run.tp, run.team) == ("llama2-7b", 4, 8, "LLM")
    assert run.usd_per_node_hour > 0
    assert [(node.name, node.rank) for node in run.nodes.order_by("rank")] == [
        (name, rank) for rank, name in enumerate(NODES)
    ]


def test_a_run_reports_its_recipe_part_by_part(post: Post) -> None:
    post(line("run", **ABOUT, micro_batch=2), line("run", recompute="full"))
    run = Run.objects.get(name="real")

    assert run.recipe == {"micro_batch": 2, "recompute": "full"}
    assert job_of(run, precision="bf16").recipe == run.recipe
    assert post(line("run", recompute="some")).json()["n_refused"] == 1


def test_tokens_follow_from_batch_and_sequence(post: Post, hot: HotStore) -> None:
    post(line("run", **ABOUT), *step_lines(1, ended_at=time.time()))

    assert hot.totals().tokens["real"] == 64 * 4096


def test_a_gzip_body_is_accepted(post: Post) -> None:
    body = gzip.compress(b"\n".join(step_lines(1, ended_at=time.time())))

    assert post(body, Content_Encoding="gzip").json()["accepted"] == 4


@pytest.mark.parametrize(
    ("bad", "field"),
    [
        (b"nonsense", ""),
        (b'{"run": "real"}', "kind"),
        (line("stop"), "kind"),
        (line("step", worker="trn-a", step=1, ended_at=1e9), "step_s"),
        (step(1, "trn-a", ended_at=1e9, colective_s=1), "colective_s"),
        (step(-1, "trn-a", ended_at=1e9), "step"),
        (step(1, "trn a", ended_at=1e9), "worker"),
        (step(1, "trn-a", ended_at=time.time(), collective_s=1.2), "step_s"),
        (step(1, "trn-a", ended_at=time.time(), collective_s=[0.1, True]), "collective_s.1"),
        (step(1, "trn-a", ended_at=time.time(), arrived_at=[1e9, 1e9]), "arrived_at"),
        (step(1, "trn-a", ended_at=1e9), "ended_at"),
        (line("run", tp=0), "tp"),
    ],
    # Two processes must collect the same names: none may hold the time.
    ids=[
        "no JSON",
        "no kind",
        "unknown kind",
        "field is missing",
        "unknown field",
        "negative step",
        "name with a space",
        "exchange longer than the step",
        "no number",
        "arrived too early",
        "ended too early",
        "no parallelism",
    ],
)
def test_a_bad_line_is_named_and_the_others_are_accepted(
    post: Post, bad: bytes, field: str
) -> None:
    good = step(2, "trn-a", ended_at=time.time())

    answer = post(good, bad).json()

    assert answer["accepted"] == 1
    assert (answer["refused"][0]["line"], answer["refused"][0]["field"]) == (2, field)


def test_nothing_but_bad_lines_is_a_problem(post: Post, hot: HotStore) -> None:
    response = post(b"nonsense")

    assert response.status_code == 400
    assert response["Content-Type"] == "application/problem+json"
    assert response.json()["line"] == 1


def test_the_page_of_a_run_says_what_is_refused_of_it(post: Post, admin_client: Client) -> None:
    post(step(1, "trn-a", ended_at=time.time(), run="mine"))
    post(b'{"kind": "step", "run": "mine", "step": "two"}\n' * 4)

    page = admin_client.get("/runs/mine/").content.decode()

    assert "4 reports refused within a minute: " in page


def test_names_that_are_too_long_are_refused_with_the_limit_where_people_look(
    post: Post, admin_client: Client
) -> None:
    for seed in (1, 2):
        answer = post(step(1, "trn-a", ended_at=time.time(), run=f"{'a/b' * 40}{seed}")).json()

        assert answer["field"] == "run"
        assert "letters, digits, dashes and underscores, at most 60" in answer["detail"]
    assert not Run.objects.exists()
    shown = re.sub(r"\s+", " ", admin_client.get("/connect/").text)
    assert f"Run <b>{('a/b' * 40)[:80]}</b>" in shown
    assert "2 reports refused within a minute: run: " in shown
    assert "dashes and underscores, at most 60" in shown


@pytest.mark.parametrize(
    ("path", "body", "headers", "reason"),
    [
        (URL, b"nonsense", {}, "is not a JSON object"),
        (URL, b"{}", {"content_encoding": "gzip"}, "gzip"),
        ("/api/v1/ingest/neuron-monitor", b"nonsense", {}, "is not a JSON object"),
        ("/api/v1/ingest/prometheus", b"{}", {}, "Send remote write 1.0"),
        ("/api/v1/ingest/prometheus", b"{}", {"content_encoding": "snappy"}, "snappy block"),
        ("/api/v1/ingest/otlp", b"{}", {}, "Send OTLP"),
    ],
)
def test_what_names_no_node_and_no_run_is_shown_with_the_token_that_sent_it(
    post: Post, admin_client: Client, path: str, body: bytes, headers: dict[str, str], reason: str
) -> None:
    assert 400 <= post(body, path=path, **headers).status_code < 500
    post(body, path=path, bearer="trnw_nobody", **headers)

    shown = re.sub(r"\s+", " ", admin_client.get("/connect/").text)

    assert re.search(rf"Token <b>[^<]+</b>: <b[^>]*>1 report refused[^<]*{reason}", shown)


def test_reports_about_simulated_runs_and_nodes_are_refused(
    post: Post, run: Run, steady: Node
) -> None:
    Run.objects.update(is_simulated=True)

    taken = post(step(1, "trn-a", ended_at=time.time(), run="llama"))
    placed = post(step(1, "steady", ended_at=time.time()))

    assert taken.json()["field"] == "run"
    assert placed.json()["field"] == "node"


def test_an_agents_node_is_tied_to_the_run(post: Post) -> None:
    node = Node.objects.create(
        name="trn-a",
        instance_type="trn1.32xlarge",
        source=Node.Source.NEURON_MONITOR,
        shard="node:trn-a",
        n_cores=32,
        n_devices=16,
        first_seen_at=NOON,
    )

    post(step(1, "trn-a", ended_at=time.time(), rank=3))
    node.refresh_from_db()

    assert node.run is not None
    assert (node.run.name, node.rank, node.source) == ("real", 3, Node.Source.NEURON_MONITOR)


def test_a_clock_that_is_off_is_put_right(post: Post, hot: HotStore) -> None:
    now_s = time.time()
    lines = step_lines(1, ended_at=now_s - 500)

    answer = post(*lines, X_Trnwatch_At=str(now_s - 500)).json()

    assert answer["clock_skew_s"] == pytest.approx(500, abs=30)
    assert hot.steps("real", since_s=now_s - 60).ended_at_s == pytest.approx(now_s, abs=30)


def test_steps_too_old_for_the_hot_tier_are_kept_all_the_same(post: Post, hot: HotStore) -> None:
    now_s = time.time()

    post(*step_lines(1, ended_at=now_s - 7200), X_Trnwatch_At=str(now_s))

    assert len(hot.steps("real", since_s=0)) == 0


def test_without_a_token_nothing_is_accepted(post: Post) -> None:
    assert post(b"{}", bearer="nope").status_code == 401
    assert post(b"{}", bearer=Token.issue("s", "scrape", now=NOON)[1]).status_code == 403


def test_it_wants_a_post_of_something(client: Client, post: Post) -> None:
    assert client.get(URL).status_code == 405
    assert post(b" ").status_code == 400
    assert post(b"{}\n" * 20_000).status_code == 413
    assert post(gzip.compress(b" " * 20_000_000), Content_Encoding="gzip").status_code == 413
    assert post(b"{}", Content_Encoding="br").status_code == 415


def test_without_a_store_it_asks_to_be_sent_again(
    client: Client, secret: str, settings: Settings
) -> None:
    settings.REDIS_URL = "redis://127.0.0.1:1/0"

    response = client.post(
        URL, b"{}", content_type="text/plain", headers={"Authorization": f"Bearer {secret}"}
    )

    assert response.status_code == 503
    assert int(response["Retry-After"]) > 0


def test_without_the_database_nothing_is_half_kept(post: Post, hot: HotStore, secret: str) -> None:
    def down(*_: object) -> None:
        raise DatabaseError

    lines = step_lines(1, ended_at=time.time())
    with connection.execute_wrapper(down):
        response = post(*lines)

    assert response.status_code == 503
    assert post(*lines).json()["accepted"] == 4
