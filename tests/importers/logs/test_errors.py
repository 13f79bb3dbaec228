"""Errors that end a job: their name, place and line, by the table of patterns."""

import pytest

from importers.logs import ended_by
from importers.logs.errors import CLASSES, PATTERNS, ErrorReader
from importers.logs.records import LogLine
from telemetry.ingest.exporters import XIDS_OF_APPLICATIONS
from tests.importers.logs.log_lines import at, neuronx, read

TRACEBACK = "Traceback (most recent call last):"
# One line of each pattern, or its last, its name and where it is.
LINES = (
    ("NEURON_HW_ERR=DMA_ERROR hostname=trn-03 nd-id=3 nc-id=1", "DMA_ERROR", "trn-03 device 3 core 1"),  # noqa: E501
    ("trn-03: NRT:nrt_infodump Failure: NRT_EXEC_HW_ERR_NC_UE in nrt_execute()", "NRT_EXEC_HW_ERR_NC_UE", "trn-03"),  # noqa: E501
    ("[ND 4][NC 1] Uncorrectable memory error is detected, metadata: 0x16", "UNCORRECTABLE_MEMORY_ERROR", "device 4 core 1"),  # noqa: E501
    ("[MLA 2][NC 0] DMA TX engine 0 is in an abort state", "DMA_ABORT", "device 2 core 0"),
    ("May  1 12:00:07 gpu-7 kernel: NVRM: Xid (PCI:0000:9c:00): 79, pid=77, GPU has fallen off the bus", "XID 79", "gpu-7 device 0000:9c:00"),  # noqa: E501
    ("RuntimeError: CUDA error: uncorrectable ECC error encountered", "ECC_ERROR", ""),
    ("[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB. GPU 5 has", "CUDA_OUT_OF_MEMORY", "device 5, rank 3"),  # noqa: E501
    ("Failed to allocate 2147483648 bytes on DEVICE", "NEURON_OUT_OF_MEMORY", ""),
    ("May  1 12:00:07 trn-03 kernel: Out of memory: Killed process 4711 (python)", "HOST_OUT_OF_MEMORY", "trn-03"),  # noqa: E501
    ("slurmstepd: error: Detected 1 oom-kill event(s) in StepId=77.0", "HOST_OUT_OF_MEMORY", ""),
    ("nrt_execute failed: NRT_EXEC_COMPLETED_WITH_NUM_ERR", "NRT_EXEC_COMPLETED_WITH_NUM_ERR", ""),
    ("NeuronCore(s) not available - Requested:nc1-nc1 Available:0", "NEURONCORES_NOT_AVAILABLE", ""),  # noqa: E501
    ("Nrt::Load failed on NeuronCores 0-0(2): nrt_load status=1", "NEFF_LOAD_FAILED", ""),
    ("RuntimeError: CUDA error: an illegal memory access was encountered", "CUDA_ERROR", ""),
    ("fi_getinfo: -61 (No data available)", "NRT_NETWORK_PROXY_FAILURE", ""),
    ("Unresponsive remote (was previously responsive)", "EFA_ERROR", ""),
    ("libfabric: err: Input/output error (5) prov_errno: Unknown error -12 (-12)", "EFA_ERROR", ""),  # noqa: E501
    ("CCOM WARN RX, connection closed by remote peer", "PEER_CLOSED", ""),
    ("missing collectives status on Neuron Device 0 NC 2, model 0", "NRT_EXEC_HW_ERR_COLLECTIVES", "device 0 core 2"),  # noqa: E501
    ("execution timeout (30000 ms) on Neuron Device 1 NC 0, model x.neff", "NRT_TIMEOUT", "device 1 core 0"),  # noqa: E501
    ("CCOM WARN NET/Plugin: init failed", "CCOM_ERROR", ""),
    ("[rank7]:[E501 12:00:07.863 ProcessGroupNCCL.cpp:695] [Rank 7] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9, OpType=ALLGATHER, NumelIn=1)", "COLLECTIVE_TIMEOUT", "rank 7"),  # noqa: E501
    ("torch.distributed.DistBackendError: ncclRemoteError: A call failed", "ncclRemoteError", ""),
    ("slurmstepd: error: *** JOB 77 ON trn-03 CANCELLED AT 2026-05-01T12:00:07 DUE TO TIME LIMIT ***", "TIME_LIMIT", ""),  # noqa: E501
    ("slurmstepd: error: *** STEP 77.0 ON trn-03 CANCELLED AT 2026-05-01T12:00:07 DUE TO PREEMPTION ***", "PREEMPTED", ""),  # noqa: E501
    ("slurmstepd: error: *** STEP 77.0 ON trn-03 CANCELLED AT 2026-05-01T12:00:07 ***", "CANCELLED", ""),  # noqa: E501
    ("slurmstepd: error: *** JOB 77 ON trn-03 CANCELLED AT 2026-05-01T12:00:07 DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***", "NODE_FAILURE", ""),  # noqa: E501
    ("srun: error: Node failure on trn-04", "NODE_FAILURE", "trn-04"),
    ("srun: error: trn-04: task 3: Out Of Memory", "HOST_OUT_OF_MEMORY", "trn-04, rank 3"),
    ("srun: error: trn-04: tasks 8-15: Killed", "PROCESS_KILLED", "trn-04"),
    ("srun: error: trn-04: task 3: Exited with exit code 1", "PROCESS_FAILED", "trn-04"),
    ("srun: error: trn-04: task 3: Segmentation fault (core dumped)", "SEGMENTATION_FAULT", "trn-04"),  # noqa: E501
    ("./train.sh: line 3:  4711 Killed                  python train.py", "PROCESS_KILLED", ""),
    ("E0501 12:00:07.000000 140 torch/distributed/elastic/multiprocessing/api.py:833] failed (exitcode: -9) local_rank: 3 (pid: 4711) of binary: /usr/bin/python3", "PROCESS_KILLED", "rank 3"),  # noqa: E501
    ("E0501 12:00:07.000000 140 torch/distributed/elastic/multiprocessing/api.py:833] failed (exitcode: 1) local_rank: 3 (pid: 4711) of binary: /usr/bin/python3", "PROCESS_FAILED", "rank 3"),  # noqa: E501
    ("May  1 12:00:07 trn-03 kernel: Memory cgroup out of memory: Killed process 4711 (python3)", "HOST_OUT_OF_MEMORY", "trn-03"),  # noqa: E501
    ("[12345.678901] NVRM: Xid (0000:03:00): 48, pid='<unknown>', name=<unknown>, DBE", "XID 48", "device 0000:03:00"),  # noqa: E501
    ("May  1 12:00:07 gpu-7 kernel: NVRM: Xid (PCI:0000:9c:00): 31, pid=77, name=python, MMU Fault", "XID 31", "gpu-7 device 0000:9c:00"),  # noqa: E501
    ("jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 2147483648 bytes.", "DEVICE_OUT_OF_MEMORY", ""),  # noqa: E501
    ("Execute failed: nrt_execute: status=1202, error message=\"Execution failed\".", "NRT_EXEC_HW_ERR_NC_UE", ""),  # noqa: E501
    ("RuntimeError: nrt_tensor_allocate status=4", "NEURON_OUT_OF_MEMORY", ""),
    ("2026-May-01 12:00:07.5 11:11 ERROR NRT:nrt_infodump Failure: NRT_FAILURE in nrt_init()", "NRT_FAILURE", ""),  # noqa: E501
    ("CCOM WARN [nec_dev 3] connection timed out", "CCOM_ERROR", ""),
    ("efa_rdm_pke_handle_tx_error():1<warn> Libfabric error: (-110) Connection timed out", "EFA_ERROR", ""),  # noqa: E501
    ("[rank7]:[E501 12:00:07.863 ProcessGroupNCCL.cpp:616] [PG ID 0 PG GUID 0(default_pg) Rank 9] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9, OpType=ALLGATHER, NumelIn=1)", "COLLECTIVE_TIMEOUT", "rank 9"),  # noqa: E501
    (f"[rank3]: {TRACEBACK}\n[rank3]:   File \"train.py\", line 88, in step\n[rank3]: torch.cuda.FooError: no", "FooError", "rank 3"),  # noqa: E501
)  # fmt: skip


@pytest.mark.parametrize(("line", "name", "where"), LINES, ids=[name for _, name, _ in LINES])
def test_a_line_of_each_error_is_known_with_its_place(line: str, name: str, where: str) -> None:
    log = read(f"{neuronx(1)}\nhello\n{line}\n")
    (error,) = log.failures.values()

    assert (error.name, error.where, error.number) == (name, where, 3 + line.count("\n"))
    assert log.n_other == 1 + line.count("\n")


def test_each_pattern_has_a_line_a_class_and_a_source() -> None:
    for pattern in PATTERNS:
        assert pattern.kind in CLASSES
        assert pattern.meaning.endswith(".")
        assert pattern.source
        assert any(
            pattern.pattern.search(line) and any(has in line for has in pattern.has)
            for lines, _, _ in LINES
            for line in (lines, lines.rpartition("]: ")[2])
        ), pattern.name


def test_a_job_ends_by_its_cause_not_by_what_follows_from_it() -> None:
    timeout, broken = LINES[21][0], "trn-03: nrt_execute: NRT_EXEC_HW_ERR_HBM_UE"
    error = ended_by(read(f"{neuronx(1)}\n{timeout}\n{broken}\n").final)

    assert error is not None
    assert (error.name, error.where) == ("NRT_EXEC_HW_ERR_HBM_UE", "trn-03")


@pytest.mark.parametrize(
    "lines",
    [
        "ConnectionError: retrying in 5 s",
        f"Exception ignored in: <function __del__>\n{TRACEBACK}\nAttributeError: 'NoneType'",
        f"{TRACEBACK}\nValueError: bad batch, skipped\n{neuronx(2)}\nConnectionError: retrying",
    ],
    ids=["no traceback", "at the interpreter's end", "before a step"],
)
def test_an_exception_without_a_traceback_of_its_own_ends_nothing(lines: str) -> None:
    assert ended_by(read(f"{neuronx(1)}\n{lines}\n").final) is None


def test_a_program_s_own_xid_is_no_broken_device() -> None:
    fault = next(line for line, name, _ in LINES if name == "XID 31")
    for xid in range(1, 180):
        (error,) = read(fault.replace(": 31,", f": {xid},")).failures.values()
        assert (error.kind == "program") == (xid in XIDS_OF_APPLICATIONS), xid


@pytest.mark.parametrize(("at_s", "name"), [(30.0, None), (890.0, "XID 79"), (910.0, "XID 79")])
def test_a_kernel_s_log_behind_that_of_the_job_ends_it_if_its_time_does(
    at_s: float, name: str | None
) -> None:
    xid = f"{at(at_s)} gpu-7 kernel: NVRM: Xid (PCI:0000:9c:00): 79, GPU has fallen off the bus"
    log = read(f"{at(0)} {neuronx(1)}\n{at(900)} {neuronx(2)}\n{xid}\n")
    error = ended_by(log.final)

    assert (error.name if error else None, len(log.failures)) == (name, 1)


def test_an_error_after_which_steps_go_on_is_no_end() -> None:
    log = read(f"{neuronx(1)}\n{LINES[6][0]}\n{at(900)} {neuronx(2)}\n")

    assert len(log.failures) == 1
    assert ended_by(log.final) is None


@pytest.mark.parametrize(
    "text",
    [
        "NCCL_ASYNC_ERROR_HANDLING=1",
        "Using a cached neff at /cache/MODULE_1/model.neff",
        "we handle CUDA errors and missing files",
        "NCCOM initialised",
    ],
)
def test_similar_text_reports_no_error(text: str) -> None:
    assert ErrorReader().read(LogLine(1, text)) is None
