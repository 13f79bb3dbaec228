"""Compiles judged: why, and what changed; flags and versions of a run, and its like."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("fleet", "0007_trials"),
    ]

    operations = [
        migrations.CreateModel(
            name="LikeRuns",
            fields=[
                (
                    "run",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="like_runs",
                        serialize=False,
                        to="fleet.run",
                    ),
                ),
                ("worked_out_at", models.DateTimeField()),
                ("told", models.JSONField(default=dict, help_text="As fleet/like keeps it.")),
            ],
            options={
                "verbose_name_plural": "like runs",
            },
        ),
        migrations.AddField(
            model_name="compileevent",
            name="change",
            field=models.JSONField(
                blank=True,
                help_text="Of an unannounced compile: what changed, and since when.",
                null=True,
            ),
        ),
        migrations.AddField(
            model_name="compileevent",
            name="noted_at",
            field=models.DateTimeField(
                blank=True, help_text="When we learnt of it; empty: read with a log.", null=True
            ),
        ),
        migrations.AddField(
            model_name="compileevent",
            name="shape",
            field=models.CharField(
                blank=True,
                db_default="",
                help_text="Input shapes, where the job says them.",
                max_length=200,
            ),
        ),
        migrations.AddField(
            model_name="compileevent",
            name="verdict",
            field=models.CharField(
                blank=True,
                choices=[
                    ("first", "first time"),
                    ("planned", "announced"),
                    ("again", "compiled again"),
                    ("amid", "new amid training"),
                    ("beside", "compiled beside another process"),
                ],
                db_default="",
                help_text="Of what was compiled: why; empty where nobody judged it.",
                max_length=8,
            ),
        ),
        migrations.AddField(
            model_name="run",
            name="compiler_flags",
            field=models.CharField(
                blank=True,
                db_default="",
                help_text="As neuronx-cc gets them; empty: unsaid.",
                max_length=500,
            ),
        ),
        migrations.AddField(
            model_name="run",
            name="compiler_version",
            field=models.CharField(
                blank=True, db_default="", help_text="Of neuronx-cc; empty: unsaid.", max_length=60
            ),
        ),
        migrations.AddField(
            model_name="run",
            name="sdk_version",
            field=models.CharField(
                blank=True,
                db_default="",
                help_text="Of the Neuron SDK; empty: unsaid.",
                max_length=40,
            ),
        ),
        migrations.AddIndex(
            model_name="compileevent",
            index=models.Index(fields=["-at", "-id"], name="compiles_newest_first"),
        ),
        migrations.AddIndex(
            model_name="compileevent",
            index=models.Index(fields=["noted_at"], name="compiles_as_they_came"),
        ),
    ]
