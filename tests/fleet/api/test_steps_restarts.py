"""Step reports while the web server is killed: nothing lost or duplicated."""

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from fleet.ingest.assembly import PENDING
from telemetry.store.hot import HotStore, open_store
from tests import warm
from tests.fleet.api.test_ingest_asgi import manage, until_open
from tests.fleet.api.training_jobs import ABOUT, NODES
from tests.fleet.ops.installation import prepared
from tests.helpers import free_port, redis_server
from tests.trnwatch.servers import until
from tests.trnwatch.trainer import train, workers_of


class Place:
    """Stores, a token and a port for web servers that come and go."""

    def __init__(self, folder: Path, redis_url: str) -> None:
        self.folder = folder
        self.port = free_port()
        self.hot: HotStore = open_store(redis_url)
        self.environment = os.environ | {
            "TRNWATCH_DATA_DIR": str(folder),
            "DATABASE_URL": f"sqlite:///{folder / 'site.sqlite3'}",
            "REDIS_URL": redis_url,
        }
        shutil.copy(prepared() / "trnwatch.sqlite3", folder / "site.sqlite3")
        self.token = manage(self.environment, "create_token", "test", "--scope", "ingest")

    @contextmanager
    def served(self) -> Iterator[warm.Program]:
        """Run a web server, until it is killed or no longer needed."""
        command = ["uvicorn", "fleet.asgi:application", "--port", str(self.port)]
        command += ["--http", "fleet.api.connections:LimitedProtocol"]
        with (self.folder / "web.log").open("ab") as log:
            server = warm.start(
                ["-m", *command, "--no-access-log"], env=self.environment, stdout=log, stderr=log
            )
        try:
            until_open(self.port, server)
            yield server
        finally:
            server.kill()
            server.wait(20)

    def n_steps(self) -> int:
        return int(self.hot.totals().steps.get("real", 0))


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with redis_server(tmp_path) as redis_url:
        yield Place(tmp_path, redis_url)


def test_a_killed_server_loses_nothing_and_doubles_nothing(place: Place) -> None:
    address = f"http://127.0.0.1:{place.port}"
    workers = workers_of(address, place.token, nodes=NODES, run="real", **ABOUT)
    with place.served() as server:
        train(workers, n_steps=20, compute_s=0.02)
        until(lambda: place.n_steps() > 0)
        server.kill()
        train(workers, n_steps=20, first=21, compute_s=0.02)
    with place.served():
        train(workers, n_steps=20, first=41, compute_s=0.02)
        until(lambda: place.n_steps() >= 60)
        for worker in workers:
            worker.finish()
        until(lambda: place.hot.execute("ZCARD", PENDING) == 0)
    batch = place.hot.steps("real", since_s=time.time() - 600)

    np.testing.assert_array_equal(batch.step, np.arange(1, 61))
    assert batch.workers == NODES
    assert np.isfinite(batch.phases["transfer_s"]).all()
    assert place.n_steps() == 60
    assert place.hot.totals().tokens["real"] == 60 * 64 * 4096
