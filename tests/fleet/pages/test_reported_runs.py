"""Pages of reported runs: before the first step, without a split, with an alert."""

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from django.test import Client
from django.utils.html import strip_tags
from pytest_django import Settings

from fleet.alerts.trace_requests import update_trace_requests
from fleet.formatting import NBSP
from fleet.ingest.phases import update_reported_runs
from fleet.ingest.steps import StepIngest
from fleet.models import Alert, Node, Run, TraceRequest
from telemetry.store.hot import HotStore
from tests.fleet.api.training_jobs import ABOUT, NODES, line, step, step_lines

Say = Callable[..., None]


@pytest.fixture
def say(db: None, hot: HotStore, settings: Settings) -> Say:
    """Give a function that reports lines, and then follows the runs."""
    settings.ANONYMOUS_READING = True
    intake = StepIngest(time.monotonic)

    def report(*lines: bytes) -> None:
        now_s = time.time()
        intake.deliver(hot, lines, arrived_s=now_s)
        update_reported_runs(hot, now=datetime.fromtimestamp(now_s, UTC))

    return report


def read(client: Client, url: str) -> str:
    """Return a page with plain spaces."""
    return client.get(url).text.replace(NBSP, " ")


def inputs(client: Client) -> str:
    """Return the panel of inputs as it refreshes itself, as plain text."""
    response = client.get("/runs/real/", headers={"HX-Request": "true", "HX-Target": "run-inputs"})
    assert response.status_code == 200
    text = " ".join(strip_tags(response.text.replace("<dd>", " <dd>")).replace(NBSP, " ").split())
    assert text.startswith("Inputs")
    return text


def test_a_run_compiles_without_a_share_of_it_done(client: Client, say: Say) -> None:
    say(line("run", **ABOUT), line("beat", worker="trn-a", n_workers=4))
    page, runs, overview = (read(client, url) for url in ("/runs/real/", "/runs/", "/"))

    assert "without a step: it is compiling." in page
    assert "3 workers never reported" in page
    assert "0 % done" not in page + runs + overview
    assert "compiling" in runs
    assert "no steps yet" in page


def test_a_run_of_which_little_is_known_states_what_is_missing(client: Client, say: Say) -> None:
    say(*(step(n, "own", ended_at=time.time(), collective_s=None, n_workers=1) for n in (1, 2, 3)))
    page = read(client, "/runs/real/")

    assert page.count("not reported") >= 2
    assert "price unknown" in page
    assert "peak unknown" in page
    assert "1 worker, last report" in page


def test_a_run_whose_workers_write_a_checkpoint_is_not_said_to_stand_still(
    client: Client, say: Say
) -> None:
    ended_s = time.time() - 25
    say(line("run", **ABOUT), *(step(n, node, ended_at=ended_s) for n in (1, 2) for node in NODES))
    assert "no step for" in read(client, "/runs/real/")

    say(
        *(
            line("beat", worker=node, n_workers=4, activity="checkpoint", activity_s=24.0)
            for node in NODES
        )
    )
    page = read(client, "/runs/real/")

    assert "has been writing a checkpoint for <b>" in page
    assert "no step for" not in page


UNTIMED = {"collective_s": None}
TRACED = UNTIMED | {"executing_s": 0.95, "barrier_s": 0.1}


def traces(*states: str | None) -> list[bytes]:
    """Return a heartbeat of each worker, with what it says of its trace."""
    beats = zip(NODES, states, strict=True)
    return [line("beat", worker=node, n_workers=4, runtime_trace=state) for node, state in beats]


def untimed_steps(**last: object) -> list[bytes]:
    """Return three steps without a timed exchange, the last one with these fields."""
    now_s = time.time()
    return [
        step(number, node, ended_at=now_s - 3 + number, **UNTIMED | (last if number == 3 else {}))
        for number in (1, 2, 3)
        for node in NODES
    ]


def test_inputs_say_when_the_runtime_is_traced(
    client: Client, say: Say, settings: Settings
) -> None:
    say(line("run", **ABOUT), *untimed_steps(), *traces(*[None] * 4))
    assert "Runtime trace" not in inputs(client)
    assert "or set TRNWATCH_RUNTIME_TRACE=request in the job:" in inputs(client)

    say(*traces(*["on request"] * 4))
    panel = inputs(client)
    assert "Runtime trace when an alert requests it Not known" in panel
    assert "TRNWATCH_RUNTIME_TRACE" not in panel
    assert "requests a trace, which can name a slow node" in panel

    settings.REQUEST_TRACES = False
    panel = inputs(client)
    assert "forbidden by this server: TRNWATCH_REQUEST_TRACES=0" in panel
    assert "requests a trace" not in panel


def test_inputs_name_the_workers_without_a_trace(client: Client, say: Say) -> None:
    say(line("run", **ABOUT), *untimed_steps(), *traces(*["on request"] * 3, "libnrt is too old"))
    panel = inputs(client)
    assert "on 3 of 4 workers when an alert requests it" in panel
    assert "missing on 1 of 4 workers: libnrt is too old" in panel

    say(*traces(*["libnrt is too old"] * 4))
    panel = inputs(client)
    assert "Runtime trace missing: libnrt is too old" in panel
    # It is set already.
    assert "TRNWATCH_RUNTIME_TRACE" not in panel


def test_inputs_of_a_run_that_was_traced_are_those_of_other_times(
    client: Client, say: Say
) -> None:
    say(line("run", **ABOUT), *traces(*["on request"] * 4), *untimed_steps(**TRACED))
    panel = inputs(client)

    assert "Gradient exchange not timed; waits traced in 1 of 3 steps" in panel
    assert "hooks_only" in panel


def test_inputs_link_the_alert_that_requested_the_last_trace(
    client: Client, say: Say, hot: HotStore
) -> None:
    say(line("run", **ABOUT), *traces(*["on request"] * 4), *untimed_steps())
    run, now = Run.objects.get(), datetime.now(UTC)
    about = {"cause": "unknown", "subject": "run:real", "severity": Alert.Severity.WARN}
    times = dict.fromkeys(("onset_at", "fired_at", "last_seen_at"), now)
    evidence = {"kind": "step", "step_s": 10.0}
    alert = Alert.objects.create(
        rule="step_slow", run=run, score=1.3, evidence=evidence, **about, **times
    )
    update_trace_requests(hot, now=now)

    assert f"alert {alert.pk} requests it until " in inputs(client)
    TraceRequest.objects.update(ends_at=now - timedelta(seconds=1))
    assert f"alert {alert.pk} requested it " in inputs(client)


def test_inputs_before_the_first_step_and_after_the_end(client: Client, say: Say) -> None:
    say(line("run", **ABOUT), *traces(*["on request"] * 4))
    assert "The tier is known after the first steps." in inputs(client)
    assert "nothing can be detected" not in inputs(client)

    say(*untimed_steps(), *(line("end", worker=node) for node in NODES))
    headers = {"HX-Request": "true", "HX-Target": "run-inputs"}
    response = client.get("/runs/real/", headers=headers)
    # Htmx stops asking, and takes the panel away.
    assert (response.status_code, response.text) == (286, "")
    assert "run-inputs" not in read(client, "/runs/real/")


def test_a_model_that_the_catalogue_lacks_has_an_mfu(client: Client, say: Say) -> None:
    about = ABOUT | {"model": "our-own", "params": 7e9, "layers": 32, "hidden": 4096}
    ends = time.time()
    say(line("run", **about), *(each for n in (1, 2) for each in step_lines(n, ended_at=ends)))
    run = Run.objects.get(name="real")

    assert run.shape == {"params": 7e9, "layers": 32, "hidden": 4096}
    assert "peak unknown" not in read(client, "/runs/real/")


def test_what_was_lost_and_why_it_failed_is_reported(client: Client, say: Say) -> None:
    say(*step_lines(1, ended_at=time.time()))
    say(line("beat", worker="trn-b", n_dropped=7))
    say(line("end", worker="trn-c", failed=True, reason="RuntimeError"))
    page = read(client, "/runs/real/")

    assert "7 reports in transit" in page
    assert "RuntimeError" in page
    assert "failed" in page


@pytest.mark.parametrize("path", ["/nodes/", "/nodes/trn-a/", "/", "/runs/", "/alerts/"])
def test_pages_show_nodes_without_an_agent(client: Client, say: Say, path: str) -> None:
    say(line("run", **ABOUT), *step_lines(1, ended_at=time.time()))

    assert client.get(path).status_code == 200
    assert Node.objects.filter(source=Node.Source.STEPS).count() == len(NODES)


def test_a_node_states_that_only_its_job_reports(client: Client, say: Say) -> None:
    say(line("run", **ABOUT), *step_lines(1, ended_at=time.time()))

    assert "reports through its training job. Without an agent" in read(client, "/nodes/trn-a/")


def test_a_node_whose_job_is_over_is_not_shown_as_training(client: Client, say: Say) -> None:
    say(*step_lines(1, ended_at=time.time()))
    say(*(line("end", worker=node) for node in NODES))
    page = read(client, "/nodes/trn-a/")

    assert "is training." not in page
    assert "last reported" in page
    assert "1 silent" not in read(client, "/nodes/")
    assert "No node matches" in read(client, "/nodes/?state=silent")


@pytest.mark.parametrize("path", ["/nodes/", "/nodes/trn-a/", "/", "/search?q=trn"])
def test_a_node_of_unknown_type_has_pages_too(client: Client, say: Say, path: str) -> None:
    say(*step_lines(1, ended_at=time.time()))

    assert client.get(path).status_code == 200


def test_tokens_of_each_worker_are_not_taken_for_the_jobs(client: Client, say: Say) -> None:
    ended_at = time.time() - 1
    say(line("run", **ABOUT | {"global_batch": None, "seq_len": None}))
    say(
        *[
            step(1, name, ended_at=ended_at, tokens=4000 + rank, rank=rank)
            for rank, name in enumerate(NODES)
        ]
    )
    page = strip_tags(read(client, "/runs/real/"))

    assert "Each worker reports its own tokens, 4,000 to 4,003 in one step" in page
    assert "none are counted" in page
    assert Run.objects.get(name="real").n_tokens == 0


@pytest.mark.parametrize(
    ("tokens", "n_sentences"),
    [(64 * 4096 // 4, 1), (64 * 4096 * 8, 1), (64 * 4096, 0), (20_000, 0)],
)
def test_tokens_that_contradict_the_batch_are_said(
    client: Client, say: Say, tokens: int, n_sentences: int
) -> None:
    ended_at = time.time() - 1
    say(line("run", **ABOUT), *step_lines(1, ended_at=ended_at, tokens=tokens))
    page = strip_tags(read(client, "/runs/real/"))

    assert page.count(f"Its reports say {tokens:,} tokens a step") == n_sentences
