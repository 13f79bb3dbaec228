"""Results about a run that workers compute now and then, so that pages only read them."""

from django.db import models


class StepDurations(models.Model):
    """Histogram of one run's step durations; counts never decrease."""

    run = models.OneToOneField(
        "fleet.Run", models.CASCADE, primary_key=True, related_name="step_durations"
    )
    until_s = models.BigIntegerField(help_text="Steps that ended before are counted. Unix s.")
    last_step = models.BigIntegerField(help_text="The newest counted step.")
    counts = models.JSONField(help_text="By bucket, see EDGES_S in fleet/runs/step_durations.py.")
    total_s = models.FloatField(help_text="Sum of the durations.")

    class Meta:
        verbose_name_plural = "step durations"

    def __str__(self) -> str:
        return f"{self.run_id}: {sum(self.counts)} steps"


class ObservedRun(models.Model):
    run = models.OneToOneField("fleet.Run", models.CASCADE, related_name="observed")
    figures = models.JSONField(help_text="As fleet/trials/observed.py keeps them.")
    observed_at = models.DateTimeField()

    def __str__(self) -> str:
        return f"{self.run} as of {self.observed_at:%Y-%m-%d %H:%M}"


class SimilarRunsResult(models.Model):
    run = models.OneToOneField(
        "fleet.Run", models.CASCADE, primary_key=True, related_name="similar_runs"
    )
    updated_at = models.DateTimeField(db_column="worked_out_at")
    comparison = models.JSONField(
        db_column="told", default=dict, help_text="As fleet/runs/similar_runs.py stores it."
    )

    class Meta:
        db_table = "fleet_likeruns"
        verbose_name_plural = "similar runs"

    def __str__(self) -> str:
        return f"runs similar to {self.run_id}"
