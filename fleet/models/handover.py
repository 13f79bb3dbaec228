"""A hand-over note: what one shift tells the next."""

from django.db import models


class HandOver(models.Model):
    """What somebody wrote at the end of a shift, and for whom."""

    at = models.DateTimeField()
    since = models.DateTimeField(help_text="When the shift that it tells of began.")
    by = models.CharField(max_length=150)
    to = models.CharField(max_length=150, blank=True, help_text="Empty: whoever comes next.")
    text = models.TextField(max_length=5000)

    class Meta:
        ordering = ("-at", "-pk")

    def __str__(self) -> str:
        return f"{self.by} to {self.to or 'the next shift'}, {self.at:%Y-%m-%d %H:%M}"
