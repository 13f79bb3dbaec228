import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("fleet", "0012_similar_runs")]

    # The columns and the index keep their names, so that the release before can run next to this one.
    operations = [
        migrations.SeparateDatabaseAndState(
            state_operations=[
                migrations.RemoveIndex("Delivery", "unfinished_by_lane"),
                migrations.RenameField("Delivery", "lane", "group_key"),
                migrations.RenameField("NotifiedState", "lane", "group_key"),
                migrations.AlterField(
                    "Delivery",
                    "group_key",
                    models.CharField(
                        db_column="lane",
                        help_text="Notifications of one group are sent in order.",
                        max_length=200,
                    ),
                ),
                migrations.AlterField(
                    "NotifiedState",
                    "group_key",
                    models.CharField(db_column="lane", max_length=200),
                ),
                migrations.AddIndex(
                    "Delivery",
                    models.Index(
                        condition=models.Q(("state__in", ("pending", "sending"))),
                        fields=["receiver", "group_key", "id"],
                        name="unfinished_by_lane",
                    ),
                ),
                migrations.AlterField(
                    "NotifiedState",
                    "receiver",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="notified_states",
                        to="fleet.receiver",
                    ),
                ),
                migrations.AlterField(
                    "NotifiedState",
                    "alert",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="notified_states",
                        to="fleet.alert",
                    ),
                ),
                migrations.AlterField(
                    "NotifiedState",
                    "route",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="notified_states",
                        to="fleet.route",
                    ),
                ),
            ]
        )
    ]
