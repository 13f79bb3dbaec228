"""The Celery app: workers simulate, watch and roll up."""

import os

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "fleet.settings")
# System checks import every page and the API, which no worker needs: half of its start.
os.environ.setdefault("CELERY_SKIP_CHECKS", "1")

app = Celery("trnwatch")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks(["telemetry", "fleet"])
