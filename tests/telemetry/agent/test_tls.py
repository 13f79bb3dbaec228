"""TLS with a private authority: trusted where configured, for its names only."""

from contextlib import closing
from pathlib import Path

import pytest

from telemetry.agent.spool import gzip_member
from tests.certificates import Authority
from tests.telemetry.agent.ingest_server import serve_ingest
from trnwatch.wire import ServerConnection, ServerResponse


def answer_of(server_name: str, folder: Path, *, trusts: bool) -> ServerResponse:
    """Post a line to a server whose certificate has a name, as if it were localhost."""
    authority = Authority(folder)
    with serve_ingest(authority.serving(server_name)) as server:
        address = server.address.replace("http://127.0.0.1", "https://localhost")
        ca_file = str(authority.file) if trusts else None
        with closing(ServerConnection(address, token=lambda: "s", ca_file=ca_file)) as wire:
            answer = wire.post("/", gzip_member(b'{"seq": 1}\n'), {})
        assert len(server.requests) == answer.is_accepted
        return answer


def test_a_server_of_our_own_authority_is_believed_where_that_is_named(tmp_path: Path) -> None:
    assert answer_of("localhost", tmp_path, trusts=True).is_accepted


@pytest.mark.parametrize(("name", "trusts"), [("localhost", False), ("elsewhere.test", True)])
def test_an_untrusted_server_receives_nothing(tmp_path: Path, name: str, *, trusts: bool) -> None:
    with pytest.raises(OSError, match="certificate verify failed"):
        answer_of(name, tmp_path, trusts=trusts)
