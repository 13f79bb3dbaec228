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


# Read in AWS's announcement, and in the same words on its page of Trn2 instances. It names P5e
# and P5en (H200); it is often quoted of p5 (H100) as well, which it does not name.
TRAINIUM2 = Claim(
    low=0.30,
    high=0.40,
    words=(
        "AWS claims \u201c30-40% better price performance than GPU-based EC2 P5e and P5en "
        "instances\u201d for Trn2"
    ),
    source="AWS News Blog, J. Barr, on the availability of EC2 Trn2 instances",
    date="2024-12-03",
)
NOT_NAMED = "It names P5e and P5en, not p5; no benchmark is published with it."


def claim_for(baseline: str, candidate: str) -> Claim | None:
    """Return the claim that speaks of such a pair of instance types: trn2 against a p5."""
    known = catalog.instances()
    is_told = candidate.startswith("trn2") and baseline.startswith("p5")
    return TRAINIUM2 if is_told and candidate in known else None
