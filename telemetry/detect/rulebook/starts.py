"""The rule about how runs begin: judged from preflights, and told by trnwatch alone."""

from telemetry.detect.rulebook.rule import Rule

STARTS = (
    Rule(
        "preflight",
        "Started without a preflight",
        "warn",
        "run",
        "A run that requires a preflight began without a pass of its nodes younger than a day.",
        {"good_for_s": 86_400.0},
        falls_short="No series says what preflights found, nor which runs require one.",
    ),
)
