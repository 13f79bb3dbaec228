"""Impossible jobs are refused with field, value and fix."""

from typing import Any

import msgspec
import pytest

from telemetry.errors import FieldError
from telemetry.simulate.plan import Job
from telemetry.simulate.step_model import step_plan

VALID = Job(
    model="llama2-7b", instance="trn1.32xlarge", nodes=4, tp=8, seq_len=4096, global_batch=64
)


@pytest.mark.parametrize(
    ("field", "value", "remedy"),
    [
        ("model", "lama2-7b", "did you mean llama2-7b"),
        ("instance", "trn1.48xlarge", "did you mean"),
        ("instance", "inf2.48xlarge", "inference only"),
        ("precision", "int4", "take one of bf16"),
        ("tp", 5, "take one of 1, 2, 4, 8, 16, 32"),
        ("tp", 64, "does not divide the 32 cores"),
        ("tp", 0, "take 1 to"),
        ("pp", 3, "does not divide the 128 cores"),
        ("pp", 33, "one per layer"),
        ("nodes", -1, "take 1 to"),
        ("seq_len", 0, "take 1 to"),
        ("global_batch", 65, "take a multiple of 16"),
        ("global_batch", 8, "take a multiple of 16"),
        ("global_batch", 10**18, "take 1 to"),
    ],
)
def test_it_names_the_field_and_the_remedy(field: str, value: Any, remedy: str) -> None:
    with pytest.raises(FieldError, match=remedy) as caught:
        step_plan(msgspec.structs.replace(VALID, **{field: value}))

    assert caught.value.field == field
    assert str(caught.value).startswith(f"{field}: ")


def test_a_gpu_without_fp8_states_what_it_has() -> None:
    job = msgspec.structs.replace(VALID, instance="p4d.24xlarge", precision="fp8")

    with pytest.raises(FieldError, match="'fp8' is not known on A100-40GB; take one of bf16"):
        step_plan(job)
