"""The series of a node, collected until a scrape is complete: ``NodeSeries`` returns a Reading."""

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from zlib import crc32

import msgspec
import numpy as np

from telemetry import catalog
from telemetry.blocks import METRICS, FloatArray
from telemetry.errors import whole_number
from telemetry.ingest import exporters
from telemetry.ingest.exporters import (
    BOUNDS,
    METRICS_BY_MAX,
    POSSIBLE,
    XIDS_OF_APPLICATIONS,
)
from telemetry.ingest.neuron_monitor import NodeIdentity, Reading, Shape
from telemetry.ingest.prometheus import MAX_SERIES, MS, UNHEALTHY, UTILIZATION, Sample
from telemetry.ingest.schemas import MAX_CORES

# Of the values of a label that series give at the same time, the first stays so long.
LABEL_STAYS_S = 120.0
# A scrape is stored when all series of the one before have arrived, when the next one begins,
# or after this time.
COMPLETE_AFTER_S = 10.0
# A gap of more scrape intervals is an outage: the values say nothing about it. Until the
# interval is known, it is at most this long.
MAX_INTERVALS, MAX_COVER_S = 2.5, 300
# Between scrapes, until it is known: Prometheus' own default, the longest that is usual.
LONG_INTERVAL_S = 60.0
# Samples of one scrape are this close together, those of two scrapes are not.
SAME_SCRAPE_MS = 250
# Of two senders of the same series one is read, as Mimir and Cortex do; the other takes over once
# the first has been silent for so long, or for this many of its intervals: its next scrape is then
# no gap. Prometheus sends a sample within five seconds, and again after five more.
FAILOVER_S, FAILOVER_INTERVALS = 10.0, 1.25
# Sources of a device's health report at different times; each verdict holds for so long.
VERDICT_STAYS_S = 120.0
# A process whose series all stay the same for so long, and for three times as long as they ever
# did, has ended: neuron-monitor reports every five seconds, and its exporter keeps what it said.
DEAD_AFTER_S, DEAD_AFTER_TIMES = 45.0, 3
# Scrapes of an exporter that may wait to be complete: others would be samples of any time.
MAX_WAITING = 256
# Capacities are rounded in the catalogue; no device holds more than this share of its own.
DEVICE_ROOM = 1.05
# No ratio of utilization is so large.
SURELY_PERCENT = 1.5


class Scrape(msgspec.Struct):
    """One scrape of an exporter: the values of its series by key."""

    at_ms: int
    arrived_s: float
    values: dict[str, float]


class Process(msgspec.Struct, array_like=True):
    """A process of a node, by what its series have said."""

    first_ms: int
    digest: int
    # Since when they say the same, and for how long they ever did.
    since_ms: int
    longest_ms: int = 0


class ExporterState(msgspec.Struct):
    """What is known of one exporter of a node between requests."""

    at_ms: int = 0
    interval_s: float = 0.0
    n_series: int = 0
    counters: dict[str, tuple[int, float]] = {}
    waiting: dict[int, Scrape] = {}
    # The seconds between the last scrapes; the sender that is read, since when, and its last time.
    spacings: list[float] = []
    sender: str = ""
    switched_ms: int = 0
    heard_ms: int = 0
    processes: dict[str, Process] = {}
    # By part and source, what was last said of a device's health, and when.
    verdicts: dict[str, tuple[int, float]] = {}

    def hears(self, sender: str, at_ms: int) -> bool:
        """Whether a sender is the one that is read; another one may take over."""
        if sender != self.sender:
            silent_s = max(FAILOVER_S, FAILOVER_INTERVALS * (self.interval_s or LONG_INTERVAL_S))
            if self.heard_ms and at_ms - self.heard_ms <= MS * silent_s:
                return False
            self.sender, self.switched_ms = sender, at_ms
        self.heard_ms = max(self.heard_ms, at_ms)
        return True

    def learn_interval(self, since_s: float) -> None:
        """Learn the interval again after each scrape: of uneven ones the longer of two."""
        if 0 < since_s <= MAX_COVER_S:
            self.spacings = [*self.spacings, since_s][-2:]
            self.interval_s = max(self.spacings)

    def rate(self, text: str, at_ms: int, value: float, bounds: exporters.Bounds) -> float | None:
        """Return a counter's rate since it was last known; None if it says nothing.

        What a counter cannot have done is not kept: the next scrape is compared with the last
        possible value.
        """
        if value < 0:
            return None
        before = self.counters.get(text)
        if before is None:
            self.counters[text] = (at_ms, value)
            return None
        # A counter that fell was reset: it counts from zero.
        has_fallen = value < before[1]
        more = value if has_fallen else value - before[1]
        rate = more / ((at_ms - before[0]) / MS)
        if has_fallen or bounds.has(rate):
            self.counters[text] = (at_ms, value)
        # Clocks of two senders differ: a second one may be a little behind.
        is_behind = has_fallen and before[0] < self.switched_ms
        return rate if bounds.has(rate) and not is_behind else None

    def ended(self, scrape: Scrape) -> set[str]:
        """Return the processes of a scrape that have ended, though their series are there.

        A core belongs to one process at a time: one that has just come has it, if the other one
        does nothing. Alone, a process has ended if its counters stand still, and so does the
        share of time that it computes. One at 100 % may hang, one at 0 % may be idle.
        """
        series: dict[str, list[tuple[str, float]]] = defaultdict(list)
        for text, value in scrape.values.items():
            if process := text.split("|", 4)[3]:
                series[process].append((text, value))
        for name, values in series.items():
            # Labels that come and go, such as those of a pod, say nothing of what it does.
            said = sorted((text.rsplit("|", 1)[0], value) for text, value in values)
            digest = crc32(repr(said).encode())
            known = self.processes.setdefault(name, Process(scrape.at_ms, digest, scrape.at_ms))
            if known.digest != digest:
                known.longest_ms = max(known.longest_ms, scrape.at_ms - known.since_ms)
                known.digest, known.since_ms = digest, scrape.at_ms
        self.processes = {name: self.processes[name] for name in series}
        cores = {name: _cores_of(values) for name, values in series.items()}
        return {
            name for name in series if self._has_ended(name, cores, series[name], scrape.at_ms)
        }

    def _has_ended(
        self,
        name: str,
        cores: Mapping[str, set[str]],
        values: Sequence[tuple[str, float]],
        at_ms: int,
    ) -> bool:
        this = self.processes[name]
        still_ms = at_ms - this.since_ms
        is_replaced = any(
            self.processes[other].first_ms > this.first_ms and cores[other] & cores[name]
            for other in cores
        )
        if is_replaced:
            return still_ms > 0
        kinds = [text.split("|", 3) for text, _ in values]
        computes = [
            value
            for (metric, *_), (_, value) in zip(kinds, values, strict=True)
            if metric == UTILIZATION
        ]
        is_counted = any(kind == "c" for _, _, kind, _ in kinds)
        is_between = any(0.0 < value < 1.0 for value in computes)
        longest_ms = max(MS * DEAD_AFTER_S, DEAD_AFTER_TIMES * this.longest_ms)
        return is_counted and is_between and still_ms >= longest_ms


def _cores_of(values: Sequence[tuple[str, float]]) -> set[str]:
    parts = (text.split("|", 2) for text, _ in values)
    return {part for metric, part, _ in parts if metric == UTILIZATION}


def _n_seen(names: Collection[str]) -> int:
    """Count parts by name: one with a number has those below it beside it."""
    numbers = (whole_number(name, most=MAX_CORES - 1) for name in names)
    highest = max((number for number in numbers if number is not None), default=-1)
    return max(min(len(names), MAX_CORES), highest + 1)


class NodeSeries(msgspec.Struct):
    """The samples of a node, exporter by exporter, until their scrapes are complete."""

    identity: dict[str, str] = {}
    runs: dict[str, int] = {}
    # The newest time at which series named a run, and scrapes of accelerators since then.
    named_s: float = 0.0
    n_unnamed: int = 0
    parts: dict[str, list[str]] = {}
    cores_per_device: int = 0
    n_devices: int = 0
    is_percent: bool = False
    exporters: dict[str, ExporterState] = {}
    # By name: the value, and when it was last given.
    labels: dict[str, tuple[str, float]] = {}
    # Devices and cores as the node's agent says: that outweighs all else.
    said: tuple[int, int] | None = None

    @property
    def n_waiting(self) -> int:
        """Count the scrapes that are not taken yet."""
        return sum(len(exporter.waiting) for exporter in self.exporters.values())

    @property
    def there(self) -> list[ExporterState]:
        known = [exporter for exporter in self.exporters.values() if exporter.at_ms]
        newest_ms = max((each.at_ms for each in known), default=0)
        return [
            each
            for each in known
            if newest_ms - each.at_ms <= MS * MAX_INTERVALS * (each.interval_s or LONG_INTERVAL_S)
        ]

    def scraped(self) -> tuple[int, list[int]]:
        """Return the seconds between scrapes, and the last second of each exporter still there."""
        there = self.there
        every_s = min((each.interval_s for each in there if each.interval_s), default=0.0)
        ticks = {math.floor(each.at_ms / MS) for each in there}
        return math.ceil(every_s or LONG_INTERVAL_S), sorted(ticks)

    def names_no_run(self, *, now_s: float) -> bool:
        """Whether series have named no run for so long that it is over.

        Exporters learn which pod uses a device from the kubelet, in a request of its own that may
        fail, and single scrapes may be lost: a name is gone after as many scrapes as an exporter
        is. The exporter that named it may be one that is scraped less often.
        """
        longest_s = max((each.interval_s or LONG_INTERVAL_S for each in self.there), default=0.0)
        is_long = now_s - self.named_s >= MAX_INTERVALS * longest_s
        return self.n_unnamed >= math.ceil(MAX_INTERVALS) and is_long

    def label(self, labels: Mapping[str, str], *, arrived_s: float) -> None:
        """Learn labels; of several pods of a node, the first stays while it is given."""
        for name, value in labels.items():
            known, at_s = self.labels.get(name, (value, arrived_s))
            if known == value or arrived_s - at_s > LABEL_STAYS_S:
                self.labels[name] = value, arrived_s

    def add(self, samples: Iterable[Sample], *, arrived_s: float) -> tuple[int, int]:
        """Collect samples; return how many are new, and how many are repeated."""
        n_new = n_repeated = 0
        for at_ms, value, exporter, key, sender in samples:
            state = self.exporters.setdefault(exporter, ExporterState())
            if at_ms <= state.at_ms + SAME_SCRAPE_MS or not state.hears(sender, at_ms):
                n_repeated += 1
                continue
            text = key.text
            scrape = state.waiting.get(at_ms)
            for other in () if scrape else state.waiting.values():
                # Senders of OTLP may give each series of a collection its own time.
                if abs(other.at_ms - at_ms) <= SAME_SCRAPE_MS:
                    scrape = other
                    break
            if scrape is None and len(state.waiting) >= MAX_WAITING:
                n_repeated += 1
                continue
            if scrape is None:
                scrape = state.waiting[at_ms] = Scrape(at_ms, arrived_s, {})
            if len(scrape.values) < MAX_SERIES:
                n_repeated += text in scrape.values
                n_new += text not in scrape.values
                scrape.values[text] = value
        return n_new, n_repeated

    def readings(self, *, now_s: float) -> Iterator[tuple[Reading, float]]:
        """Take the complete scrapes, oldest first, as readings with the end of each."""
        for exporter in self.exporters.values():
            for at_ms in sorted(exporter.waiting):
                scrape = exporter.waiting[at_ms]
                is_newest = at_ms == max(exporter.waiting)
                is_complete = 0 < exporter.n_series <= len(scrape.values)
                if is_newest and not is_complete and now_s - scrape.arrived_s < COMPLETE_AFTER_S:
                    break
                del exporter.waiting[at_ms]
                reading = self._reading(exporter, scrape)
                if reading is not None:
                    yield reading, at_ms / MS

    def _reading(self, exporter: ExporterState, scrape: Scrape) -> Reading | None:
        since_s = (scrape.at_ms - exporter.at_ms) / MS
        usual_s = exporter.interval_s or MAX_COVER_S
        is_gap = since_s > min(MAX_INTERVALS * usual_s, MAX_COVER_S)
        # The first scrape, and one after an outage, show only their own time.
        period_s = since_s if not is_gap else exporter.interval_s or 1.0
        exporter.learn_interval(since_s)
        ended = exporter.ended(scrape)
        by_metric: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        for text, value in scrape.values.items():
            metric, part, kind, process, of = text.split("|", 4)
            bounds = BOUNDS.get(metric, POSSIBLE)
            if metric == "hardware_info":
                self._learn(of)
            elif kind == "d":
                total = exporter.counters.get(text, (0, 0.0))[1] + value
                exporter.counters[text] = (scrape.at_ms, total)
                by_metric[metric][part].append(total)
            elif kind:
                rate = exporter.rate(text, scrape.at_ms, value, bounds)
                if rate is not None and not is_gap and process not in ended:
                    by_metric[metric][part].append(rate)
            elif metric == UNHEALTHY and bounds.has(value):
                exporter.verdicts[f"{part}|{of}"] = (scrape.at_ms, value)
            elif bounds.has(value) and process not in ended:
                by_metric[metric][part].append(value)
        exporter.at_ms, exporter.n_series = scrape.at_ms, len(scrape.values)
        # Of a series that a scrape does not have, the next one is compared with its last.
        oldest_ms = scrape.at_ms - MS * MAX_COVER_S
        exporter.counters = {
            text: known
            for text, known in exporter.counters.items()
            if known[0] >= oldest_ms or text in scrape.values
        }
        self._judge(exporter, scrape.at_ms, by_metric)
        arrays, rejected = self._arrays(by_metric)
        if not arrays:
            return None
        return Reading(
            NodeIdentity(**self.identity),
            self.shape,
            period_s,
            arrays,
            at_s=scrape.at_ms / MS,
            n_efa=len(self.parts.get("efa", ())),
            rejected=tuple(rejected),
        )

    def _judge(
        self, exporter: ExporterState, at_ms: int, found: dict[str, dict[str, list[float]]]
    ) -> None:
        """Say of each device the worst that any source has said of late: sick if any says so."""
        for gpu, xids in found.pop("last_xid", {}).items():
            is_sick = any(xid > 0 and xid not in XIDS_OF_APPLICATIONS for xid in xids)
            exporter.verdicts[f"{gpu}|last_xid"] = (at_ms, float(is_sick))
        if not any(said_ms == at_ms for said_ms, _ in exporter.verdicts.values()):
            return
        for each in self.exporters.values():
            stays_ms = MS * max(VERDICT_STAYS_S, MAX_INTERVALS * each.interval_s)
            each.verdicts = {
                source: verdict
                for source, verdict in each.verdicts.items()
                if verdict[0] >= at_ms - stays_ms
            }
            for source, (_, value) in each.verdicts.items():
                found[UNHEALTHY][source.partition("|")[0]].append(value)

    def _learn(self, of: str) -> None:
        devices, _, cores = of.partition("x")
        self._take_shape(*(whole_number(text, most=MAX_CORES) or 0 for text in (devices, cores)))

    def _take_shape(self, n_devices: int, cores_per_device: int) -> None:
        """Take a node's shape from its exporter, unless no node has it."""
        if 0 < n_devices * cores_per_device <= MAX_CORES:
            self.n_devices, self.cores_per_device = n_devices, cores_per_device

    @property
    def shape(self) -> Shape:
        """The node's devices and cores: as its agent says, its exporter, its type, or as seen."""
        if self.said is not None:
            return Shape(*self.said)
        kind = catalog.instances().get(self.identity.get("instance_type", ""))
        cores, devices = (_n_seen(self.parts.get(kind, ())) for kind in ("core", "device"))
        n_devices = self.n_devices or (kind.n_devices if kind else 0) or devices
        per_device = self.cores_per_device or (
            kind.n_cores // kind.n_devices if kind and kind.n_devices else 1
        )
        return Shape(n_devices, max(n_devices * per_device, cores))

    def _arrays(
        self, found: Mapping[str, Mapping[str, list[float]]]
    ) -> tuple[dict[str, FloatArray], list[str]]:
        """Return values by part, and of which parts none are: the node does not have them."""
        values = {
            metric: {
                part: max(some) if metric in METRICS_BY_MAX else math.fsum(some)
                for part, some in of.items()
            }
            for metric, of in found.items()
        }
        self._derive(values)
        arrays, rejected = {}, []
        for metric, by_part in values.items():
            if metric not in METRICS:
                continue
            kind = METRICS[metric].part
            if kind == "node":
                arrays[metric] = np.array([[by_part.get("", math.nan)]])
                continue
            # A count of a whole node is stored as its first device.
            named = {part or "0": value for part, value in by_part.items()}
            row = np.full(self._n_parts(kind, named), np.nan)
            places = {name: i for i, name in enumerate(self.parts[kind])}
            for part, value in named.items():
                at = (
                    int(part) if part.isdecimal() and kind != "efa" else places.get(part, len(row))
                )
                if at < len(row):
                    row[at] = value
                elif kind != "efa":
                    rejected.append(
                        f"{metric} of {kind} {part}, but the node has {len(row)}; the first is 0"
                    )
            arrays[metric] = row[None]
        return arrays, rejected

    def _n_parts(self, kind: str, by_part: Mapping[str, float]) -> int:
        """Count the parts of a kind; new names are remembered, in natural order."""
        names = self.parts.setdefault(kind, [])
        new = [part for part in by_part if part not in names]
        if new:
            names.extend(new)
            # rdmap9 before rdmap16.
            names.sort(key=lambda name: (len(name), name))
            del names[MAX_CORES:]
        shape = self.shape
        known = {"core": shape.n_cores, "device": shape.n_devices}.get(kind, 0)
        return known or len(names)

    def _derive(self, values: dict[str, dict[str, float]]) -> None:
        """Replace what exporters give in other terms by our metrics."""
        n_devices, n_cores = (
            values.pop(f"{of}_count", {}).get("", 0.0) for of in ("device", "core")
        )
        if 1 <= n_devices <= n_cores < math.inf:
            self._take_shape(int(n_devices), int(n_cores // n_devices))
        shape = self.shape
        if busy_cores := values.pop("core_utilization_of_any_unit", None):
            # A busy core tells percent from a ratio; that it is percent stays known.
            self.is_percent |= max(busy_cores.values()) > SURELY_PERCENT
            scale = 0.01 if self.is_percent else 1.0
            values["core_utilization_ratio"] = {p: v * scale for p, v in busy_cores.items()}
        if idle_percent := values.pop("idle_percent", None):
            busy = 1.0 - math.fsum(idle_percent.values()) / len(idle_percent) / 100
            values["vcpu_usage_ratio"] = {"": min(1.0, max(0.0, busy))}
        if memory := values.pop("core_memory_bytes", None):
            per_device = max(1, shape.n_cores // max(1, shape.n_devices))
            used: dict[str, float] = defaultdict(float)
            for core, n_bytes in memory.items():
                if core.isdecimal():
                    used[str(int(core) // per_device)] += n_bytes
            values["device_memory_used_bytes"] = used
        if idle := values.pop("idle_cpus", None):
            busy = 1.0 - math.fsum(idle.values()) / len(idle)
            values["vcpu_usage_ratio"] = {"": min(1.0, max(0.0, busy))}
        total, free = (values.pop(f"memory_{of}_bytes", None) for of in ("total", "available"))
        if total and free:
            values["host_memory_used_bytes"] = {"": total[""] - free[""]}
        if coarse := values.pop("gpu_utilization_ratio", None):
            values.setdefault("core_utilization_ratio", coarse)
        kind = catalog.instances().get(self.identity.get("instance_type", ""))
        if (active := values.pop("hbm_active_ratio", None)) and kind:
            peak = kind.chip.hbm_bytes_per_s
            values["hbm_bandwidth_bytes_per_s"] = {p: v * peak for p, v in active.items()}
        if kind and (used_bytes := values.get("device_memory_used_bytes")):
            most = DEVICE_ROOM * kind.chip.hbm_bytes
            values["device_memory_used_bytes"] = {
                part: n_bytes for part, n_bytes in used_bytes.items() if n_bytes <= most
            }
        if ratio := values.get("core_utilization_ratio"):
            values["core_utilization_ratio"] = {
                part: min(1.0, max(0.0, value)) for part, value in ratio.items()
            }
