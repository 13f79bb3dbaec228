"""What the fleet remembers: one module per noun."""

from fleet.models.alert import Alert, AlertEvent, FrozenChart
from fleet.models.fault import InjectedFault
from fleet.models.node import Node
from fleet.models.run import Run
from fleet.models.token import Token

__all__ = ["Alert", "AlertEvent", "FrozenChart", "InjectedFault", "Node", "Run", "Token"]
