"""A run: one training job, what it trains, on what, what that costs, and what it compiled."""

import math
from datetime import datetime
from functools import reduce
from operator import or_
from typing import Self

from django.db import models
from django.db.models import F, Q
from django.urls import reverse
from django.utils import timezone

from fleet.models.filters import Labeled, LabeledQuerySet, given, label_q, labels_contain
from telemetry import catalog
from telemetry.detect.rules import RULES
from telemetry.simulate.plan import LEAST_SHARD_NODES
from telemetry.statistics.tariff import Tariff
from telemetry.units import HOUR_S

SHARE = RULES["allreduce_share"].limits


class RunQuerySet(LabeledQuerySet["Run"]):
    def active(self) -> Self:
        return self.filter(finished_at=None)

    def watched_by(self, watcher: int, of: int) -> Self:
        """Keep the runs of one watcher of some: a run has always the same one."""
        return self.alias(watcher=F("pk") % of).filter(watcher=watcher)

    def simulated(self) -> Self:
        return self.filter(is_simulated=True)

    def without_past(self) -> Self:
        """Keep the runs of the demo whose past is still being simulated."""
        return self.exclude(past_until=None)

    def filter_by(
        self,
        *,
        state: str = "",
        phase: str = "",
        team: str = "",
        text: str = "",
        label: str = "",
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> Self:
        """Keep the runs that match every field given.

        ``state`` is active, over or retired; empty: all but the retired. ``text`` is part of the
        name, team, model, purpose or a label; ``label`` is ``name=value``, or a name; ``since``
        and ``until`` limit when the run started.
        """
        runs = self.filter(
            **given(phase=phase, team=team, started_at__gte=since, started_at__lt=until)
        )
        if text:
            fields = ("name", "team", "model", "purpose")
            about = [Q(**{f"{field}__icontains": text}) for field in fields]
            runs = runs.filter(reduce(or_, about) | labels_contain(text))
        if label:
            runs = runs.filter(label_q(label))
        if state == "retired":
            return runs.exclude(retired_at=None)
        runs = runs.unretired()
        return runs.filter(finished_at__isnull=state == "active") if state else runs


class Run(Labeled):
    class Phase(models.TextChoices):
        PENDING = "pending"
        COMPILING = "compiling"
        WARMING_UP = "warming_up", "warming up"
        TRAINING = "training"
        FINISHED = "finished"
        FAILED = "failed"

    MAX_REASON_CHARS = 200

    name = models.SlugField(max_length=60, unique=True)
    team = models.CharField(max_length=40, blank=True)
    purpose = models.CharField(max_length=200, blank=True, help_text="One line.")
    model = models.CharField(max_length=60)
    instance_type = models.CharField(max_length=40)
    n_nodes = models.PositiveIntegerField()
    tp = models.PositiveIntegerField(default=1)
    pp = models.PositiveIntegerField(default=1)
    recipe = models.JSONField(
        null=True,
        blank=True,
        help_text="More of its layout, as far as reported: cp, vp, micro_batch, "
        "sequence_parallel, recompute.",
    )
    seq_len = models.PositiveIntegerField()
    global_batch = models.PositiveIntegerField()
    precision = models.CharField(max_length=10, default="bf16")
    compiler_flags = models.CharField(
        max_length=500,
        blank=True,
        db_default="",
        help_text="As passed to neuronx-cc. Empty: not reported.",
    )
    compiler_version = models.CharField(
        max_length=60, blank=True, db_default="", help_text="Of neuronx-cc. Empty: not reported."
    )
    sdk_version = models.CharField(
        max_length=40,
        blank=True,
        db_default="",
        help_text="Of the Neuron SDK. Empty: not reported.",
    )
    optimizer = models.CharField(
        max_length=40, blank=True, db_default="", help_text="Such as AdamW; empty: not reported."
    )
    usd_per_node_hour = models.FloatField(help_text="The price when the run began.")
    price_basis = models.CharField(max_length=80, help_text="Source of the price.")
    allreduce_limit_ratio = models.FloatField(default=SHARE["limit_ratio"])
    allreduce_resolve_ratio = models.FloatField(default=SHARE["resolve_ratio"])
    limits = models.JSONField(
        null=True,
        blank=True,
        help_text="Other limits of its own, by rule and limit, such as node_idle.idle_s.",
    )

    is_simulated = models.BooleanField(default=False)
    past_until = models.DateTimeField(
        null=True,
        blank=True,
        help_text="The past before this moment is still being simulated. Empty: it is complete.",
    )
    plan = models.JSONField(
        default=dict, blank=True, help_text="The simulator's plan. Empty for real runs."
    )
    shard_nodes = models.PositiveIntegerField(
        default=LEAST_SHARD_NODES,
        db_default=LEAST_SHARD_NODES,
        help_text="Nodes per shard of a simulated run, for as long as it lives.",
    )
    clock = models.JSONField(
        default=dict,
        blank=True,
        help_text="The run's clocks, saved every minute in case Redis is lost.",
    )

    shape = models.JSONField(
        default=dict,
        blank=True,
        null=True,
        help_text="Figures of a model that the catalogue lacks: params, layers, hidden.",
    )
    session = models.CharField(
        max_length=60,
        blank=True,
        db_default="",
        help_text="The start of the job that reports. Empty: none.",
    )
    step_shift = models.BigIntegerField(
        default=0, db_default=0, help_text="Repeated steps: our count minus the job's count."
    )
    starts = models.JSONField(
        null=True,
        blank=True,
        help_text="After a restart: first step, count difference and time of each start.",
    )
    n_workers = models.PositiveIntegerField(
        default=0, db_default=0, help_text="Number of reporting workers. 0: unknown."
    )
    tokens_per_epoch = models.BigIntegerField(
        null=True, blank=True, help_text="Tokens of one pass over the data. Empty: unknown."
    )
    planned_tokens = models.BigIntegerField(
        null=True, blank=True, help_text="Planned length in tokens. Empty: unknown."
    )
    heard_at = models.DateTimeField(null=True, blank=True, help_text="Arrival of the last report.")
    requires_preflight = models.BooleanField(
        default=False,
        db_default=False,
        help_text="Whether its nodes need a pass within a day before the start.",
    )
    preflight_doubt = models.CharField(
        max_length=200,
        blank=True,
        default="",
        db_default="",
        help_text="Why it started without the required pass. Empty: it did not.",
    )

    tariff = models.JSONField(
        null=True,
        blank=True,
        help_text="Prices and when they apply, oldest first, if they change.",
    )
    paid_until = models.DateTimeField(
        null=True, blank=True, help_text="While active: paid up to this time."
    )
    spending = models.JSONField(
        null=True, blank=True, help_text="Use of its time, from fleet/costs/spending.py."
    )

    phase = models.CharField(max_length=12, choices=Phase, default=Phase.PENDING)
    phase_progress_ratio = models.FloatField(default=0.0)
    phase_since = models.DateTimeField()
    end_reason = models.CharField(
        max_length=MAX_REASON_CHARS,
        blank=True,
        db_default="",
        help_text="Why it failed. Empty: unknown.",
    )
    started_at = models.DateTimeField()
    finished_at = models.DateTimeField(null=True, blank=True)
    last_step = models.BigIntegerField(default=0)
    n_tokens = models.BigIntegerField(default=0)

    objects = RunQuerySet.as_manager()

    class Meta:
        ordering = ("name",)
        constraints = (
            models.CheckConstraint(
                condition=Q(allreduce_resolve_ratio__lte=F("allreduce_limit_ratio")),
                name="resolves_at_or_below_its_limit",
            ),
        )

    def __str__(self) -> str:
        return self.name

    def get_absolute_url(self) -> str:
        return reverse("run-detail", args=[self.name])

    @property
    def is_reported(self) -> bool:
        """Whether the job reports its own steps."""
        return bool(self.session)

    @property
    def knows_progress(self) -> bool:
        """Whether its progress is known in a phase without steps."""
        is_getting_ready = self.phase in (self.Phase.COMPILING, self.Phase.WARMING_UP)
        return is_getting_ready and not self.is_reported

    @property
    def rates(self) -> Tariff:
        """Cost of all its nodes per second, with its start; NaN where unknown."""
        began = {
            "from_s": self.started_at.timestamp(),
            "n_nodes": self.n_nodes,
            "usd_per_node_hour": self.usd_per_node_hour,
        }
        prices = ((each, each["usd_per_node_hour"] or math.nan) for each in self.tariff or [began])
        return Tariff.of((each["from_s"], each["n_nodes"] * usd / HOUR_S) for each, usd in prices)

    def price_at(self, at: datetime) -> tuple[float, str]:
        """Price of a node-hour at a time, and its basis; 0: unknown."""
        price = (self.usd_per_node_hour, self.price_basis)
        for each in self.tariff or ():
            if each["from_s"] <= at.timestamp():
                price = (each["usd_per_node_hour"], each["basis"])
        return price

    @property
    def price(self) -> tuple[float, str]:
        """Price of a node-hour now, or when the run ended, and its basis."""
        return self.price_at(self.finished_at or timezone.now())

    @property
    def usd_per_hour(self) -> float:
        """Cost per hour, now or when the run ended; 0 if unknown."""
        return self.n_nodes * self.price[0]

    def paid_by(self, now: datetime) -> datetime:
        """Time up to which its nodes are paid for, as known at a given time."""
        if self.finished_at is not None:
            until = max(self.finished_at, self.paid_until or self.finished_at)
        else:
            until = self.paid_until or now
        return max(self.started_at, min(now, until))

    def remaining_s(self, now: datetime) -> float | None:
        """Return how long the phase still takes at its pace so far; None if unknown."""
        done = self.phase_progress_ratio
        if self.phase not in (Run.Phase.COMPILING, Run.Phase.WARMING_UP) or not 0 < done <= 1:
            return None
        return (now - self.phase_since).total_seconds() * (1.0 - done) / done

    def usd_by(self, now: datetime) -> float:
        """Cost of the run so far; it never decreases, and is NaN without a price."""
        return self.rates.usd(self.started_at.timestamp(), self.paid_by(now).timestamp())

    def usd_between(self, start: datetime, end: datetime) -> float:
        """Cost of its nodes between two times; NaN without a price.

        Nothing is paid before the run began or after it ended; of a run that goes on, time to
        come is paid as announced so far.
        """
        start = max(start, self.started_at)
        if self.finished_at is not None:
            end = min(end, self.paid_by(end))
        return self.rates.usd(start.timestamp(), max(start, end).timestamp())

    @property
    def flops_per_token(self) -> float | None:
        """FLOPs of training on one token; None if unknown.

        For a model that the catalog lacks: ``6 · params``, and ``12 · layers · hidden · seq_len``
        for attention if the run reports its shape.
        """
        known = catalog.models().get(self.model)
        shape = self.shape or {}
        if "params" not in shape:
            return known.flops_per_token(self.seq_len) if known and self.seq_len else None
        attention = 12 * shape.get("layers", 0) * shape.get("hidden", 0) * self.seq_len
        return float(6 * shape["params"] + attention)

    @property
    def peak_flops(self) -> float | None:
        """Dense FLOPs per second of all its nodes at its precision; None if unknown."""
        instance = catalog.instances().get(self.instance_type)
        if instance is None or self.precision not in instance.chip.peak_flops:
            return None
        return self.n_nodes * instance.peak_flops(self.precision)

    def contradicted_tokens(self, tokens: float | None) -> int | None:
        """Return the tokens of a step by batch and length if ``tokens`` contradicts them.

        A step has no more than its batch, and fewer by padding; a whole fraction is perhaps what
        one worker trained.
        """
        planned = self.global_batch * self.seq_len
        if not planned or not tokens or not math.isfinite(tokens):
            return None
        times = planned / tokens
        is_fraction = times > 1.5 and abs(times - round(times)) < 1e-3
        return planned if is_fraction or times < 1 - 1e-3 else None

    def mfu_ratio(self, tokens_per_s: float | None) -> float | None:
        """Model FLOPs utilization: the share of the peak that training uses; None if unknown."""
        per_token, peak = self.flops_per_token, self.peak_flops
        if not per_token or not peak or tokens_per_s is None or not math.isfinite(tokens_per_s):
            return None
        return tokens_per_s * per_token / peak


class CompileEventQuerySet(models.QuerySet["CompileEvent"]):
    def unannounced(self) -> Self:
        """Keep the unplanned compiles: again, or during training."""
        return self.filter(verdict__in=(CompileEvent.Verdict.AGAIN, CompileEvent.Verdict.AMID))

    def filter_by(
        self,
        *,
        team: str = "",
        run: str = "",
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> Self:
        """Keep the events that match every field given, unordered.

        Events without a time are kept only where neither ``since`` nor ``until`` is given.
        """
        return self.order_by().filter(
            **given(run__team=team, run__name=run, at__gte=since, at__lt=until)
        )


class CompileEvent(models.Model):
    """One request of a process for a compiled graph."""

    class Outcome(models.TextChoices):
        HIT = "hit", "found in the cache"
        MISS = "miss", "compiled"
        FAIL = "fail", "failed"

    class Verdict(models.TextChoices):
        """Why it was compiled, as known at that time."""

        FIRST = "first", "first time"
        PLANNED = "planned", "announced"
        AGAIN = "again", "compiled again"
        AMID = "amid", "new during training"
        BESIDE = "beside", "compiled by two processes"

    run = models.ForeignKey("fleet.Run", models.CASCADE, related_name="compiles")
    module = models.CharField(
        max_length=120,
        blank=True,
        help_text="MODULE_<hash of the graph>+<hash of the flags>. Empty: unknown.",
    )
    outcome = models.CharField(max_length=4, choices=Outcome)
    rank = models.PositiveIntegerField(null=True, help_text="Empty: unknown.")
    process = models.CharField(
        max_length=160, blank=True, help_text="Requesting process: source and ID."
    )
    at = models.DateTimeField(null=True, help_text="When it was found, or began to compile.")
    seconds = models.FloatField(null=True, help_text="Duration. Empty: unknown.")
    compiler = models.CharField(max_length=60, blank=True, help_text="Version of neuronx-cc.")
    flags = models.CharField(max_length=500, blank=True, help_text="As passed to the compiler.")
    cache = models.CharField(max_length=500, blank=True, help_text="Where the cache is.")
    shape = models.CharField(
        max_length=200,
        blank=True,
        db_default="",
        help_text="Input shapes, if the job reports them.",
    )
    noted_at = models.DateTimeField(
        null=True, blank=True, help_text="When it was received. Empty: imported with a log."
    )
    verdict = models.CharField(
        max_length=8,
        choices=Verdict,
        blank=True,
        db_default="",
        help_text="Why it compiled. Empty: not classified.",
    )
    change = models.JSONField(
        null=True, blank=True, help_text="What changed before an unannounced compile, and when."
    )

    objects = CompileEventQuerySet.as_manager()

    class Meta:
        ordering = ("at", "pk")
        constraints = (
            models.UniqueConstraint(
                fields=["run", "module", "outcome", "process", "at"],
                name="a_compile_event_is_kept_once",
            ),
            models.CheckConstraint(
                condition=Q(seconds=None) | Q(seconds__gte=0) & ~Q(outcome="hit"),
                name="what_is_found_takes_no_compile_time",
            ),
        )
        indexes = (
            models.Index(fields=["-at", "-id"], name="compiles_newest_first"),
            models.Index(fields=["noted_at"], name="compiles_as_they_came"),
        )

    def __str__(self) -> str:
        return f"{self.run}: {self.module or 'a graph'} {self.get_outcome_display()}"
