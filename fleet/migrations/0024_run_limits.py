from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("fleet", "0023_receiver_apprise")]

    operations = [
        # Its table keeps its name, so that the release before runs on beside this one.
        migrations.SeparateDatabaseAndState(
            state_operations=[migrations.RenameModel("NotificationChange", "ConfigurationChange")]
        ),
        migrations.AddField(
            "configurationchange",
            "kind",
            models.CharField(
                choices=[("notifications", "Notifications"), ("people", "People")],
                db_default="notifications",
                default="notifications",
                max_length=16,
            ),
        ),
        migrations.AlterField(
            "configurationchange",
            "by",
            models.CharField(max_length=150, help_text="Empty: from the command line."),
        ),
        migrations.AddField(
            "run",
            "limits",
            models.JSONField(
                null=True,
                blank=True,
                help_text="Other limits of its own, by rule and limit, such as node_idle.idle_s.",
            ),
        ),
        migrations.AlterField(
            "annotation",
            "kind",
            models.CharField(
                max_length=12,
                choices=[
                    ("deploy", "Deploy"),
                    ("checkpoint", "Checkpoint"),
                    ("compile", "Compile"),
                    ("restart", "Restart"),
                    ("scale", "Scale"),
                    ("note", "Note"),
                    ("limit", "Limit"),
                ],
            ),
        ),
    ]
