"""What the vendor claims, with its source, to be drawn beside what was measured."""

from dataclasses import dataclass

from telemetry import catalog


@dataclass(frozen=True, slots=True)
class Claim:
    """Tokens per dollar of a candidate over its baseline less one, as somebody claims them."""

    low: float
    high: float
    words: str
    source: str
    date: str


# The announcement names P5e and P5en; it is often quoted of p5 as well, which it does not name.
TRAINIUM2 = Claim(
    low=0.30,
    high=0.40,
    words="AWS claims 30\u201340 % better price-performance for Trn2 than for P5e and P5en",
    source="AWS, announcement of EC2 Trn2 instances (as remembered, not read again)",
    date="2024-12-03",
)


def claim_for(baseline: str, candidate: str) -> Claim | None:
    """Return the claim that speaks of such a pair of instance types: trn2 against a p5."""
    known = catalog.instances()
    is_told = candidate.startswith("trn2") and baseline.startswith("p5")
    return TRAINIUM2 if is_told and candidate in known else None
