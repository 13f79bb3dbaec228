"""A compile event: one process that asked for one compiled graph, and what came of it."""

from django.db import models
from django.db.models import Q


class CompileEvent(models.Model):
    """One graph that a process of a run found in the cache, compiled, or failed to."""

    class Outcome(models.TextChoices):
        """What came of it."""

        HIT = "hit", "found in the cache"
        MISS = "miss", "compiled"
        FAIL = "fail", "failed"

    run = models.ForeignKey("fleet.Run", models.CASCADE, related_name="compiles")
    module = models.CharField(
        max_length=120,
        blank=True,
        help_text="MODULE_<hash of the graph>+<hash of the flags>; empty where unsaid.",
    )
    outcome = models.CharField(max_length=4, choices=Outcome)
    rank = models.PositiveIntegerField(null=True, help_text="Empty where nobody says it.")
    process = models.CharField(max_length=160, blank=True, help_text="Who asked: source and id.")
    at = models.DateTimeField(null=True, help_text="When it was found, or began to compile.")
    seconds = models.FloatField(null=True, help_text="How long it took, where that follows.")
    compiler = models.CharField(max_length=60, blank=True, help_text="Version of neuronx-cc.")
    flags = models.CharField(max_length=500, blank=True, help_text="As the compiler got them.")
    cache = models.CharField(max_length=500, blank=True, help_text="Where the cache is.")

    class Meta:
        ordering = ("at", "pk")
        constraints = (
            models.UniqueConstraint(
                fields=["run", "module", "outcome", "process", "at"],
                name="a_compile_event_is_kept_once",
            ),
            models.CheckConstraint(
                condition=Q(seconds=None) | Q(seconds__gte=0) & ~Q(outcome="hit"),
                name="what_is_found_takes_no_compile_time",
            ),
        )

    def __str__(self) -> str:
        return f"{self.run}: {self.module or 'a graph'} {self.get_outcome_display()}"
