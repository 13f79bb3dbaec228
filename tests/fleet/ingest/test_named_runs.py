"""Nodes whose processes name their run by a tag; no job reports it."""

import json
import time
from collections.abc import Sequence
from typing import Any

import pytest

from fleet.ingest.named_runs import run_in_tags
from fleet.ingest.nodes import NodeIngest, store_batches
from fleet.ingest.steps import StepIngest
from fleet.models import Node, Run
from fleet.runs.state import state_of
from telemetry.ingest.prometheus import run_of
from telemetry.store.hot import HotStore
from tests.fleet.api.training_jobs import ABOUT, line, step, step_lines
from trnwatch.identity import identity_of

BEGAN_S = float(int(time.time()) - 3000)
NODES = ("trn-a", "trn-b")
HARDWARE = {"neuron_device_count": 1, "neuroncore_per_device_count": 2}
STATS = {"execution_stats": {"period": 5.0, "execution_summary": {"completed": 7}}}


class Agents:
    def __init__(self, hot: HotStore) -> None:
        self.hot, self.ingest = hot, NodeIngest(keep_s=900)

    def report(
        self, at_s: float, tags: Sequence[str], *, nodes: Sequence[str] = NODES
    ) -> list[Any]:
        """Let nodes report these processes; return what was refused."""
        processes = [
            {"pid": 100 + i, "neuron_runtime_tag": tag, "error": "", "report": STATS}
            for i, tag in enumerate(tags)
        ]
        batches = []
        for name in nodes:
            instance = {"instance_id": f"i-{name}", "instance_type": "trn1.2xlarge"}
            sent = {
                "neuron_runtime_data": processes,
                "neuron_hardware_info": HARDWARE,
                "instance_info": instance,
            }
            batches.append(
                self.ingest.deliver([json.dumps(sent).encode()], node=name, arrived_s=at_s)
            )
        store_batches(self.hot, batches)
        return [refusal for batch in batches for refusal in batch.refused]


@pytest.fixture
def agents(db: None, hot: HotStore) -> Agents:
    return Agents(hot)


def trains() -> dict[str, str]:
    nodes = Node.objects.select_related("run")
    return {node.name: node.run.name if node.run else "" for node in nodes}


def test_nodes_train_the_run_that_most_of_their_processes_name(agents: Agents) -> None:
    agents.report(BEGAN_S, ["run=llama", "run=llama", "run=bert", "4711"])

    assert trains() == {"trn-a": "llama", "trn-b": "llama"}
    run = Run.objects.get()
    assert (run.phase, run.n_nodes, run.finished_at) == (Run.Phase.TRAINING, 2, None)
    assert run.instance_type == "trn1.2xlarge"


@pytest.mark.parametrize("tag", ["4711", "my_app", "run=", "run=?", "xrun=llama", ""])
def test_other_tags_name_no_run(agents: Agents, tag: str) -> None:
    agents.report(BEGAN_S, [tag])

    assert trains() == {"trn-a": "", "trn-b": ""}
    assert not Run.objects.exists()


def test_a_tag_names_the_run_that_its_job_would_report(agents: Agents) -> None:
    name = "llama-3.1-8b"
    agents.report(BEGAN_S, [f"run={name}"])

    assert trains() == dict.fromkeys(NODES, identity_of({"TRNWATCH_RUN": name}).run)


def test_all_paths_give_a_long_name_the_same_run_and_others_another() -> None:
    names = [f"{'llama-3.1-8b-' * 6}{seed}" for seed in (1, 2)]

    by_path = [
        {
            identity_of({"TRNWATCH_RUN": name}).run,
            run_in_tags([f"run={name}"]),
            run_of({"run": name}),
            run_of({"pod_name": f"{name}-worker-0"}),
        }
        for name in names
    ]

    assert [len(runs) for runs in by_path] == [1, 1]
    assert by_path[0] != by_path[1]


def test_a_job_that_restarts_keeps_its_nodes_and_one_that_ends_does_not(agents: Agents) -> None:
    agents.report(BEGAN_S, ["run=llama"])
    agents.report(BEGAN_S + 30, [])
    agents.report(BEGAN_S + 55, ["run=llama"])
    agents.report(BEGAN_S + 110, [])
    assert trains() == {"trn-a": "llama", "trn-b": "llama"}
    agents.report(BEGAN_S + 120, [])

    assert trains() == {"trn-a": "", "trn-b": ""}
    assert Run.objects.get().phase == Run.Phase.FINISHED
    agents.report(BEGAN_S + 130, ["run=llama"])
    assert trains() == {"trn-a": "llama", "trn-b": "llama"}
    assert Run.objects.get().phase == Run.Phase.TRAINING


def test_another_process_of_ours_knows_when_the_job_is_over(agents: Agents) -> None:
    agents.report(BEGAN_S, ["run=llama"])
    agents.ingest = NodeIngest(keep_s=900)
    agents.report(BEGAN_S + 10, [])
    agents.report(BEGAN_S + 75, [])

    assert trains() == {"trn-a": "", "trn-b": ""}


def test_what_a_job_reports_itself_outweighs_a_tag(agents: Agents) -> None:
    StepIngest(time.monotonic).deliver(
        agents.hot,
        [line("run", **ABOUT), *step_lines(1, ended_at=BEGAN_S)],
        arrived_s=BEGAN_S,
    )
    agents.report(BEGAN_S + 1, ["run=llama"])

    assert {name: run for name, run in trains().items() if name in NODES} == {
        "trn-a": "real",
        "trn-b": "real",
    }


@pytest.mark.parametrize("is_agent_first", [True, False])
def test_a_job_that_names_its_node_by_its_instance_id_means_the_node_of_its_agent(
    agents: Agents, hot: HotStore, *, is_agent_first: bool
) -> None:
    """The agent runs with ``--node``; its job names the node as it does by default."""
    clock = iter(range(0, 10_000, 61))
    jobs = StepIngest(lambda: float(next(clock)))
    at_s = time.time()
    if is_agent_first:
        agents.report(at_s, [], nodes=NODES[:1])
    for number in (1, 2):
        lines = [
            line("run", **ABOUT, node="i-trn-a", node_labels={"rack": "7"}),
            step(number, "i-trn-a", ended_at=at_s + number, n_workers=1, rank=0, boot="b"),
        ]
        assert jobs.deliver(hot, lines, arrived_s=at_s + number).n_accepted == len(lines)
        agents.report(at_s + number, [], nodes=NODES[:1])

    in_use = Node.objects.unretired()
    assert [(node.name, node.run and node.run.name) for node in in_use] == [("trn-a", "real")]
    assert in_use.get().labels == {"rack": "7"}
    assert len(hot.steps("real", since_s=at_s - 60)) == 2
    state = state_of(hot, "real")
    assert state is not None
    assert [member.node for member in state.members.values()] == ["trn-a"]


def test_a_tag_adds_nodes_to_the_run_that_one_worker_reports(agents: Agents) -> None:
    """Rank 0 alone has hooks; the hardware of the others would belong to no run."""
    lines = [text for text in step_lines(1, ended_at=BEGAN_S) if b"trn-b" not in text]
    StepIngest(time.monotonic).deliver(
        agents.hot, [line("run", **ABOUT), *lines], arrived_s=BEGAN_S
    )
    before = Run.objects.get()
    agents.report(BEGAN_S + 1, ["run=real"])

    after = Run.objects.get()
    assert (after.session, after.phase) == (before.session, before.phase)
    assert {name: run for name, run in trains().items() if name in NODES} == {
        "trn-a": "real",
        "trn-b": "real",
    }


def test_a_tag_that_names_an_imported_run_is_refused(agents: Agents, run: Run) -> None:
    refused = agents.report(BEGAN_S, [f"run={run.name}"], nodes=NODES[:1])

    assert len(refused) == 1
    assert "imported" in refused[0].reason
    assert trains()["trn-a"] == ""


def test_a_tagged_node_that_someone_deleted_is_no_error(agents: Agents) -> None:
    agents.report(BEGAN_S, ["run=llama"])
    Node.objects.all().delete()

    assert agents.report(BEGAN_S + 61, ["run=llama"]) == []
