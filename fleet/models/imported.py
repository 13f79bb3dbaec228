"""A recorded trace: the run it was imported as, and the verdict on what slowed it down."""

from django.db import models


class ReadLog(models.Model):
    """The log files that one run was imported from."""

    # Of ``family``: steps of a table, and of a progress bar alone.
    TABLE, PROGRESS = "table", "progress"

    run = models.OneToOneField("fleet.Run", models.CASCADE, related_name="log")
    file = models.CharField(max_length=200, help_text="What it was read from.")
    imported_at = models.DateTimeField()
    family = models.CharField(
        max_length=40, blank=True, help_text="Format of the step lines. Empty: no step lines."
    )
    is_dated = models.BooleanField(help_text="Whether steps have the times of the log.")
    n_steps = models.PositiveIntegerField(help_text="Steps with a line in the log.")
    n_lines = models.PositiveBigIntegerField()
    n_other = models.PositiveBigIntegerField(help_text="Lines of no known kind.")
    n_damaged = models.PositiveBigIntegerField(help_text="Incomplete lines of a known kind.")
    details = models.JSONField(
        default=dict, help_text="Counts by kind, examples, what is missing."
    )
    curves = models.BinaryField(
        default=bytes, help_text="Step, end, duration, loss and rates, thinned, as numpy's npz."
    )

    def __str__(self) -> str:
        return f"{self.run}: {self.file}"


STRAGGLING_RATIO = 1.1


class RecordedTrace(models.Model):
    """What was found in the per-operation trace of one run."""

    class Cause(models.TextChoices):
        ONE_WORKER = "one_worker", "one worker"
        SEVERAL_WORKERS = "several_workers", "several workers"
        STAGE_IMBALANCE = "stage_imbalance", "uneven pipeline stages"
        SEQUENCE_IMBALANCE = "sequence_imbalance", "uneven sequence lengths"
        COMMUNICATION = "communication", "communication"
        TOO_SHORT = "too_short", "too few steps"
        NONE = "none", "no dominant cause"

    run = models.OneToOneField("fleet.Run", models.CASCADE, related_name="trace")
    file = models.CharField(max_length=200, help_text="What it was read from.")
    imported_at = models.DateTimeField()
    is_dated = models.BooleanField(help_text="Whether the trace contains its recording time.")
    n_workers = models.PositiveIntegerField()
    n_steps = models.PositiveIntegerField()
    step_s = models.FloatField(help_text="Mean step, without gaps that no operation explains.")
    slowdown_ratio = models.FloatField(help_text="Step time over that without stragglers.")
    m_w = models.FloatField(null=True, help_text="Slowdown gone with the worst 3 % of workers.")
    m_s = models.FloatField(null=True, help_text="Slowdown gone with the last pipeline stage.")
    allreduce_share_ratio = models.FloatField()
    wait_share_ratio = models.FloatField()
    transfer_share_ratio = models.FloatField()
    cause = models.CharField(max_length=20, choices=Cause)
    culprit = models.CharField(max_length=60, blank=True, help_text="A worker. Empty: none.")
    details = models.JSONField(default=dict, help_text="Grid of workers, stages, other causes.")

    class Meta:
        constraints = (
            models.CheckConstraint(
                condition=models.Q(culprit="") | models.Q(cause="one_worker"),
                name="a_machine_is_blamed_only_where_one_is_to_blame",
            ),
        )

    def __str__(self) -> str:
        return f"{self.run}: {self.get_cause_display()}"

    @property
    def is_slow(self) -> bool:
        """Whether the slowdown makes the run a straggler, by the threshold of the literature."""
        return self.slowdown_ratio >= STRAGGLING_RATIO
