"""The releases whose databases this one can use: its own, and those back to 0.10."""

from collections.abc import Set

from django.db.migrations.loader import MigrationLoader


class OtherReleaseError(RuntimeError):
    """The database is of a newer release of trnwatch, or of one before 0.10."""


def check_release(applied: Set[tuple[str, str]]) -> None:
    """Raise OtherReleaseError if this release cannot use a database with these migrations."""
    ours = MigrationLoader(None).disk_migrations
    replaced = [set(migration.replaces) for migration in ours.values()]
    labels = {app for app, _ in ours}
    if newer := sorted(key for key in applied - set(ours).union(*replaced) if key[0] in labels):
        raise OtherReleaseError(
            f"A newer release of trnwatch changed the database: {'.'.join(newer[-1])} is unknown "
            f"({len(newer)} in all). Start that release, restore a backup of this one (manage.py "
            "restore FILE --replace), or name another folder by TRNWATCH_DATA_DIR or another "
            "database by DATABASE_URL."
        )
    if any(0 < len(names & applied) < len(names) for names in replaced):
        raise OtherReleaseError(
            "The database is of a release of trnwatch before 0.10. Let release 0.10 migrate it; "
            "then migrate it with this one."
        )


def missing_migrations(applied: Set[tuple[str, str]]) -> int:
    """Count the migrations that this release would apply."""
    ours = MigrationLoader(None).disk_migrations
    return sum(not {*(each.replaces or [key])} <= applied for key, each in ours.items())
