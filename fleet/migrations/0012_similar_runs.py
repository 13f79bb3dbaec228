import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("fleet", "0010_plain_names")]

    # The columns keep their names, so that the release before can run next to this one.
    operations = [
        migrations.SeparateDatabaseAndState(
            state_operations=[
                migrations.RenameField("SimilarRunsResult", "worked_out_at", "updated_at"),
                migrations.RenameField("SimilarRunsResult", "told", "comparison"),
                migrations.AlterField(
                    "SimilarRunsResult",
                    "updated_at",
                    models.DateTimeField(db_column="worked_out_at"),
                ),
                migrations.AlterField(
                    "SimilarRunsResult",
                    "comparison",
                    models.JSONField(
                        db_column="told",
                        default=dict,
                        help_text="As fleet/runs/similar_runs.py stores it.",
                    ),
                ),
                migrations.AlterField(
                    "SimilarRunsResult",
                    "run",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="similar_runs",
                        serialize=False,
                        to="fleet.run",
                    ),
                ),
                migrations.AlterModelOptions(
                    "SimilarRunsResult", {"verbose_name_plural": "similar runs"}
                ),
            ]
        )
    ]
