"""Scenario files: parsed as written; errors are named."""

import msgspec
import pytest

from drills.scenario import load_scenario
from telemetry.errors import FieldError
from telemetry.simulate.faults import BENIGN, FAULTS
from telemetry.simulate.plan import Benign, Fault
from telemetry.simulate.validation import validate_benign, validate_fault
from tests.telemetry.simulate.played import PIPELINED, SMALL, VISION

BROWN_OUT = """
name = "brown-out"
duration_s = 1800
seed = 7
[[run]]
name = "llama"
model = "llama2-7b"
instance = "trn1.32xlarge"
nodes = 16
tp = 8
pp = 1
seq_len = 4096
global_batch = 1024
compile_s = 0
[[fault]]
kind = "efa_latency"
node = "llama-03"
device = 2
start_s = 600
duration_s = 300
magnitude = 6.0
[[benign]]
kind = "checkpoint"
run = "llama"
start_s = 900
"""


def test_it_reads_the_example() -> None:
    scenario = load_scenario(BROWN_OUT)

    assert (scenario.name, scenario.duration_s, scenario.seed) == ("brown-out", 1800, 7)
    assert scenario.runs[0].node_names[3] == "llama-03"
    assert scenario.faults == (
        Fault(
            kind="efa_latency",
            node="llama-03",
            device=2,
            start_s=600,
            duration_s=300,
            magnitude=6,
        ),
    )
    assert scenario.benign == (Benign(kind="checkpoint", run="llama", start_s=900),)


def test_a_run_may_say_its_whole_recipe() -> None:
    recipe = 'micro_batch = 2\nrecompute = "full"\nsequence_parallel = false\ncompile_s = 0'
    (run,) = load_scenario(BROWN_OUT.replace("compile_s = 0", recipe)).runs

    assert run.recipe == {"micro_batch": 2, "sequence_parallel": False, "recompute": "full"}
    with pytest.raises(FieldError, match="recompute"):
        load_scenario(BROWN_OUT.replace("compile_s = 0", 'recompute = "some"'))


def test_each_run_gets_a_plan_with_what_is_its_own() -> None:
    second = '[[run]]\nname = "bert"\nmodel = "bert-large"\ninstance = "trn1.2xlarge"\n'
    second += "nodes = 2\nseq_len = 128\nglobal_batch = 8\n"
    second += '[[fault]]\nkind = "node_silent"\nnode = "bert-01"\nstart_s = 5\nduration_s = 5\n'
    llama, bert = load_scenario(BROWN_OUT + second).plans(epoch_s=1_000, seed=3)

    assert [fault.kind for fault in llama.faults] == ["efa_latency"]
    assert [fault.kind for fault in bert.faults] == ["node_silent"]
    assert (len(llama.benign), len(bert.benign)) == (1, 0)
    assert (bert.seed, bert.epoch_s) == (3, 1_000)
    assert llama.seed == 3


def test_a_fault_without_magnitude_has_its_kinds_own() -> None:
    scenario = load_scenario(BROWN_OUT.replace("magnitude = 6.0", ""))

    assert scenario.faults[0].magnitude == FAULTS["efa_latency"].default_magnitude


@pytest.mark.parametrize(
    ("old", "new", "field", "shows"),
    [
        ("duration_s = 1800", "duration_s = -1", "duration_s", "-1"),
        ("duration_s = 1800", 'duration_s = "long"', "duration_s", "'long'"),
        ("duration_s = 1800", "", "duration_s", "missing"),
        ("seed = 7", "sed = 7", "sed", "did you mean 'seed'"),
        ('name = "brown-out"', "name = =", "scenario", "line 2"),
        ("[[run]]", "[[runn]]", "runn", "did you mean 'run'"),
        ("nodes = 16", "nodes = 0", "run[0].nodes", "0"),
        ("nodes = 16", "nodes = 1.5", "run[0].nodes", "1.5"),
        ("nodes = 16", "nodse = 16", "run[0].nodse", "did you mean 'nodes'"),
        ("nodes = 16", "", "run[0].nodes", "missing"),
        ("compile_s = 0", "compile_s = -3", "run[0].compile_s", "-3"),
        ('name = "llama"', 'name = "a b"', "run[0].name", "letters"),
        ("llama2-7b", "lama2-7b", "run[0].model", "did you mean llama2-7b"),
        ("trn1.32xlarge", "trn1.33xlarge", "run[0].instance", "trn1.32xlarge"),
        ("trn1.32xlarge", "inf2.48xlarge", "run[0].instance", "inference only"),
        ("tp = 8", "tp = 7", "run[0].tp", "7"),
        ("global_batch = 1024", "global_batch = 1000", "run[0].global_batch", "multiple of"),
        ('"efa_latency"', '"efa_latencies"', "fault[0].kind", "did you mean 'efa_latency'"),
        ('"efa_latency"', '["efa_latency"]', "fault[0].kind", "give text in quotes"),
        ("nodes = 16", "nodes = 0", "run[0].nodes", "give a whole number of at least 1"),
        ('"llama-03"', '"llama-16"', "fault[0].node", "llama-16"),
        ('node = "llama-03"', 'run = "lama"', "fault[0].run", "did you mean 'llama'"),
        ('node = "llama-03"', "", "fault[0].node", "either"),
        ('node = "llama-03"', 'node = "llama-03"\nrun = "llama"', "fault[0].node", "either"),
        ("device = 2", "device = 8", "fault[0].device", "0 to 7"),
        ("device = 2", "device = -1", "fault[0].device", "0 to 7"),
        ("start_s = 600", "start_s = -600", "fault[0].start_s", "-600"),
        ("start_s = 600", "start_s = 1800", "fault[0].start_s", "1800"),
        ("start_s = 600", "start_s = nan", "fault[0].start_s", "nan"),
        ("duration_s = 300", "duration_s = 0", "fault[0].duration_s", "0"),
        ("duration_s = 300", "duration_s = inf", "fault[0].duration_s", "inf"),
        ("magnitude = 6.0", "magnitude = 0.5", "fault[0].magnitude", "from 1 to 100"),
        ("magnitude = 6.0", 'magnitude = "6"', "fault[0].magnitude", "'6'"),
        ("magnitude = 6.0", "strength = 6.0", "fault[0].strength", "magnitude"),
        ('"checkpoint"', '"checkpiont"', "benign[0].kind", "did you mean 'checkpoint'"),
        ('"checkpoint"', '"node_joins"', "benign[0].node", "name it"),
        ("start_s = 900", "start_s = 9000", "benign[0].start_s", "9000"),
        ("[[run]]", "noise.environment = 4\n[[run]]", "noise.environment", "of at most 3"),
    ],
)
def test_a_mistake_is_named_with_its_field_and_value(
    old: str, new: str, field: str, shows: str
) -> None:
    assert old in BROWN_OUT

    with pytest.raises(FieldError) as error:
        load_scenario(BROWN_OUT.replace(old, new))

    assert error.value.field == field
    assert shows in str(error.value)


def test_two_runs_need_two_names() -> None:
    run = BROWN_OUT[BROWN_OUT.index("[[run]]") : BROWN_OUT.index("[[fault]]")]

    with pytest.raises(FieldError, match="name: 'llama' is used"):
        load_scenario(BROWN_OUT + run)


def fault(kind: str, **more: object) -> Fault:
    given = {"kind": kind, "node": "vit-01", "start_s": 1, "duration_s": 1} | more
    return msgspec.convert(given, Fault)


@pytest.mark.parametrize("kind", FAULTS)
def test_every_fault_is_welcome_with_its_own_magnitude(kind: str) -> None:
    place = {"node": None, "run": "gpt"} if FAULTS[kind].scope == "run" else {"node": "gpt-01"}
    strength = FAULTS[kind].default_magnitude

    validate_fault(fault(kind, magnitude=strength, **place), PIPELINED)


@pytest.mark.parametrize("kind", BENIGN)
def test_every_benign_event_is_welcome(kind: str) -> None:
    node = "gpt-01" if BENIGN[kind].scope == "node" else None

    validate_benign(Benign(kind=kind, run="gpt", node=node, start_s=0), PIPELINED)


@pytest.mark.parametrize(
    ("wrong", "field", "shows"),
    [
        (fault("hang", node=None, run="vit"), "run", "set node instead"),
        (fault("recompile", magnitude=300), "node", "set run instead"),
        (fault("slow_core", device=64), "device", "0 to 63"),
        (fault("throttle", device=16), "device", "0 to 15"),
        (fault("input_stall", device=1), "device", "leave it out"),
        (fault("stage_imbalance", node="vit-01"), "kind", "pp"),
        (fault("slow_core", magnitude=float("nan")), "magnitude", "nan"),
        (fault("slow_core", node="gpt-01"), "node", "vit-00"),
    ],
)
def test_a_fault_that_cannot_be_is_refused(wrong: Fault, field: str, shows: str) -> None:
    with pytest.raises(FieldError, match=shows) as error:
        validate_fault(wrong, VISION)

    assert error.value.field == field


def test_a_node_without_efa_has_no_efa_faults() -> None:
    with pytest.raises(FieldError, match=r"trn1\.2xlarge has none"):
        validate_fault(fault("efa_latency", node="bert-01", magnitude=3), SMALL)
