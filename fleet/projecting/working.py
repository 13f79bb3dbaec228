"""A schedule that was asked for, worked out: of a trial, as its arms were last looked at."""

from dataclasses import dataclass
from datetime import datetime

from fleet.models import Trial
from fleet.pricing.kinds import PriceKinds
from fleet.projecting.asking import Asked
from fleet.projecting.gathering import kept_pair
from fleet.projecting.planned import Planned, with_failures
from fleet.projecting.projecting import Projection, kinds_of, project
from fleet.projecting.words import assumed_sentence, reuse_sentence, sentence


@dataclass(frozen=True, slots=True)
class Worked:
    """A schedule that was asked for, worked out."""

    asked: Asked
    planned: tuple[Planned, ...]
    found: Projection
    as_of: datetime

    @property
    def sentence(self) -> str:
        """Whether it pays, in words."""
        return sentence(self.found, self.planned, has_reuse=self.asked.has_reuse)

    @property
    def assumed_sentence(self) -> str:
        """Of which arms the pace is assumed; empty where all were measured."""
        return assumed_sentence(self.planned)

    @property
    def kinds(self) -> PriceKinds | None:
        """On which terms the arms are paid; None where nobody said."""
        return kinds_of(self.planned)

    @property
    def reuse_sentence(self) -> str:
        """What a compile cache saves, in words."""
        return reuse_sentence(self.found, self.planned)


def schedule_of(trial: Trial, asked: Asked) -> Worked | None:
    """Return a trial's schedule; None where its arms were not looked at yet.

    Raises
    ------
    ScheduleError
        Where an arm cannot be projected, or there is no such candidate.
    """
    pair = kept_pair(trial, candidate=asked.candidate)
    if pair is None:
        return None
    planned = pair.planned
    if asked.failures is not None:
        planned = tuple(with_failures(each, asked.failures) for each in planned)
    found = project(planned, days=asked.days, porting_usd=asked.porting_usd, tokens=asked.tokens)
    return Worked(asked, planned, found, pair.as_of)
