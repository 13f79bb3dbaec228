"""A change of what notifications go where: who made it, and when."""

from django.db import models


class Change(models.Model):
    """One line of the log of changes."""

    at = models.DateTimeField()
    by = models.CharField(max_length=150)
    text = models.CharField(max_length=300)

    class Meta:
        ordering = ("-at", "-pk")
        indexes = (models.Index(fields=["-at"], name="changes_newest_first"),)

    def __str__(self) -> str:
        return f"{self.by}: {self.text}"
