"""Step reports with TLS: a configured authority is trusted, unknown servers get nothing."""

import gzip
from contextlib import closing
from pathlib import Path

import pytest

from tests.certificates import Authority
from tests.trnwatch.servers import listening
from trnwatch.wire import ServerConnection

LINE = b'{"kind": "beat"}'


def status_of(server: str, ca_file: str) -> int:
    """Post a line, and hang up."""
    with closing(ServerConnection(server, token=lambda: "secret", ca_file=ca_file)) as wire:
        return wire.post("/", gzip.compress(LINE), {}).status


def test_the_authority_that_is_named_is_believed_for_its_names_only(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    with listening(authority.serving("localhost")) as listener:
        number = listener.url.replace("http:", "https:")
        name = number.replace("127.0.0.1", "localhost")
        assert status_of(name, str(authority.file)) == 200
        for server, ca_file in ((name, ""), (number, str(authority.file))):
            with pytest.raises(OSError, match="certificate verify failed"):
                status_of(server, ca_file)

    assert len(listener.bodies) == 1


def test_a_file_of_authorities_that_is_none_is_named(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"TRNWATCH_CA_FILE .*nothing"):
        status_of("https://localhost:1", str(tmp_path / "nothing"))
