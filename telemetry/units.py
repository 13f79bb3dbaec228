"""Units that figures are converted by."""

MINUTE_S, HOUR_S, DAY_S = 60, 3_600, 86_400
GIB = 1024**3
TOKENS_PER_MTOK = 1e6
