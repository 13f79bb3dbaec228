"""The rows of the durable tier: minutes, hours, days, and steps of runs."""

from django.db import models


class MinuteRollup(models.Model):
    """One minute of a shard, every metric; settled hours are merged into HourRollup."""

    shard = models.CharField(max_length=90)
    minute = models.BigIntegerField(help_text="Unix second at which the minute begins.")
    layout = models.BinaryField(help_text="Whose values these are: see packing.Layout.")
    data = models.BinaryField(help_text="Lowest, mean and highest of each part, packed.")

    class Meta:
        constraints = (
            models.UniqueConstraint(fields=["shard", "minute"], name="one_rollup_per_minute"),
        )

    def __str__(self) -> str:
        return f"{self.shard} {self.minute}"


class HourRollup(models.Model):
    """One hour of a shard by minute; each node can be read alone. Old ones become DayRollup."""

    shard = models.CharField(max_length=90)
    # Empty: every metric, of a shard of few nodes.
    metric = models.CharField(max_length=40)
    hour = models.BigIntegerField(help_text="Unix second at which the hour begins.")
    data = models.BinaryField(help_text="Lowest, mean and highest of each part, packed.")

    class Meta:
        constraints = (
            models.UniqueConstraint(
                fields=["shard", "metric", "hour"], name="one_rollup_per_metric_and_hour"
            ),
        )
        indexes = (models.Index(fields=["hour"], name="rollups_oldest_first"),)

    def __str__(self) -> str:
        return f"{self.shard} {self.metric} {self.hour}"


class DayRollup(models.Model):
    """One day of a shard by ten minutes, once its hours are some days old."""

    shard = models.CharField(max_length=90)
    metric = models.CharField(max_length=40)
    day = models.BigIntegerField(help_text="Unix second at which the day begins, in UTC.")
    data = models.BinaryField(help_text="Lowest, mean and highest of parts, packed.")

    class Meta:
        constraints = (
            models.UniqueConstraint(
                fields=["shard", "metric", "day"], name="one_rollup_per_metric_and_day"
            ),
        )
        indexes = (models.Index(fields=["day"], name="rollup_days_oldest_first"),)

    def __str__(self) -> str:
        return f"{self.shard} {self.metric} {self.day}"


class RunChunk(models.Model):
    """The steps of a run that ended in one minute, or in one settled hour."""

    run = models.CharField(max_length=100)
    start = models.BigIntegerField(help_text="Unix second at which the chunk begins.")
    length_s = models.PositiveIntegerField(help_text="60, or 3600 once the hour is settled.")
    n_steps = models.PositiveIntegerField()
    steps = models.BinaryField(help_text="Every step, mean over workers, packed.")
    minutes = models.BinaryField(help_text="Every minute, mean over steps and workers, packed.")
    workers = models.BinaryField(help_text="Every minute and worker, mean over steps, packed.")

    class Meta:
        constraints = (
            models.UniqueConstraint(fields=["run", "start", "length_s"], name="one_chunk_a_time"),
        )

    def __str__(self) -> str:
        return f"{self.run} {self.start}"
