"""Types of numbers in the text of a graph, of those that the compiler may refuse."""

import re

F8 = "f8e4m3fnuz|f8e4m3b11fnuz|f8e5m2fnuz"
WRITTEN = re.compile(
    rf"(?<![a-z0-9])(c64|c128|{F8})\[|x({F8})>|(complex<f(?:32|64)>)"
    r"|(?<![a-z])(complexfloat|complexdouble)\(",
    re.ASCII | re.IGNORECASE,
)
SAME = {
    "complex<f32>": "c64",
    "complexfloat": "c64",
    "complex<f64>": "c128",
    "complexdouble": "c128",
}


def doubtful_types(text: str) -> frozenset[str]:
    """Return the doubtful types that a line names, as HLO writes them.

    Examples
    --------
    >>> sorted(doubtful_types("%1 = stablehlo.add %0, %0 : tensor<4xcomplex<f32>>"))
    ['c64']
    """
    found = (next(filter(None, match.groups())).lower() for match in WRITTEN.finditer(text))
    return frozenset(SAME.get(each, each) for each in found)
