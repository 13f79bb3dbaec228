"""What the fleet remembers: one module per noun."""

from fleet.models.agent_request import ProbeRequest, SampleRequest, TraceRequest
from fleet.models.alert import Alert, AlertEvent, FalseMarkCount, FrozenChart
from fleet.models.annotation import Annotation
from fleet.models.cost import Budget, TeamPrice
from fleet.models.delivery import (
    ConfigurationChange,
    Delivery,
    NotifiedState,
    Receiver,
    Route,
    SenderHeartbeat,
    Watchdog,
)
from fleet.models.derived import ObservedRun, SimilarRunsResult, StepDurations
from fleet.models.imported import ReadLog, RecordedTrace
from fleet.models.node import InjectedFault, Node
from fleet.models.preflight import Preflight, PreflightNode
from fleet.models.run import CompileEvent, Run
from fleet.models.silence import HandoverNote, Silence, SilenceEvent
from fleet.models.support import SupportCheck
from fleet.models.token import Token
from fleet.models.trial import Trial, TrialArm

__all__ = [
    "Alert",
    "AlertEvent",
    "Annotation",
    "Budget",
    "CompileEvent",
    "ConfigurationChange",
    "Delivery",
    "FalseMarkCount",
    "FrozenChart",
    "HandoverNote",
    "InjectedFault",
    "Node",
    "NotifiedState",
    "ObservedRun",
    "Preflight",
    "PreflightNode",
    "ProbeRequest",
    "ReadLog",
    "Receiver",
    "RecordedTrace",
    "Route",
    "Run",
    "SampleRequest",
    "SenderHeartbeat",
    "Silence",
    "SilenceEvent",
    "SimilarRunsResult",
    "StepDurations",
    "SupportCheck",
    "TeamPrice",
    "Token",
    "TraceRequest",
    "Trial",
    "TrialArm",
    "Watchdog",
]
