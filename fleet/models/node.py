"""A node: one machine that reports."""

from collections.abc import Collection
from datetime import datetime
from functools import lru_cache
from typing import Self

from django.db import models
from django.db.models import Q
from django.urls import reverse

from fleet.models.filters import Labeled, LabeledQuerySet, given, label_q, labels_contain
from telemetry import catalog

# What shares of the peak are of: the usual precision of training.
PEAK_PRECISION = "bf16"


@lru_cache(maxsize=20_000)
def address(page: str, key: str | int) -> str:
    """Return the URL of an object; cached, because pages list hundreds of them every second."""
    return reverse(page, args=[key])


class NodeQuerySet(LabeledQuerySet["Node"]):
    def real(self) -> Self:
        return self.exclude(source=Node.Source.SIMULATED)

    def expected(self) -> Self:
        """Keep the nodes that should report: neither retired nor of a run that has ended."""
        return self.unretired().filter(run__finished_at=None)

    def filter_by(
        self,
        *,
        run: str = "",
        team: str = "",
        instance_type: str = "",
        source: str = "",
        text: str = "",
        label: str = "",
        is_unassigned: bool = False,
    ) -> Self:
        """Keep the nodes that match every field given.

        ``text`` is part of the name, the instance id, the zone, the UltraServer or a label;
        ``label`` is ``name=value``, or a name; an unassigned node has no run.
        """
        nodes = self.filter(
            **given(run__name=run, run__team=team, instance_type=instance_type, source=source)
        )
        if text:
            nodes = nodes.filter(
                Q(name__icontains=text)
                | Q(instance_id__icontains=text)
                | Q(zone__icontains=text)
                | Q(ultraserver_id__icontains=text)
                | labels_contain(text)
            )
        if label:
            nodes = nodes.filter(label_q(label, zone="zone"))
        return nodes.filter(run=None) if is_unassigned else nodes

    def in_state(self, state: str, *, up: Collection[str]) -> Self:
        """Keep nodes that are up, silent, released or retired; empty: all but the retired.

        ``up`` are the names of the nodes that are up. Of the others, those whose run is over are
        released, the rest is silent.
        """
        if state == "retired":
            return self.exclude(retired_at=None)
        nodes = self.unretired()
        if not state:
            return nodes
        if state == "up":
            return nodes.filter(name__in=up)
        return nodes.exclude(name__in=up).filter(run__finished_at__isnull=state == "silent")


class Node(Labeled):
    """One node of the fleet, simulated or real."""

    class Source(models.TextChoices):
        SIMULATED = "simulated"
        NEURON_MONITOR = "neuron-monitor"
        STEPS = "step-reports"

    name = models.CharField(max_length=80, unique=True)
    instance_type = models.CharField(max_length=40)
    instance_id = models.CharField(max_length=40, blank=True)
    zone = models.CharField(max_length=40, blank=True)
    rack = models.CharField(
        max_length=40,
        blank=True,
        db_default="",
        help_text="Nodes of one rack share switches; empty: unknown.",
    )
    ultraserver_id = models.CharField(
        max_length=40,
        blank=True,
        db_default="",
        help_text="Nodes of one UltraServer share NeuronLink; empty: none, or unknown.",
    )
    source = models.CharField(max_length=20, choices=Source)
    shard = models.CharField(max_length=90, help_text="Where the store keeps it.")
    run = models.ForeignKey(
        "fleet.Run", models.SET_NULL, null=True, blank=True, related_name="nodes"
    )
    rank = models.PositiveIntegerField(default=0, help_text="Place within the run.")
    n_cores = models.PositiveIntegerField(help_text="As the runtime counts them.")
    n_devices = models.PositiveIntegerField()
    n_efa = models.PositiveIntegerField(default=0)
    replaced_at = models.DateTimeField(
        null=True, blank=True, help_text="When another machine took the name. Empty: never."
    )
    replaced_id = models.CharField(
        max_length=40, blank=True, db_default="", help_text="Instance id of the machine before."
    )
    first_seen_at = models.DateTimeField()
    last_seen_at = models.DateTimeField(
        null=True, blank=True, help_text="Newest report, to the hour. Empty: not known yet."
    )

    objects = NodeQuerySet.as_manager()

    class Meta:
        ordering = ("name",)

    def __str__(self) -> str:
        return self.name

    def get_absolute_url(self) -> str:
        return address("node-detail", self.name)

    @property
    def is_released(self) -> bool:
        """Whether its run has ended: it need not report."""
        return self.run is not None and self.run.finished_at is not None

    def is_newer(self, at: datetime) -> bool:
        """Whether its machine took the name after this moment."""
        return self.replaced_at is not None and at <= self.replaced_at

    @property
    def all_labels(self) -> dict[str, str]:
        return {**({"zone": self.zone} if self.zone else {}), **self.labels}

    @property
    def is_expected(self) -> bool:
        return self.retired_at is None and not self.is_released

    @property
    def device_numbers(self) -> range:
        return range(self.n_devices)

    @property
    def cores_per_device(self) -> int:
        """Number of cores per device, as the runtime counts them."""
        return max(1, self.n_cores // max(1, self.n_devices))

    @property
    def core_peak_flops(self) -> float | None:
        """FLOPs per second of a core at its dense BF16 peak; None for an unknown instance type."""
        instance = catalog.instances().get(self.instance_type)
        peak = instance.chip.peak_flops.get(PEAK_PRECISION) if instance else None
        return peak and peak * self.n_devices / max(1, self.n_cores)


class InjectedFault(models.Model):
    """One fault of a simulated run: ground truth, which detection never reads."""

    run = models.ForeignKey("fleet.Run", models.CASCADE, related_name="injected_faults")
    node = models.ForeignKey(
        "fleet.Node", models.CASCADE, null=True, blank=True, related_name="injected_faults"
    )
    kind = models.CharField(max_length=24)
    device = models.IntegerField(null=True, blank=True)
    magnitude = models.FloatField()
    starts_at = models.DateTimeField()
    ends_at = models.DateTimeField()
    injected_by = models.CharField(
        max_length=150, blank=True, help_text="Who started the drill. Empty: the demo."
    )

    class Meta:
        ordering = ("-starts_at",)
        constraints = (
            models.CheckConstraint(
                condition=models.Q(ends_at__gt=models.F("starts_at")),
                name="a_fault_lasts_some_time",
            ),
        )

    def __str__(self) -> str:
        return f"{self.kind} on {self.node or self.run}"
