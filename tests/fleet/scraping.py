"""Helpers of scrape tests: a client with a token, and a parsed page."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from django.http.response import HttpResponseBase
from django.test import Client
from prometheus_client.parser import text_string_to_metric_families

from fleet.models import Token
from tests.helpers import just_now

Samples = dict[tuple[str, ...], float]


def bearer(scope: str = "scrape", **fields: Any) -> dict[str, str]:
    """Return the header of a fresh token."""
    now = just_now()
    token, secret = Token.issue("prometheus", scope, now=now)
    Token.objects.filter(pk=token.pk).update(**fields)
    return {"Authorization": f"Bearer {secret}"}


def refused() -> Mapping[str, tuple[dict[str, str], int]]:
    """Return tokens without access, and the response to each."""
    now = just_now()
    return {
        "unknown": ({"Authorization": "Bearer trnw_nobody"}, 401),
        "expired": (bearer(expires_at=now - timedelta(seconds=1)), 401),
        "revoked": (bearer(revoked_at=now), 401),
        "of another scope": (bearer("ingest"), 403),
        "of none": ({}, 401),
    }


def body(response: HttpResponseBase) -> bytes:
    """Return the body of a response, streamed or not."""
    whole: bytes = response.getvalue()
    return whole


def samples(client: Client, path: str = "/metrics") -> Samples:
    """Return every series of a page by name and label values (in order of label name)."""
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(body(client.get(path)).decode())
        for sample in family.samples
    }
