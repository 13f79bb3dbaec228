from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('fleet', '0031_node_replaced'),
    ]

    operations = [
        migrations.AddField(
            model_name='run',
            name='end_reason',
            field=models.CharField(blank=True, db_default='', help_text='Why it failed. Empty: unknown.', max_length=200),
        ),
    ]
