"""Requests to agents and workers, handed out with the response to their next report."""

import math
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.conf import settings

from fleet.models.agent_request import AgentRequest, ProbeRequest, SampleRequest, TraceRequest
from telemetry.store.connection import Connection
from telemetry.store.node_state import (
    Kind,
    RequestKind,
    forget_agent_request,
    read_sidecars,
    save_agent_request,
)

KINDS: dict[RequestKind, type[AgentRequest]] = {
    kind.KIND: kind for kind in (ProbeRequest, SampleRequest, TraceRequest)
}


def is_allowed(kind: RequestKind) -> bool:
    """Whether the operator's setting allows requests of a kind."""
    return bool(getattr(settings, KINDS[kind].SETTING))


@dataclass(frozen=True, slots=True)
class LiveAgents:
    """The agents and workers that report to this installation, at a time."""

    hot: Connection
    now: datetime

    def read(self, kind: Kind, nodes: Collection[str]) -> dict[str, Any]:
        """Return what agents last sent along, by node."""
        return read_sidecars(self.hot, kind, nodes)

    def hand_out(self, request: AgentRequest) -> None:
        """Hand a request to its subject until it expires; again renews its limits."""
        left_s = math.ceil((request.expires_at - self.now).total_seconds())
        if left_s > 0:
            content = {"id": request.pk, **request.limits}
            save_agent_request(self.hot, request.subject, request.KIND, content, wait_s=left_s)

    def take_back(self, request: AgentRequest) -> None:
        forget_agent_request(self.hot, request.subject, request.KIND)
