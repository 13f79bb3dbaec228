from django.db import migrations


class Migration(migrations.Migration):

    dependencies = [
        ('store', '0002_real_fleets'),
    ]

    operations = [
        # The table stays: the previous release reads it until it is replaced everywhere.
        migrations.SeparateDatabaseAndState(
            state_operations=[migrations.DeleteModel(name='LongTermPosition')],
        ),
    ]
