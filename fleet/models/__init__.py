"""What the fleet remembers: one module per noun."""

from fleet.models.alert import Alert, AlertEvent, FrozenChart
from fleet.models.annotation import Annotation
from fleet.models.budget import Budget
from fleet.models.change import Change
from fleet.models.compile import CompileEvent
from fleet.models.delivery import Delivery, Told
from fleet.models.durations import StepDurations
from fleet.models.fault import InjectedFault
from fleet.models.handover import HandOver
from fleet.models.like import LikeRuns
from fleet.models.log import ReadLog
from fleet.models.node import Node
from fleet.models.observed import ObservedRun
from fleet.models.preflight import Preflight, PreflightNode
from fleet.models.price import TeamPrice
from fleet.models.receiver import Receiver
from fleet.models.route import Route
from fleet.models.run import Run
from fleet.models.sender import SenderPulse, Watchdog
from fleet.models.silence import Silence, SilenceEvent
from fleet.models.support import SupportCheck
from fleet.models.token import Token
from fleet.models.trace import RecordedTrace
from fleet.models.trial import Trial, TrialArm

__all__ = [
    "Alert",
    "AlertEvent",
    "Annotation",
    "Budget",
    "Change",
    "CompileEvent",
    "Delivery",
    "FrozenChart",
    "HandOver",
    "InjectedFault",
    "LikeRuns",
    "Node",
    "ObservedRun",
    "Preflight",
    "PreflightNode",
    "ReadLog",
    "Receiver",
    "RecordedTrace",
    "Route",
    "Run",
    "SenderPulse",
    "Silence",
    "SilenceEvent",
    "StepDurations",
    "SupportCheck",
    "TeamPrice",
    "Token",
    "Told",
    "Trial",
    "TrialArm",
    "Watchdog",
]
