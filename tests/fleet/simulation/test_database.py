"""The drill's own database: empty at first, deleted at the end, separate from the fleet's."""

import pytest
from django.db import connection

from fleet.models import Run
from fleet.simulation.replay import private_database


def test_it_is_another_one_with_the_same_tables(run: Run) -> None:
    with private_database() as private:
        assert connection.settings_dict["NAME"] == ":memory:"
        assert private.vendor == "sqlite"
        assert not Run.objects.exists()
        Run.objects.create(
            name="private",
            model="llama2-7b",
            instance_type="trn1.32xlarge",
            n_nodes=1,
            seq_len=1,
            global_batch=1,
            usd_per_node_hour=1,
            phase_since=run.phase_since,
            started_at=run.started_at,
        )

    assert [each.name for each in Run.objects.all()] == ["llama"]


def test_after_an_error_the_fleets_database_is_back(run: Run) -> None:
    with pytest.raises(ZeroDivisionError), private_database():
        raise ZeroDivisionError

    assert Run.objects.get() == run


def test_every_one_begins_empty(db: None) -> None:
    for _ in range(2):
        with private_database():
            assert not Run.objects.exists()
