"""Who looked at what: vitals that note whether anybody asked for hardware."""

from collections.abc import Callable
from dataclasses import replace
from typing import ParamSpec, TypeVar

from telemetry.detect.vitals import Vitals

Asked = ParamSpec("Asked")
Answer = TypeVar("Answer")


class Witness:
    """Vitals that note whether anybody looked at hardware."""

    def __init__(self, vitals: Vitals) -> None:
        self.asked = False
        moments = vitals.moments and self._noted(vitals.moments)
        self.vitals = replace(vitals, hardware=self._noted(vitals.hardware), moments=moments)

    def _noted(self, ask: Callable[Asked, Answer]) -> Callable[Asked, Answer]:
        def answer(*args: Asked.args, **more: Asked.kwargs) -> Answer:
            self.asked = True
            return ask(*args, **more)

        return answer
