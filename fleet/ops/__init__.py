"""What `manage.py up` stands on: a keeper of processes, a Redis, a door, a lock."""
