"""Receivers with TLS: a private authority by OpenSSL's variable; unknown servers get nothing."""

from pathlib import Path

import pytest

from fleet.notifications.http_client import Allowed, HttpClient, Request, UnreachableError
from telemetry.agent.spool import gzip_member
from tests.certificates import Authority
from tests.telemetry.agent.ingest_server import serve_ingest

CLIENT = HttpClient(Allowed.of(["127.0.0.0/8", "::1"]), timeout_s=20)


def post(address: str, name: str) -> int:
    """Post something to a server of this machine under a name, and return the status."""
    url = address.replace("http://127.0.0.1", f"https://{name}")
    return CLIENT.post(Request(url, gzip_member(b'{"seq": 1}\n'))).status


def test_an_authority_of_ones_own_is_trusted_where_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority(tmp_path)
    with serve_ingest(authority.serving("localhost")) as receiver:
        with pytest.raises(UnreachableError, match="certificate verify failed"):
            post(receiver.address, "localhost")
        monkeypatch.setenv("SSL_CERT_FILE", str(authority.file))
        with pytest.raises(UnreachableError, match="certificate verify failed"):
            post(receiver.address, "127.0.0.1")
        assert receiver.requests == []
        assert post(receiver.address, "localhost") == 200
