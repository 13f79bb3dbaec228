"""Log lines as training scripts, launchers and the compiler print them."""

import io
from datetime import UTC, datetime, timedelta

from importers.logs import Log, LogContext, LoggedSteps, LogReader, complete_steps
from importers.logs.envelopes import lines_of

BEGAN = datetime(2026, 5, 1, 12, 0, tzinfo=UTC)
BEGAN_S = BEGAN.timestamp()
NAN = float("nan")


def read(text: str | bytes, *, log_every: int = 1, utc_offset_s: float = 0.0) -> Log:
    data = text if isinstance(text, bytes) else text.encode()
    reading = LogReader(LogContext(year=2026, log_every=log_every, utc_offset_s=utc_offset_s))
    reading.read(lines_of(io.BytesIO(data)))
    return reading.finish()


def steps_of(
    text: str | bytes, *, global_batch: float = NAN, seq_len: float = NAN, log_every: int = 1
) -> LoggedSteps:
    log = read(text, log_every=log_every)
    return complete_steps(log.steps, global_batch=global_batch, seq_len=seq_len)


def at(seconds: float) -> str:
    """Write a moment as Python's logging does, so many seconds after the beginning."""
    moment = BEGAN + timedelta(seconds=seconds)
    return f"{moment:%Y-%m-%d %H:%M:%S},{moment.microsecond // 1000:03d}"


def neuronx(step: int, *, step_s: float = 9.2, loss: float = 8.0, rate: float = 55.4) -> str:
    return (
        f"step {step} step_time {step_s}s throughput {rate} seq/s step loss {loss} grad norm 1.25"
    )


def zero1(step: int, *, seconds: float, rate: float = 64.0) -> str:
    moment = BEGAN + timedelta(seconds=seconds)
    return (
        f"LOG {moment:%a %b %d %H:%M:%S %Y} - (0, {step}) step_loss : 7.5 learning_rate : 1.0e-04 "
        f"throughput : {rate} seq/s grad-norm : 1.5"
    )


def megatron(step: int, *, ms: float = 7313.1) -> str:
    return (
        f" iteration {step:8d}/  500000 | consumed samples: {step * 256:12d} | "
        f"elapsed time per iteration (ms): {ms:.1f} | throughput: 140.022 | "
        "learning rate: 1.500E-04 | global batch size:   256 | lm loss: 6.790000E+00 | "
        "grad norm: 1.300 |"
    )


def nxdt(step: int, *, clock: str = "12:34", extra: str = "", loss: float = 10.4) -> str:
    """Write Lightning's bar after a step that it calls ``step``, counting from zero."""
    n = step + 1
    return (
        f"Epoch 0:   3%|▎         | {n}/1000 [{clock}<5:06:07, 18.94s/it, v_num=0, "
        f"reduced_train_loss={loss}, lr=3e-05, parameter_norm=1.6e+3, gradient_norm=5.4, "
        f"global_step={step}.0, consumed_samples={n * 1024}.0{extra}]"
    )


def bar(n: int, total: int = 400, *, clock: str = "10:00", label: str = "") -> str:
    return f"{label}{n * 100 // total:3d}%|████      | {n}/{total} [{clock}<10:00,  2.50s/it]"


def trainer(loss: float = 2.5, **more: float) -> str:
    return str({"loss": loss, "grad_norm": 1.2, "learning_rate": 5e-05, "epoch": 0.1} | more)


def wrapper(phrase: str, *, seconds: float = 0.0, pid: int = 4567, tag: str = "") -> str:
    """Write a line of the compiler's wrapper: its milliseconds have six digits."""
    moment = BEGAN + timedelta(seconds=seconds)
    stamp = f"{moment:%Y-%m-%d %H:%M:%S}.000{moment.microsecond // 1000:03d}"
    return f"{tag}{stamp}:  {pid}  INFO ||NEURON_CC_WRAPPER||: {phrase}"


def call(module: str, **where: float | int | str) -> str:
    phrase = (
        f"Call compiler with cmd: neuronx-cc compile --framework=XLA /tmp/w/model.{module}"
        f".hlo_module.pb --output /tmp/w/model.{module}.neff --target=trn1 -O1"
    )
    return wrapper(phrase, **where)  # type: ignore[arg-type]


def done(module: str, **where: float | int | str) -> str:
    phrase = f"Compilation Successfully Completed for model.{module}.hlo_module.pb"
    return wrapper(phrase, **where)  # type: ignore[arg-type]


def hit(module: str, **where: float | int | str) -> str:
    phrase = f"Using a cached neff at /fsx/cache/neuronxcc-2.15.128.0+56dc5a86/{module}/model.neff"
    return wrapper(phrase, **where)  # type: ignore[arg-type]
