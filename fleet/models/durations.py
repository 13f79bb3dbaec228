"""How long a run's steps took: counted once each, for good, in as little as its buckets."""

from django.db import models


class StepDurations(models.Model):
    """One run's steps by duration; what is counted is never taken back."""

    run = models.OneToOneField(
        "fleet.Run", models.CASCADE, primary_key=True, related_name="step_durations"
    )
    until_s = models.BigIntegerField(help_text="Steps that ended before are counted. Unix s.")
    last_step = models.BigIntegerField(help_text="The newest that is counted.")
    counts = models.JSONField(help_text="By bucket, as telemetry/histograms.py has them.")
    total_s = models.FloatField(help_text="All of them together.")

    class Meta:
        verbose_name_plural = "step durations"

    def __str__(self) -> str:
        return f"{self.run_id}: {sum(self.counts)} steps"
