"""The previous release keeps working during and after a migration."""

from datetime import UTC, datetime
from typing import Any

import pytest
from django.db import connection
from django.db.migrations import (
    AddField,
    AlterField,
    CreateModel,
    Migration,
    RunPython,
    SeparateDatabaseAndState,
)
from django.db.migrations.executor import MigrationExecutor
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.operations.base import Operation
from django.db.migrations.recorder import MigrationRecorder
from django.db.migrations.state import ProjectState
from django.db.models import NOT_PROVIDED

from fleet.ops.releases import OtherReleaseError, check_release, missing_migrations

# Where the release before this one left each of our applications.
BEFORE = [("fleet", "0032_release_0_10"), ("store", "0002_real_fleets")]
NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
RUN = {
    "name": "old",
    "model": "llama2-7b",
    "instance_type": "trn1.32xlarge",
    "n_nodes": 1,
    "seq_len": 4096,
    "global_batch": 64,
    "usd_per_node_hour": 1.0,
    "price_basis": "a test",
    "phase_since": NOW,
    "started_at": NOW,
}
NODE = {
    "name": "old-00",
    "instance_type": "trn1.32xlarge",
    "source": "simulated",
    "shard": "old",
    "n_cores": 32,
    "n_devices": 16,
    "first_seen_at": NOW,
}


def before() -> ProjectState:
    """Return the models as the release before knows them."""
    loader = MigrationLoader(None)
    return loader.project_state(BEFORE)


def ours_since() -> list[Migration]:
    """Return our migrations that came after it."""
    loader = MigrationLoader(None)
    seen = {key for node in BEFORE for key in loader.graph.forwards_plan(node)}
    labels = {label for label, _ in BEFORE}
    return [
        migration
        for key, migration in sorted(loader.disk_migrations.items())
        if key[0] in labels and key not in seen
    ]


def disturbs(operation: Operation, label: str, state: ProjectState) -> str:
    """Say what an operation would do to a release that does not know of it; empty for nothing."""
    if isinstance(operation, CreateModel):
        return ""
    if isinstance(operation, SeparateDatabaseAndState) and not operation.database_operations:
        return ""  # Names in our code alone: the database is left as it is.
    if isinstance(operation, RunPython):
        # It fills what this migration adds: the release before does not read that.
        return "" if operation.reversible else "it cannot be taken back"
    if isinstance(operation, AddField):
        field = operation.field
        is_filled = field.null or field.db_default is not NOT_PROVIDED or field.many_to_many
        return "" if is_filled else f"{operation.name} has no db_default, and rows lack it"
    if isinstance(operation, AlterField):
        old = state.models[label, operation.model_name_lower].fields[operation.name]
        is_same = old.db_parameters(connection) == operation.field.db_parameters(connection)
        widens = operation.field.null or not old.null
        return "" if is_same and widens else f"{operation.name} changes its column"
    return operation.describe()


@pytest.mark.django_db
def test_migrations_only_add_so_that_the_release_before_runs_on() -> None:
    state = before()
    complaints = []
    for migration in ours_since():
        for operation in migration.operations:
            if why := disturbs(operation, migration.app_label, state):
                complaints.append(f"{migration}: {why}")
            operation.state_forwards(migration.app_label, state)

    assert complaints == []


@pytest.mark.django_db
def test_the_release_before_reads_and_writes_the_database_of_this_one() -> None:
    old = before().apps
    run_of: Any = old.get_model("fleet", "Run")
    run = run_of.objects.create(**RUN)
    node_of: Any = old.get_model("fleet", "Node")
    node = node_of.objects.create(run=run, **NODE)
    token_of: Any = old.get_model("fleet", "Token")
    token_of.objects.create(name="old", digest="0" * 64, scope="ingest", created_at=NOW)
    run.delete()
    node.refresh_from_db()

    assert node.run is None
    for label, _ in BEFORE:
        for model in old.get_app_config(label).get_models():
            list(model._default_manager.all()[:1])


@pytest.mark.django_db
def test_a_database_of_release_0_10_is_used_and_an_older_one_refused() -> None:
    [squash] = [each for each in MigrationLoader(None).disk_migrations.values() if each.replaces]
    recorder = MigrationRecorder(connection)
    recorder.record_unapplied("fleet", squash.name)
    of_0_10 = set(recorder.applied_migrations())

    check_release(of_0_10)
    executor = MigrationExecutor(connection)
    assert executor.migration_plan(executor.loader.graph.leaf_nodes()) == []
    assert missing_migrations(of_0_10) == 0

    with pytest.raises(OtherReleaseError, match=r"before 0\.10"):
        check_release(of_0_10 - {squash.replaces[-1]})
