"""An agent and a web server as processes: the server stops, nothing is lost."""

import os
import shlex
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from telemetry.agent.spool import frames_in
from telemetry.store.hot import HotStore, open_store
from telemetry.store.reading import AGENT_RESTART_S
from tests import warm
from tests.fleet.ops.installation import ROOT, environment, manage, prepare, wait_for
from tests.helpers import free_port
from tests.telemetry.agent.machine import trn2

SAMPLE = ROOT / "tests/telemetry/ingest/data/trn2.48xlarge.ndjson"
WITHIN_S = 90.0
NODE = "agent-tested"


@contextmanager
def running(*command: object, env: dict[str, str]) -> Iterator[warm.Program]:
    """Run a program until it is no longer needed."""
    with Path(os.devnull).open("w") as nowhere:
        process = warm.start([*map(str, command)], env=env, stdout=nowhere, stderr=nowhere)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def hot(redis_url: str) -> HotStore:
    """Give the store that all processes share."""
    return open_store(redis_url)


def spooled(folder: Path) -> int:
    """Count the lines in a spool, delivered ones that are still there included."""
    files = sorted(folder.glob("*.frames"))
    return sum(len(list(frames_in(path.read_bytes()))) for path in files)


def n_seconds(hot: HotStore) -> int:
    """Count the seconds of the node that are there."""
    return len(present(hot))


def present(hot: HotStore) -> list[int]:
    """Return the seconds of the node that are there."""
    now = int(time.time())
    span = hot.window(f"node:{NODE}", ("efa_tx_bytes_per_s",), start=now - 600, end=now + 2)
    values = span.values["efa_tx_bytes_per_s"]
    seen = np.isfinite(values).any(axis=(1, 2)) if values.size else np.zeros(len(span.ticks), bool)
    return [int(tick) for tick in span.ticks[seen]]


def test_a_server_that_is_killed_for_a_while_costs_nothing_and_doubles_nothing(
    tmp_path: Path, hot: HotStore, redis_url: str
) -> None:
    env = environment(tmp_path, REDIS_URL=redis_url)
    prepare(tmp_path)
    made = manage(tmp_path, "create_token", "pool", "--scope", "ingest", REDIS_URL=redis_url)
    token = next(line for line in made[1].splitlines() if line.startswith("trnw_"))
    machine, port = trn2(tmp_path / "sys"), free_port()
    for device in range(16):
        power = f"POWER_STATUS_VALID,{int(time.time())},1.00,90.00,{40 + device}.00"
        machine.set_power(device, power)
    spool = tmp_path / "spool"
    server = ("-m", "uvicorn", "fleet.asgi:application", "--port", port, "--no-access-log")
    agent = (
        *("-m", "telemetry.agent", "--server", f"http://127.0.0.1:{port}", "--node", NODE),
        *("--spool", spool, "--efa-sysfs", machine.efa, "--neuron-sysfs", machine.neuron),
        *("--command", shlex.join([sys.executable, "tools/replay.py", str(SAMPLE)])),
    )
    with running(*agent, env=env | {"TRNWATCH_TOKEN": token}) as process:
        with running(*server, env=env):
            wait_for(lambda: n_seconds(hot) >= 3, within_s=WITHIN_S)
        before, n_held = n_seconds(hot), spooled(spool)
        wait_for(lambda: spooled(spool) >= n_held + 5, within_s=WITHIN_S)
        with running(*server, env=env):
            wait_for(lambda: n_seconds(hot) >= before + 8, within_s=WITHIN_S)
            assert hot.quiet_s() == {}
            # It says that it was asked to end: its node may be silent for longer.
            process.terminate()
            assert process.wait(WITHIN_S) == 0
            assert hot.quiet_s() == {NODE: AGENT_RESTART_S}

    ticks = present(hot)
    assert ticks == list(range(ticks[0], ticks[-1] + 1))
    _counted_once(hot, ticks)
    _measured(hot, ticks)


def _measured(hot: HotStore, ticks: list[int]) -> None:
    """Look for what the driver and neuron-monitor measured besides."""
    names = ("device_power_ratio", "core_flops_per_s", "execution_latency_p50_s")
    values = hot.window(f"node:{NODE}", names, start=ticks[0], end=ticks[-1]).values
    # The driver measured power once; it stands until the next time.
    power = values["device_power_ratio"][:, 0]
    assert np.isfinite(power[1:3]).all()
    assert power[2] == pytest.approx(0.4 + np.arange(16) / 100, abs=1 / 254)
    assert np.nanmin(values["core_flops_per_s"]) > 1e13
    assert 0.1 < np.nanmedian(values["execution_latency_p50_s"]) < 1


def _counted_once(hot: HotStore, ticks: list[int]) -> None:
    """Hold the totals, counted as each second came, to the sum of the seconds that are there."""
    metric = "executions_completed_per_s"
    span = hot.window(f"node:{NODE}", (metric,), start=ticks[0] - 5, end=ticks[-1] + 5)
    there = float(np.nansum(span.values[metric]))
    assert hot.totals().nodes[metric][NODE] == pytest.approx(there, rel=0.01)
    assert hot.counters().get("refused_blocks", 0) == 0
