"""Scenarios small enough to be played in a second or two."""

import pytest

SMALL = """
name = "small"
duration_s = {duration_s}
seed = 3
[[run]]
name = "tiny"
model = "llama3.1-8b"
instance = "trn2.48xlarge"
nodes = 4
tp = 8
seq_len = 4096
global_batch = 64
compile_s = 0
{more}
"""


@pytest.fixture
def healthy() -> str:
    """Write a run of five minutes to which nothing happens."""
    return SMALL.format(duration_s=300, more="")


@pytest.fixture
def broken() -> str:
    """Write a run in which one core computes slowly for two minutes."""
    fault = """
[[fault]]
kind = "slow_core"
node = "tiny-02"
device = 3
start_s = 120
duration_s = 120
magnitude = 3
"""
    return SMALL.format(duration_s=360, more=fault)
