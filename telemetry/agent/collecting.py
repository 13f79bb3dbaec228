"""One round of reading: a report as it arrives, and beside it what sysfs says at that moment."""

from __future__ import annotations

import argparse
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from telemetry.agent.clock import Clock, Moment
from telemetry.agent.efa import Efa
from telemetry.agent.envelope import BESIDE, MONITOR, tail
from telemetry.agent.health import Health
from telemetry.agent.monitor import Monitor
from telemetry.agent.neuron import Neuron
from telemetry.agent.probes import Probes

# On Nitro instances the board's asset tag is the instance's id.
ASSET_TAG = Path("/sys/devices/virtual/dmi/id/board_asset_tag")
# A monitor that has been silent for so many periods no longer speaks for the node.
PATIENCE_PERIODS = 2.5
# Whoever wants the agent to end waits no longer than this for it to notice.
LONGEST_WAIT_S = 1.0

Line = tuple[int, Moment, bytes]


class Collector:
    """Everything that is read on a node, as the tails of lines."""

    def __init__(self, options: argparse.Namespace, clock: Clock, health: Health) -> None:
        """Read what the options say."""
        self._clock = clock
        self._health = health
        self._period_s: float = options.period
        self._node: str | None = options.node
        self._efa = Efa(options.efa_sysfs)
        self._neuron = Neuron(options.neuron_sysfs)
        self._probes = Probes(
            file=options.probe_file, command=options.probe_command, every_s=options.probe_every
        )
        self._monitor: Monitor | None = None
        if not options.no_monitor:
            self._monitor = Monitor(
                command=options.command, stdin=options.stdin, period_s=options.period
            )
        self._heard_s = clock.now().up_s
        self._beside_s = float("-inf")

    @property
    def is_over(self) -> bool:
        """Whether nothing more will come."""
        return self._monitor is not None and self._monitor.is_over

    def lines(self) -> Iterator[Line]:
        """Wait for at most a period, and yield what was read."""
        now_s = self._clock.now().up_s
        wait_s = self._wait_s(now_s)
        if self._monitor is None:
            self._clock.rest(wait_s)
            reports = []
        else:
            reports = self._monitor.lines(now_s, wait_s)
            self._health.set("n_skipped", self._monitor.n_skipped)
            self._health.problem("monitor", self._monitor.problem)
        moment = self._clock.now()
        for n_later in range(len(reports) - 1, -1, -1):
            beside = {} if n_later else self._beside(moment, alone=False)
            made = _before(moment, n_later * self._period_s)
            yield MONITOR, made, tail(reports[-1 - n_later], beside)
        if reports:
            self._heard_s = moment.up_s
        elif not self.is_over and moment.up_s - self._beside_s >= self._period_s:
            yield from self._alone(moment)

    def stop(self) -> None:
        """End what was started."""
        if self._monitor is not None:
            self._monitor.stop()

    def _wait_s(self, now_s: float) -> float:
        """Return how long to wait for a report before sysfs is read without one."""
        patient_until_s = self._heard_s + PATIENCE_PERIODS * self._period_s
        due_s = self._beside_s + self._period_s
        until_s = due_s if self._monitor is None else max(due_s, patient_until_s)
        return min(max(until_s - now_s, 0.0), LONGEST_WAIT_S)

    def _alone(self, moment: Moment) -> Iterator[Line]:
        """Yield what sysfs says while no report comes."""
        silent_s = moment.up_s - self._heard_s
        if self._monitor is not None and silent_s < PATIENCE_PERIODS * self._period_s:
            return
        beside = self._beside(moment, alone=True)
        if beside:
            instance = {"instance": {"instance_id": self._node or instance_id()}}
            yield BESIDE, moment, tail(None, {**instance, **beside})

    def _beside(self, moment: Moment, *, alone: bool) -> dict[str, Any]:
        """Return what sysfs and probes say at this moment."""
        self._beside_s = moment.up_s
        said: dict[str, Any] = {}
        efa = self._efa.read(moment.up_s)
        if efa:
            self._probe(efa, moment.up_s)
            said["efa"] = efa
        neuron = self._neuron.read(moment.up_s, cores=alone)
        if neuron:
            said["neuron"] = neuron
        return said

    def _probe(self, efa: dict[str, Any], now_s: float) -> None:
        """Add latencies that were probed to the devices they are of."""
        latencies = self._probes.read(now_s)
        self._health.problem("probe", self._probes.problem)
        for device in efa["devices"]:
            if device["device"] in latencies:
                device["latency_s"] = latencies[device["device"]]


def _before(moment: Moment, s: float) -> Moment:
    """Return the moment so many seconds earlier: reports that piled up were made one by one."""
    return Moment(moment.wall_s - s, moment.up_s - s)


def instance_id() -> str:
    """Return the instance's id, or the host's name where the machine has none."""
    try:
        tag = ASSET_TAG.read_text().strip()
    except OSError:
        tag = ""
    return tag if tag.startswith("i-") else socket.gethostname().partition(".")[0]
