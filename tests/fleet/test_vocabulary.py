"""Pages, messages, documents and code use the words of monitoring, not private ones."""

import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FILES = (
    "*.md",
    "compose.yaml",
    "docs/**/*.md",
    "deploy/**/*",
    "templates/**/*.*",
    "fleet/static/fleet/*.js",
    "fleet/**/*.toml",
    *(
        f"{folder}/**/*.py"
        for folder in (
            "bench",
            "deploy",
            "drills",
            "fleet",
            "importers",
            "telemetry",
            "tests",
            "tools",
            "trnwatch",
        )
    ),
)
# What was written about earlier releases stays; the phrases below are in this file.
LEFT_OUT = re.compile(r"CHANGELOG\.md|.*/migrations/.*|tests/fleet/test_vocabulary\.py")
# Phrase (a regular expression) and what to write instead.
PHRASES = {
    r"(?i)\b(the demo|nobody) has it\b": "Acknowledged by demo; Unacknowledged",
    r"(?i)\bnot yet taken\b|\btaken by\b": "Unacknowledged; Acknowledged by",
    r"(?i)\bgive it back\b|\bgiven back\b": "Unacknowledge",
    r"Give to…": "Assign to…",
    r"(?i)\bcall(ed)? it over\b": "Resolve manually",
    r"(?i)\bwhat you see is of\b": "Showing data from",
    r"(?i)\bslowed with it\b": "Also affected",
    r"(?i)\ball of it \(runbook\)": "Full runbook",
    r"Step by step": "Time range",
    r"(?i)\blost, unannounced\b": "Unplanned compile time",
    r"(?i)\bpaid meanwhile\b": "cost",
    r"(?i)\bcompiled again by accident\b": "Unplanned recompilation",
    r"(?i)\bEFA link answers slowly\b": "High EFA latency",
    r"(?i)\b(cause|place) (named )?right(ly)?\b": "Cause correct; Location correct",
    r"(?i)\bput there by\b": "Started by",
    r"(?i)\bit will be asked whether\b": "Confirm: …",
    r"(?i)\b(no|the|a) like runs?\b": "No comparable run; similar run",
    r"(?i)\bone of them may come\b": "Use only one of the pair",
    r"(?i)\breckon\w*\b": "Assumptions; assume",
    r"(?i)\btell the end as well\b": "Also notify on resolve",
    r"(?i)\bwhat it takes to fire\b": "firing threshold",
    r"(?i)\bwithout news\b|\bis news\b": "with no recent data; new",
    r"(?i)\bworked out\b": "Updated; calculated",
    r">Money<|: money\b": "Cost",
    r"\bAt its end\b": "Projected total",
    r"Hand-over": "Shift handover",
    r"(?i)\b(nobody|somebody|whoever|whom)\b|\beverybody\b(?![\"`])": "a user; all nodes; …",
    r"(?i)\b(lest|nought|in vain|for want of|of one's own|anew|by hand)\b": "plain English",
    r"(?i)\b(to|is|are|be) blamed?\b|\bblam(es|ing)\b|\bblamed\b": "implicated; cause",
    r"(?i)\b(at the least|in place of|for ever|strangers?)\b": "plain English",
    r"(?i)\b(not|is|are|was|were|be|been|as|it) told\b|\btold (of|by|to|apart)\b|\btells of\b": (
        "unknown; reported; notified; distinguished"
    ),
    r"(?i)\b(its|whose|their) word\b|\bword (on|holds|stands)\b": "verdict; report",
    r"(?i)\b(goes by|stands? for|set aside|put away)\b": "is named; means; renamed; stored",
    r"(?i)\bspeaks?\b|\bspoke\b": "report; protocol; name",
    r"(?i)\b(a|the) (vigil|desk|door|keeper|lane)\b": "watchdog; batcher; ingest; supervisor",
    r"(?i)\bwaits least\b": "all others wait for it",
    r"(?i)\bas culprit\b": "root cause of …; implicated",
    r"(?i)\bearns? back\b|\banything from\b": "pays back; (95 %: … to …)",
    r"(?i)\bcannot tell (across|yet whether)\b": "inconclusive",
}

# All at once. A phrase begins where a word does, or by a sign: to look anywhere takes four times
# as long.
ANY = re.compile(
    rf"(?:\b(?=\w)|(?=[>:]))(?:{'|'.join(PHRASES).replace('(?i)', '')})", re.IGNORECASE
)


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Yield line and text: of Python the comments and strings, of others each line."""
    text = path.read_text(encoding="utf-8")
    if not ANY.search(text):
        return
    if path.suffix != ".py":
        yield from enumerate(text.splitlines(), 1)
        return
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in {tokenize.COMMENT, tokenize.STRING}:
            yield from enumerate(token.string.splitlines(), token.start[0])


def test_no_text_uses_a_private_word() -> None:
    paths = {path for pattern in FILES for path in ROOT.glob(pattern) if path.is_file()}
    found = [
        f"{path.relative_to(ROOT)}:{number}: {match.group()!r}, better: {instead}"
        for path in sorted(paths)
        if not LEFT_OUT.fullmatch(str(path.relative_to(ROOT)))
        for number, text in texts(path)
        if ANY.search(text)
        for phrase, instead in PHRASES.items()
        if (match := re.search(phrase, text))
    ]

    assert found == []
