"""What the fleet remembers: one module per noun."""

from fleet.models.alert import Alert, AlertEvent, FrozenChart, HandoverNote
from fleet.models.annotation import Annotation
from fleet.models.compile import CompileEvent
from fleet.models.cost import Budget, TeamPrice
from fleet.models.delivery import (
    Delivery,
    NotificationChange,
    NotifiedState,
    SenderHeartbeat,
    Watchdog,
)
from fleet.models.derived import ObservedRun, SimilarRunsResult, StepDurations
from fleet.models.imported import ReadLog, RecordedTrace
from fleet.models.node import InjectedFault, Node
from fleet.models.preflight import Preflight, PreflightNode
from fleet.models.receiver import Receiver, Route
from fleet.models.run import Run
from fleet.models.silence import Silence, SilenceEvent
from fleet.models.support import SupportCheck
from fleet.models.token import Token
from fleet.models.trial import Trial, TrialArm

__all__ = [
    "Alert",
    "AlertEvent",
    "Annotation",
    "Budget",
    "CompileEvent",
    "Delivery",
    "FrozenChart",
    "HandoverNote",
    "InjectedFault",
    "Node",
    "NotificationChange",
    "NotifiedState",
    "ObservedRun",
    "Preflight",
    "PreflightNode",
    "ReadLog",
    "Receiver",
    "RecordedTrace",
    "Route",
    "Run",
    "SenderHeartbeat",
    "Silence",
    "SilenceEvent",
    "SimilarRunsResult",
    "StepDurations",
    "SupportCheck",
    "TeamPrice",
    "Token",
    "Trial",
    "TrialArm",
    "Watchdog",
]
