"""Like runs: what a run is told by others that trained the same on the same, set otherwise."""

from django.db import models


class LikeRuns(models.Model):
    """One run beside its like, worked out now and then so that its page need not."""

    run = models.OneToOneField(
        "fleet.Run", models.CASCADE, primary_key=True, related_name="like_runs"
    )
    worked_out_at = models.DateTimeField()
    told = models.JSONField(default=dict, help_text="As fleet/like keeps it.")

    class Meta:
        verbose_name_plural = "like runs"

    def __str__(self) -> str:
        return f"like {self.run_id}"
