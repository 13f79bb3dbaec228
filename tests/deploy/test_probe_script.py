"""The probe loop, with stand-ins for ssh and the ping-pong benchmark."""

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from telemetry.ingest.probes import measured_group, read_group

SCRIPT = Path(__file__).resolve().parents[2] / "deploy/preflight/probe.sh"
# "ssh -n NODE COMMAND" runs the command here, and the ping-pong knows which node it is.
SSH = """#!/usr/bin/env bash
NODE="$2" bash -c "$3"
"""
PINGPONG = """#!/usr/bin/env bash
[ "${@: -1}" = dead ] && { echo "ft_connect: timed out"; exit 1; }
[ "$NODE" = dead ] && exit 1
usec=16; case " $* " in *" -d rdmap1-rdm "*) [ "$NODE" = b ] && usec=96;; esac
echo "bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec"
echo "64      10      =10      1.2k        0.02s      0.08     800.00       0.00"
echo "256     10      =10      5k          0.00s     15.00     $usec.00       0.06"
echo "1m      10      =10      20m         0.01s   2300.00     450.00       0.00"
"""


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, text in (("ssh", SSH), ("fi_pingpong", PINGPONG)):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    return folder


@pytest.fixture
def sysfs(tmp_path: Path) -> dict[str, str]:
    efa, neuron = tmp_path / "infiniband", tmp_path / "neuron"
    for device in ("rdmap0", "rdmap1"):
        counters = efa / device / "ports/1/hw_counters"
        counters.mkdir(parents=True)
        for name in ("rx_drops", "retrans_pkts", "retrans_timeout_events"):
            (counters / name).write_text("7\n")
    for i in range(3):
        hardware = neuron / f"neuron{i}/stats/hardware"
        hardware.mkdir(parents=True)
        (hardware / "mem_ecc_uncorrected").write_text(f"{i}\n")
    return {"EFA_SYSFS": str(efa), "NEURON_SYSFS": str(neuron)}


def test_what_the_loop_writes_is_what_is_read(
    programs: Path, sysfs: dict[str, str], tmp_path: Path
) -> None:
    environ = os.environ | sysfs | {"PATH": f"{programs}:{os.environ['PATH']}"}
    environ |= {"REST_S": "0", "HEAD_START_S": "0", "TIMES": "2"}
    out = tmp_path / "out"

    done = subprocess.run(
        [SCRIPT, out, "a", "b", "dead"], env=environ, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
    read = read_group((path.name, path.read_bytes()) for path in out.iterdir())
    measured = measured_group(read, n_efa=2, curve=lambda _, sizes: sizes)
    assert measured.nodes == ("a", "b", "dead")
    assert measured.n_devices.tolist() == [3, 3, 3]
    assert measured.n_efa_seen.tolist() == [2, 2, 2]
    assert measured.ecc_uncorrected.tolist() == [3, 3, 3]
    assert measured.rest["rx_drops"].tolist() == [0, 0, 0]
    assert measured.p50_s[0, 1] == pytest.approx(16e-6)
    assert np.isinf(measured.p50_s[2, :2]).all()
    np.testing.assert_allclose(measured.device_s[:2], [[16e-6, 16e-6], [16e-6, 96e-6]])
    assert np.isinf(measured.device_s[2]).all()


def test_without_nodes_it_states_how_to_call_it() -> None:
    done = subprocess.run([SCRIPT], capture_output=True, text=True, check=False)

    assert done.returncode == 2
    assert "probe.sh OUT NODE" in done.stderr
