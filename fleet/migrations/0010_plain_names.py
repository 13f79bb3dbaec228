from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("fleet", "0009_token_owner")]

    operations = [
        migrations.RenameModel("Told", "NotifiedState"),
        migrations.RenameModel("HandOver", "HandoverNote"),
        migrations.RenameModel("SenderPulse", "SenderHeartbeat"),
        migrations.RenameModel("LikeRuns", "SimilarRunsResult"),
        migrations.RenameModel("Change", "NotificationChange"),
    ]
