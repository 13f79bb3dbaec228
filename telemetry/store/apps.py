"""The Django app of the durable tier."""

from django.apps import AppConfig


class StoreConfig(AppConfig):
    name = "telemetry.store"
    label = "store"
    default_auto_field = "django.db.models.BigAutoField"
