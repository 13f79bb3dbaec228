"""Hours of healthy runs: of large ones, and of a matrix of shapes and noises."""

from itertools import product
from typing import Any

import msgspec
import numpy as np

from bench.scenario_grid import CHECKPOINT_EVERY_S, EVALUATE_EVERY_S, event_of
from drills.scenario import Scenario, scenario_of
from telemetry.simulate.inputs import tier_named
from telemetry.simulate.plan import Noise

N_NODES, DURATION_S = 64, 3600.0
FLEETS: tuple[dict[str, Any], ...] = (
    {"model": "llama2-7b", "instance": "trn1.32xlarge", "tp": 8, "global_batch": 2048},
    {"model": "llama3.1-8b", "instance": "trn2.48xlarge", "tp": 8, "global_batch": 2048},
    {"model": "llama3.1-8b", "instance": "p5.48xlarge", "tp": 4, "global_batch": 2048},
)
# Every third hour has benign events, this far apart.
BENIGN_EVERY, APART_S = 3, (420.0, 560.0)
BENIGN: tuple[dict[str, Any], ...] = (
    {"kind": "checkpoint"},
    {"kind": "evaluation", "duration_s": 90.0},
    {"kind": "batch_change", "magnitude": 2.0, "duration_s": 240.0},
    {"kind": "planned_compile", "duration_s": 120.0},
    {"kind": "scale_change", "magnitude": 0.5, "duration_s": 240.0},
    {"kind": "node_leaves", "duration_s": 240.0},
)


def healthy_scenario(seed: int) -> Scenario:
    """Return an hour of 64 healthy nodes; each third one with look-alikes in a random order."""
    rng = np.random.default_rng([2027, seed])
    run = {
        "name": "calm",
        "nodes": N_NODES,
        "seq_len": 4096,
        "compile_s": 0,
        "checkpoint_every_s": CHECKPOINT_EVERY_S,
        "evaluate_every_s": EVALUATE_EVERY_S,
        **FLEETS[seed // BENIGN_EVERY % len(FLEETS)],
    }
    at_s, benign = 0.0, []
    if seed % BENIGN_EVERY == 0:
        for i in rng.permutation(len(BENIGN)):
            at_s += float(np.round(rng.uniform(*APART_S)))
            benign.append(event_of(run, BENIGN[i], at_s=at_s))
    table = {"name": f"calm-{seed}", "duration_s": DURATION_S, "seed": seed, "run": [run]}
    return scenario_of(table | {"benign": benign, "noise": {"background": True}})


def healthy_hooks_scenario(seed: int) -> Scenario:
    """Return an hour of 64 nodes at ``agent_hooks``; each second one with noisy steps."""
    healthy = healthy_scenario(seed)
    inputs = tier_named("agent_hooks", busy_while_waiting=True)
    noise = Noise(background=True)
    if seed % 2:
        noise = Noise(step_cv=0.04, tail="lognormal", background=True)
    return msgspec.structs.replace(healthy, name=f"hooks-{seed}", inputs=inputs, noise=noise)


# Model, instance, nodes, tp, pp, tokens of a sequence, sequences of a step.
SHAPES = (
    ("llama2-7b", "trn1.32xlarge", 4, 8, 1, 4096, 256),
    ("llama2-7b", "trn1.32xlarge", 16, 8, 1, 4096, 1024),
    ("llama2-7b", "trn2.48xlarge", 2, 4, 1, 4096, 128),
    ("llama2-13b", "trn2.48xlarge", 4, 8, 1, 4096, 256),
    ("gpt3-23b", "trn1.32xlarge", 32, 8, 4, 2048, 1024),
    ("bert-large", "trn1.2xlarge", 8, 1, 1, 128, 16384),
    ("llama2-70b", "trn2.48xlarge", 64, 32, 1, 4096, 1024),
)
OF_SHAPE = ("model", "instance", "nodes", "tp", "pp", "seq_len", "global_batch")
SCATTERS, TAILS = (0.005, 0.01, 0.02, 0.04), ("normal", "lognormal", "stalls")
MATRIX = tuple(product(SHAPES, SCATTERS, TAILS))
FIRST_SEED = 29


def matrix_scenario(number: int) -> Scenario:
    """Return an hour of one shape and scatter, and nothing else; all of them, then again."""
    again, at = divmod(number, len(MATRIX))
    shape, step_cv, tail = MATRIX[at]
    run = {"name": "calm", "compile_s": 0, **dict(zip(OF_SHAPE, shape, strict=True))}
    return scenario_of(
        {
            "name": f"matrix-{number}",
            "duration_s": DURATION_S,
            "seed": FIRST_SEED + again,
            "noise": {"step_cv": step_cv, "tail": tail},
            "run": [run],
        }
    )
