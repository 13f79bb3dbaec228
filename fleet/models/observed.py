"""What a run was seen to do, boiled down to the figures that its schedule is projected from."""

from django.db import models


class ObservedRun(models.Model):
    """The newest look at one run; pages read it, a worker renews it."""

    run = models.OneToOneField("fleet.Run", models.CASCADE, related_name="observed")
    figures = models.JSONField(help_text="As fleet/projecting/observing.py keeps them.")
    observed_at = models.DateTimeField()

    def __str__(self) -> str:
        return f"{self.run} as of {self.observed_at:%Y-%m-%d %H:%M}"
