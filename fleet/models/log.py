"""A training log that was read: what it told of its run, and what was not understood."""

from django.db import models


class ReadLog(models.Model):
    """The log files that one run was imported from."""

    run = models.OneToOneField("fleet.Run", models.CASCADE, related_name="log")
    file = models.CharField(max_length=200, help_text="What it was read from.")
    imported_at = models.DateTimeField()
    family = models.CharField(
        max_length=40, blank=True, help_text="Whose step lines they are; empty: there are none."
    )
    is_dated = models.BooleanField(help_text="Whether its steps stand at the log's own times.")
    n_steps = models.PositiveIntegerField(help_text="Steps that it has a line of.")
    n_lines = models.PositiveBigIntegerField()
    n_other = models.PositiveBigIntegerField(help_text="Lines of no known kind.")
    n_damaged = models.PositiveBigIntegerField(help_text="Lines of a known kind, not whole.")
    details = models.JSONField(
        default=dict, help_text="Counts by kind, examples, what is missing."
    )
    curves = models.BinaryField(
        default=bytes, help_text="Step, end, duration, loss and rates, thinned, as numpy's npz."
    )

    def __str__(self) -> str:
        return f"{self.run}: {self.file}"
