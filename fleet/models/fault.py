"""A fault put into a simulated node on purpose: by a person as a drill, or by the demo."""

from django.db import models


class InjectedFault(models.Model):
    """One fault of a simulated run; the truth, which detection never reads."""

    run = models.ForeignKey("fleet.Run", models.CASCADE, related_name="injected_faults")
    node = models.ForeignKey(
        "fleet.Node", models.CASCADE, null=True, blank=True, related_name="injected_faults"
    )
    kind = models.CharField(max_length=24)
    device = models.IntegerField(null=True, blank=True)
    magnitude = models.FloatField()
    starts_at = models.DateTimeField()
    ends_at = models.DateTimeField()
    injected_by = models.CharField(
        max_length=150, blank=True, help_text="Who drilled; empty: the demo's own weather."
    )

    class Meta:
        ordering = ("-starts_at",)
        constraints = (
            models.CheckConstraint(
                condition=models.Q(ends_at__gt=models.F("starts_at")),
                name="a_fault_lasts_some_time",
            ),
        )

    def __str__(self) -> str:
        return f"{self.kind} on {self.node or self.run}"
