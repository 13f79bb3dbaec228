"""Student's t distribution: density, divergence, quantiles, and the evidence of one value."""

import math

import numpy as np

from telemetry.blocks import FloatArray

# Degrees of freedom that are distinguished: from below Cauchy to practically normal. Recorded
# runs have 0.85 to 3 (docs/decisions/0031-evidence.md).
DEGREES = np.array([0.7, 1.0, 1.3, 1.7, 2.0, 2.5, 3.0, 4.0, 5.0, 7.0, 10.0, 15.0, 30.0])


def density_at_zero(df: FloatArray) -> FloatArray:
    """Density of the standard distribution at its middle.

    References
    ----------
    N. L. Johnson, S. Kotz, N. Balakrishnan, "Continuous Univariate Distributions" 2 (1995),
    equation 28.2.

    Examples
    --------
    >>> density_at_zero(np.array([1.0, 3.0])).round(4)  # Cauchy: 1 / pi
    array([0.3183, 0.3676])
    """
    gamma = np.vectorize(math.lgamma, otypes=[float])
    return np.asarray(np.exp(gamma((df + 1) / 2) - gamma(df / 2)) / np.sqrt(df * np.pi))


def _distribution() -> tuple[FloatArray, FloatArray]:
    """Integrate the density of all `DEGREES`: median of |t|, and share beyond four of it."""
    # In u = arcsinh t the density is smooth and its tail exponential: trapezoids suffice.
    u = np.linspace(0.0, 40.0, 16_001)
    df = DEGREES[:, None]
    height = 2 * density_at_zero(df) * (1 + np.sinh(u) ** 2 / df) ** (-(df + 1) / 2) * np.cosh(u)
    mass = np.zeros_like(height)
    np.cumsum((height[:, 1:] + height[:, :-1]) / 2 * (u[1] - u[0]), axis=1, out=mass[:, 1:])
    middle = np.array([np.sinh(np.interp(0.5, row, u)) for row in mass])
    far = [1 - np.interp(np.arcsinh(4 * m), u, row) for m, row in zip(middle, mass, strict=True)]
    return middle, np.array(far)


MEDIAN_DISTANCE, SHARE_FAR = _distribution()


def degrees_of_freedom(share_far: FloatArray) -> FloatArray:
    """Degrees of freedom of which `share_far` lies beyond four median distances.

    The share needs a count only, and four median distances are 2.7 standard deviations of a
    normal distribution: 0.7 % there, 5.5 % at 3 degrees, 15.6 % at 1.

    Examples
    --------
    >>> degrees_of_freedom(np.array([0.007, 0.0549, 0.156])).round(1)
    array([30.,  3.,  1.])
    """
    return np.asarray(np.interp(share_far, SHARE_FAR[::-1], DEGREES[::-1]))


def quantile(normal: float, df: FloatArray) -> FloatArray:
    """Student's quantile from the normal one of the same probability.

    References
    ----------
    D. L. Wallace, "Bounds on Normal Approximations to Student's and the Chi-Square
    Distributions", Ann. Math. Stat. 30 (1959), 1121-1130. Within 3 % from 4 degrees on.

    Examples
    --------
    >>> quantile(3.0902, np.array([4.0, 30.0])).round(2)  # 0.999: 7.17 and 3.39
    array([7.39, 3.39])
    """
    corrected = normal * (8 * df + 3) / (8 * df + 1)
    return np.asarray(np.sqrt(df * np.expm1(corrected**2 / df)))


def log_ratio(
    residual: FloatArray,
    shift: FloatArray,
    *,
    scale: FloatArray,
    df: FloatArray,
    band: FloatArray,
) -> FloatArray:
    """Nats by which a residual favours "shifted by `shift`" over "a level within `band`".

    Notes
    -----
    ``log f((r - shift) / s) / sup f((r - m) / s)``, m within ``band`` of zero. The supremum makes
    it at most the ratio to any level within the band, also one that wanders: evidence never grows
    by a level that calm time has shown.

    References
    ----------
    K. Lange, R. Little, J. Taylor, "Robust Statistical Modeling Using the t Distribution",
    JASA 84 (1989), 881-896. L. Wasserman, A. Ramdas, S. Balakrishnan, "Universal Inference",
    PNAS 117 (2020), 16880-16890 (the supremum).

    Examples
    --------
    >>> common = {"scale": np.array(0.005), "df": np.array(3.0)}
    >>> r, five = np.array([0.0, 0.025, 0.05, 0.5]), np.array(0.05)
    >>> log_ratio(r, five, band=np.array(0.0), **common).round(1)  # +50 % is not +5 %
    array([-7.1,  0. ,  7.1,  0.4])
    >>> log_ratio(r, five, band=np.array(0.02), **common).round(1)
    array([-7.1, -3.9,  5.1,  0.3])
    """
    outside = np.maximum(np.abs(residual) - band, 0.0) / scale
    off = (residual - shift) / scale
    return np.asarray((df + 1) / 2 * np.log((df + outside**2) / (df + off**2)))


def density_of(df: FloatArray) -> FloatArray:
    """Interpolate `density_at_zero` between `DEGREES`, which is faster (within 0.3 %)."""
    return np.asarray(np.interp(df, DEGREES, _PEAKS))


_PEAKS = density_at_zero(DEGREES)


def divergence(shift: float, scale: float, df: float) -> float:
    """Nats per value that tell a shift from none, on average: Kullback-Leibler.

    References
    ----------
    S. Kullback, R. A. Leibler, "On Information and Sufficiency", Ann. Math. Stat. 22 (1951).

    Examples
    --------
    >>> round(divergence(2.0, 1.0, 1.0), 4), round(math.log(1 + 2.0**2 / 4), 4)  # Cauchy
    (0.6931, 0.6931)
    """
    u = np.linspace(-30.0, 30.0, 24_001)
    t = np.sinh(u)
    kernel = np.log1p(t**2 / df)
    height = np.exp(-(df + 1) / 2 * kernel) * np.cosh(u)
    ratio = (df + 1) / 2 * (np.log1p((t + shift / scale) ** 2 / df) - kernel)
    return float(np.sum(height * ratio) / np.sum(height))
