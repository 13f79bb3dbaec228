"""What numbers and names of the doors are held to; beyond it they are damaged, not large."""

from typing import Annotated

from msgspec import Meta

MAX_CORES = 4096
MAX_DEVICES = 1024
MAX_EFA = 64

Percent = Annotated[float, Meta(ge=0, le=101)]
Ratio = Annotated[float, Meta(ge=0, le=1.01)]
Bytes = Annotated[float, Meta(ge=0, le=1e16)]
Count = Annotated[float, Meta(ge=0, le=1e18)]
WholeCount = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Seconds = Annotated[float, Meta(ge=0, le=1e6)]
Period = Annotated[float, Meta(ge=0, le=86_400)]
Latency = Annotated[float, Meta(gt=0, le=60)]
UnixSeconds = Annotated[float, Meta(ge=0, le=1e11)]
Sequence = Annotated[int, Meta(ge=0, le=2**63 - 1)]
CoreIndex = Annotated[int, Meta(ge=0, lt=MAX_CORES)]
DeviceIndex = Annotated[int, Meta(ge=0, lt=MAX_DEVICES)]
EfaIndex = Annotated[int, Meta(ge=0, lt=MAX_EFA)]
Port = Annotated[int, Meta(ge=0, le=255)]
# Text without control characters, which no store likes.
Name = Annotated[str, Meta(max_length=255, pattern=r"^[^\x00-\x1f\x7f]*$")]
DeviceName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.-]{1,64}\Z")]
CounterName = Annotated[str, Meta(pattern=r"^[a-z][a-z0-9_]{0,63}\Z")]
Component = Annotated[str, Meta(pattern=r"^[a-z0-9_.-]{1,64}\Z")]
StreamName = Annotated[str, Meta(pattern=r"^[0-9A-Za-z-]{8,64}\Z")]
