"""The four roles, as groups."""

from django.db import migrations

ROLES = ("viewer", "operator", "lead", "admin")


def create_roles(apps, schema_editor):
    """Create a group for each role."""
    group = apps.get_model("auth", "Group")
    for name in ROLES:
        group.objects.get_or_create(name=name)


class Migration(migrations.Migration):
    dependencies = [
        ("auth", "0012_alter_user_first_name_max_length"),
        ("fleet", "0001_initial"),
    ]
    operations = [migrations.RunPython(create_roles, migrations.RunPython.noop)]
