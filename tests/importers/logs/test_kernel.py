"""Neuron driver lines of the kernel log: device, error, remedy."""

import pytest

from importers.logs import HardwareError
from tests.importers.logs.log_lines import BEGAN_S, read

LINES = (
    "NEURON_HW_ERR=SRAM_UNCORRECTABLE_ERROR instance-id=i-0abc hostname=ip-10-0-0-7 nd-id=3 "
    "nc-id=1 serial-num=9f8a action=TERMINATE_INSTANCE"
)


def test_a_line_of_syslog_reports_all() -> None:
    log = read(f"May  1 12:00:07 ip-10-0-0-7 kernel: [81234.123456] {LINES}\n")

    assert list(log.errors) == [
        HardwareError(
            kind="SRAM_UNCORRECTABLE_ERROR",
            at_s=BEGAN_S + 7,
            node="ip-10-0-0-7",
            instance="i-0abc",
            device=3,
            core=1,
            serial="9f8a",
            action="TERMINATE_INSTANCE",
        )
    ]


def test_the_host_may_only_stand_before_the_message() -> None:
    line = "May  1 12:00:07 ip-7 kernel: NEURON_HW_ERR=DMA_ERROR affecting neuron devices"
    (error,) = read(line).errors

    assert (error.kind, error.node, error.device) == ("DMA_ERROR", "ip-7", None)


@pytest.mark.parametrize("prefix", ["[81234.123456] ", "", "kern  :err   : "])
def test_the_kernel_s_own_clock_is_no_time(prefix: str) -> None:
    (error,) = read(f"{prefix}{LINES}").errors

    assert error.at_s != error.at_s
    assert error.node == "ip-10-0-0-7"


def test_a_line_that_is_repeated_is_counted() -> None:
    log = read(f"{LINES}\n{LINES}\n{LINES}\n")

    assert list(log.errors.values()) == [3]


def test_a_line_cut_off_before_the_error_is_damaged() -> None:
    assert read("kernel: NEURON_HW_ERR=").n_damaged == 1
