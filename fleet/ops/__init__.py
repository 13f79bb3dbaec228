"""Operation: the process supervisor behind `manage.py up`, its Redis, backups, settings."""
