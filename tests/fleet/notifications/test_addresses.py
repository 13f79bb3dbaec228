"""Addresses that notifications may be sent to."""

import traceback
from ipaddress import ip_address

import pytest

from fleet.notifications.http_client import AddressError, Allowed, host_of, split


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "10.1.2.3",
        "172.16.0.1",
        "192.168.1.1",
        "100.64.0.1",
        "169.254.169.254",
        "0.0.0.0",
        "224.0.0.1",
        "255.255.255.255",
        "::1",
        "::",
        "fe80::1",
        "fd00:ec2::254",
        "fc00::1",
        "::ffff:127.0.0.1",
        "::ffff:169.254.169.254",
        "64:ff9b::a9fe:a9fe",
        "2002:7f00:1::",
    ],
)
def test_a_private_place_is_refused(address: str) -> None:
    assert not Allowed().reaches("receiver.example", ip_address(address))


@pytest.mark.parametrize("address", ["8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8"])
def test_a_public_place_is_not(address: str) -> None:
    assert Allowed().reaches("receiver.example", ip_address(address))


def test_networks_and_names_can_be_allowed() -> None:
    allowed = Allowed.of(["10.0.0.0/8", " alertmanager.internal ", ""])

    assert allowed.reaches("anything", ip_address("10.9.8.7"))
    assert allowed.reaches("Alertmanager.internal", ip_address("192.168.1.1"))
    assert not allowed.reaches("anything", ip_address("192.168.1.1"))


def test_the_instance_metadata_address_is_never_allowed() -> None:
    allowed = Allowed.of(["0.0.0.0/0", "::/0", "metadata.internal"])

    for address in ("169.254.169.254", "fd00:ec2::254", "::ffff:169.254.169.254"):
        assert not allowed.reaches("metadata.internal", ip_address(address))


@pytest.mark.parametrize(
    "url",
    [
        "ftp://example.org/hooks/T0PSECRET",
        "http://[::1/hooks/T0PSECRET",
        "https://example.org:T0PSECRET/",
        "https://example.org:99999/hooks/T0PSECRET",
        "https://ada:T0PSECRET@example.org\u2100/",
        "https://ada:T0PSECRET@example.org/",
        "https://example.org/T0PSECRET x",
        "example.org/?key=T0PSECRET",
    ],
)
def test_an_error_never_quotes_what_may_be_secret(url: str) -> None:
    with pytest.raises(AddressError) as refused:
        split(url)
    shown = "".join(traceback.format_exception(refused.value)[-1:])
    assert "T0PSECRET" not in shown
    assert refused.value.__cause__ is None
    assert host_of("https://example.org/hooks/T0PSECRET?x") == "https://example.org"


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("", "not an address"),
        ("ftp://example.org/", "https://host/path"),
        ("https:///path", "https://host/path"),
        ("example.org", "https://host/path"),
        ("http://[::1", "not an address"),
        ("http://example.org:99999/", "not an address"),
        ("https://user:word@example.org/", "user and password"),
        ("https://example.org/a b", "character"),
        ("https://example.org/\r\nHost: other", "character|address"),
    ],
)
def test_what_is_no_address_is_reported(url: str, why: str) -> None:
    with pytest.raises(AddressError, match=why):
        split(url)
