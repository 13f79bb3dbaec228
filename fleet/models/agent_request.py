"""Requests to agents and to the workers of runs: a probe, a trace or a sample."""

from datetime import datetime, timedelta
from statistics import median
from typing import Any, ClassVar, Self

from django.db import models
from django.urls import reverse

from telemetry.store.node_state import RequestKind


class AgentRequestQuerySet(models.QuerySet[Any]):
    def unfinished(self) -> Self:
        return self.filter(**{self.model.FINISHED: None})

    def waiting(self, now: datetime) -> Self:
        """Keep the requests whose result is still waited for."""
        return self.unfinished().filter(requested_at__gt=now - self.model.WAIT)

    def expired(self, now: datetime) -> Self:
        """Keep the requests without a result in time."""
        return self.unfinished().filter(requested_at__lt=now - self.model.WAIT)


class AgentRequest(models.Model):
    """What is asked of an agent or of the workers of a run, until it expires.

    It is known by its kind and number (the key), has a subject (the name of a node or a run) and
    limits. The first result counts. Where ``SETTING`` is off, nothing of the kind is asked for.
    """

    KIND: ClassVar[RequestKind]
    SETTING: ClassVar[str]
    # The column of the time of the result.
    FINISHED: ClassVar[str] = "answered_at"
    # A result arrives within this time, or not at all.
    WAIT: ClassVar[timedelta]

    requested_at = models.DateTimeField()

    objects = AgentRequestQuerySet.as_manager()

    class Meta:
        abstract = True

    @property
    def subject(self) -> str:
        raise NotImplementedError

    @property
    def limits(self) -> dict[str, object]:
        raise NotImplementedError

    @property
    def expires_at(self) -> datetime:
        return self.requested_at + self.WAIT

    def finish(self, now: datetime, **result: Any) -> bool:
        """Store a result; False where there is one already."""
        result[self.FINISHED] = now
        for name, value in result.items():
            setattr(self, name, value)
        rows = type(self).objects.unfinished().filter(pk=self.pk)
        return bool(rows.update(**result))


class ProbeRequest(AgentRequest):
    """A probe that a node's agent was asked for by an alert.

    An alert that accuses a node asks suspects and a peer. One that accuses none asks every node
    of its run, and then again those that answered late, with peers: a new row replaces the first,
    with its answer.
    """

    class Purpose(models.TextChoices):
        SUSPECT = "suspect"
        RUN = "run", "every node of the run"
        AGAIN = "again", "asked again"

    KIND, SETTING, WAIT = "probe", "REQUEST_PROBES", timedelta(minutes=1)

    alert = models.ForeignKey("fleet.Alert", models.CASCADE, related_name="probe_requests")
    node = models.CharField(max_length=80)
    is_peer = models.BooleanField(default=False, help_text="Not suspected; for comparison.")
    purpose = models.CharField(
        max_length=8, choices=Purpose, default=Purpose.SUSPECT, db_default=Purpose.SUSPECT
    )
    answered_at = models.DateTimeField(null=True, blank=True)
    reason = models.CharField(max_length=200, blank=True, help_text="Why there is no result.")
    latency_s = models.JSONField(default=dict, blank=True, help_text="Seconds by EFA device.")
    first_latency_s = models.JSONField(
        null=True, blank=True, help_text="The answer before it was asked again."
    )
    judged_at = models.DateTimeField(
        null=True, blank=True, help_text="When the answers of a whole run were compared."
    )

    class Meta:
        ordering = ("is_peer", "node")
        constraints = (
            models.UniqueConstraint(fields=["alert", "node"], name="one_probe_per_alert_and_node"),
        )

    def __str__(self) -> str:
        return f"probe of {self.node} for alert {self.alert_id}"

    @property
    def subject(self) -> str:
        return self.node

    @property
    def limits(self) -> dict[str, object]:
        return {"name": "efa_latency"}

    @property
    def median_s(self) -> float | None:
        return median(self.latency_s.values()) if self.latency_s else None

    @property
    def is_again(self) -> bool:
        return self.purpose == self.Purpose.AGAIN

    @property
    def first_answer(self) -> dict[str, float]:
        return dict(self.first_latency_s or self.latency_s)

    @property
    def worst_s(self) -> float | None:
        return max(self.latency_s.values(), default=None)


class TraceRequest(AgentRequest):
    """A trace of the runtime that an alert asked the workers of its run for."""

    KIND, SETTING, FINISHED = "trace", "REQUEST_TRACES", "judged_at"
    # The last traced steps arrive, and are assembled, so long after the end.
    ASSEMBLED_WITHIN = timedelta(seconds=15)

    alert = models.OneToOneField("fleet.Alert", models.CASCADE, related_name="trace_request")
    ends_at = models.DateTimeField()
    n_workers = models.PositiveIntegerField()
    judged_at = models.DateTimeField(
        null=True, blank=True, help_text="When its steps were judged."
    )
    result = models.CharField(max_length=500, blank=True, help_text="What it showed.")

    class Meta:
        ordering = ("requested_at", "pk")

    def __str__(self) -> str:
        return f"trace for alert {self.alert_id}"

    @property
    def subject(self) -> str:
        return self.alert.run.name if self.alert.run else ""

    @property
    def limits(self) -> dict[str, object]:
        return {"until_s": round(self.ends_at.timestamp())}

    @property
    def expires_at(self) -> datetime:
        return self.ends_at

    @property
    def lasts(self) -> timedelta:
        return self.ends_at - self.requested_at

    @property
    def result_by(self) -> datetime:
        return self.ends_at + self.ASSEMBLED_WITHIN

    def state(self, at: datetime) -> str:
        """Return running, assembling, judged or overdue, as known at a time."""
        if self.judged_at is not None and self.judged_at <= at:
            return "judged"
        if at < self.ends_at:
            return "running"
        return "assembling" if at < self.result_by + self.ASSEMBLED_WITHIN else "overdue"


class SampleRequest(AgentRequest):
    """A sample of many readings a second that a person requested of a node, and its answer."""

    EVERY_S, LENGTH_S = 0.1, 30
    KIND, SETTING, WAIT = "sample", "REQUEST_SAMPLES", timedelta(minutes=3)

    class State(models.TextChoices):
        WAITING = "waiting"
        SAMPLING = "sampling"
        DONE = "done"
        FAILED = "failed"
        NO_ANSWER = "no_answer", "no answer"

    node = models.ForeignKey("fleet.Node", models.CASCADE, related_name="sample_requests")
    requested_by = models.CharField(max_length=150)
    started_at = models.DateTimeField(null=True, blank=True)
    answered_at = models.DateTimeField(null=True, blank=True)
    reason = models.CharField(max_length=300, blank=True, help_text="Why there is no sample.")
    answer = models.BinaryField(
        null=True, blank=True, help_text="The sample as the agent sent it; the oldest are removed."
    )

    class Meta:
        ordering = ("-requested_at", "-pk")
        constraints = (
            models.UniqueConstraint(
                fields=["node"],
                condition=models.Q(answered_at=None),
                name="one_sample_of_a_node_at_a_time",
            ),
        )
        indexes = (models.Index(fields=["requested_at"], name="samples_oldest_first"),)

    def __str__(self) -> str:
        return f"sample of {self.node}, {self.requested_at:%Y-%m-%d %H:%M:%S}"

    def get_absolute_url(self) -> str:
        return reverse("sample-detail", args=[self.node.name, self.pk])

    @property
    def subject(self) -> str:
        return self.node.name

    @property
    def limits(self) -> dict[str, object]:
        """Its length; ``is_started`` lets an agent that restarted meanwhile answer that it did."""
        started = {"is_started": True} if self.started_at is not None else {}
        return {"every_s": self.EVERY_S, "length_s": self.LENGTH_S, **started}

    def state(self, now: datetime) -> State:
        if self.answered_at is not None:
            return self.State.FAILED if self.reason else self.State.DONE
        if now - self.requested_at > self.WAIT:
            return self.State.NO_ANSWER
        return self.State.WAITING if self.started_at is None else self.State.SAMPLING
