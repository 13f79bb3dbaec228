"""What the kernel's Neuron driver reports of broken hardware."""

import re

from telemetry.ingest.logs.records import Entry, HardwareError

NAME = "hardware errors"
ERROR = re.compile(r"NEURON_HW_ERR=([A-Z][A-Z0-9_]{2,59})\b", re.ASCII)
FIELD = re.compile(r"\b([a-z][a-z-]{1,20})=([^\s=]{1,100})", re.ASCII)
SYSLOG_HOST = re.compile(r"([A-Za-z0-9][\w.-]{0,99}) kernel:", re.ASCII)


def read_kernel(entry: Entry) -> HardwareError | None:
    """Read one line; None where it names no error."""
    error = ERROR.search(entry.text)
    if error is None:
        return None
    fields: dict[str, str] = dict(FIELD.findall(entry.text, error.end()))
    host = SYSLOG_HOST.match(entry.text)
    return HardwareError(
        kind=error[1],
        at_s=entry.at_s,
        node=fields.get("hostname") or (str(host[1]) if host else ""),
        instance=fields.get("instance-id", ""),
        device=_index(fields.get("nd-id")),
        core=_index(fields.get("nc-id")),
        serial=fields.get("serial-num", ""),
        action=fields.get("action", ""),
    )


def _index(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() and len(text) < 6 else None
