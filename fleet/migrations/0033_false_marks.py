from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('fleet', '0032_release_0_10'),
    ]

    operations = [
        migrations.AddField(
            model_name='alert',
            name='false_comment',
            field=models.CharField(blank=True, db_default='', max_length=400),
        ),
        migrations.AddField(
            model_name='alert',
            name='false_reason',
            field=models.CharField(blank=True, choices=[('noise', 'noise'), ('planned_work', 'planned work'), ('wrong_cause', 'wrong cause'), ('wrong_node', 'wrong node'), ('already_known', 'already known'), ('other', 'other')], db_default='', help_text='Why it is false.', max_length=16),
        ),
        migrations.AddField(
            model_name='alert',
            name='marked_false_at',
            field=models.DateTimeField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name='alert',
            name='marked_false_by',
            field=models.CharField(blank=True, db_default='', max_length=150),
        ),
        migrations.AlterField(
            model_name='alertevent',
            name='kind',
            field=models.CharField(choices=[('fired', 'Fired'), ('refired', 'fired again'), ('rule_changed', 'rule changed'), ('cause_changed', 'cause changed'), ('worsened', 'Worsened'), ('learned', 'change found'), ('flapping', 'Flapping'), ('acknowledged', 'Acknowledged'), ('unacknowledged', 'Unacknowledged'), ('assigned', 'Assigned'), ('silenced', 'Silenced'), ('unsilenced', 'silence ended'), ('commented', 'Commented'), ('marked_false', 'marked false'), ('unmarked_false', 'false mark removed'), ('probe_requested', 'probe requested'), ('probed', 'probe result'), ('trace_requested', 'runtime trace requested'), ('traced', 'runtime trace result'), ('resolved', 'Resolved')], max_length=16),
        ),
        migrations.AlterField(
            model_name='delivery',
            name='kind',
            field=models.CharField(choices=[('firing', 'Firing'), ('changed', 'Changed'), ('acknowledged', 'Acknowledged'), ('marked_false', 'marked false'), ('repeated', 'still firing'), ('resolved', 'Resolved'), ('undelivered', 'others not reached'), ('test', 'Test')], max_length=16),
        ),
        migrations.CreateModel(
            name='FalseMarkCount',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('rule', models.CharField(max_length=40)),
                ('severity', models.CharField(choices=[('1-page', 'page'), ('2-warn', 'warn')], max_length=8)),
                ('n_alerts', models.PositiveIntegerField(default=0, help_text='Also those unmarked since.')),
            ],
            options={
                'constraints': [models.UniqueConstraint(fields=('rule', 'severity'), name='a_rule_is_counted_once')],
            },
        ),
    ]
