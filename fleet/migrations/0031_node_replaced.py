from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('fleet', '0030_demo_past'),
    ]

    operations = [
        migrations.AddField(
            model_name='node',
            name='replaced_at',
            field=models.DateTimeField(blank=True, help_text='When another machine took the name. Empty: never.', null=True),
        ),
        migrations.AddField(
            model_name='node',
            name='replaced_id',
            field=models.CharField(blank=True, db_default='', help_text='Instance id of the machine before.', max_length=40),
        ),
    ]
