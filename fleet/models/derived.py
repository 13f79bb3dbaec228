"""Like runs: what a run is told by others that trained the same on the same, set otherwise."""

from django.db import models


class StepDurations(models.Model):
    """One run's steps by duration; what is counted is never taken back."""

    run = models.OneToOneField(
        "fleet.Run", models.CASCADE, primary_key=True, related_name="step_durations"
    )
    until_s = models.BigIntegerField(help_text="Steps that ended before are counted. Unix s.")
    last_step = models.BigIntegerField(help_text="The newest that is counted.")
    counts = models.JSONField(help_text="By bucket, see EDGES_S in fleet/runs/step_durations.py.")
    total_s = models.FloatField(help_text="All of them together.")

    class Meta:
        verbose_name_plural = "step durations"

    def __str__(self) -> str:
        return f"{self.run_id}: {sum(self.counts)} steps"


class ObservedRun(models.Model):
    """The newest look at one run; pages read it, a worker renews it."""

    run = models.OneToOneField("fleet.Run", models.CASCADE, related_name="observed")
    figures = models.JSONField(help_text="As fleet/trials/observed.py keeps them.")
    observed_at = models.DateTimeField()

    def __str__(self) -> str:
        return f"{self.run} as of {self.observed_at:%Y-%m-%d %H:%M}"


class SimilarRunsResult(models.Model):
    """One run beside its like, worked out now and then so that its page need not."""

    run = models.OneToOneField(
        "fleet.Run", models.CASCADE, primary_key=True, related_name="like_runs"
    )
    worked_out_at = models.DateTimeField()
    told = models.JSONField(default=dict, help_text="As fleet/like keeps it.")

    class Meta:
        db_table = "fleet_likeruns"
        verbose_name_plural = "like runs"

    def __str__(self) -> str:
        return f"like {self.run_id}"
