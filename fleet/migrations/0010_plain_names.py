from django.db import migrations

# Tables keep their names, so that the release before runs on beside this one.
RENAMED = {
    "Told": ("NotifiedState", "fleet_told"),
    "HandOver": ("HandoverNote", "fleet_handover"),
    "SenderPulse": ("SenderHeartbeat", "fleet_senderpulse"),
    "LikeRuns": ("SimilarRunsResult", "fleet_likeruns"),
    "Change": ("NotificationChange", "fleet_change"),
}


class Migration(migrations.Migration):
    dependencies = [("fleet", "0009_token_owner")]

    operations = [
        migrations.SeparateDatabaseAndState(
            state_operations=[
                operation
                for old, (new, table) in RENAMED.items()
                for operation in (
                    migrations.AlterModelTable(old, table),
                    migrations.RenameModel(old, new),
                )
            ]
        )
    ]
