"""A sample of each family of step lines, in its public format with figures of our own."""

from dataclasses import dataclass

import numpy as np
import pytest

from telemetry.ingest.logs.families import FAMILIES
from tests.telemetry.ingest.logs.log_lines import BEGAN_S, at, neuronx, nxdt, read, steps_of

NAN = float("nan")


@dataclass(frozen=True)
class Sample:
    """A log of a family, and what it says of the last step; NaN where it says nothing."""

    family: str
    text: str
    step: tuple[int, ...]
    step_s: float = NAN
    seq_per_s: float = NAN
    tokens: float = NAN
    loss: float = NAN
    grad_norm: float = NAN
    learning_rate: float = NAN
    global_batch: float = NAN
    at_s: float = NAN
    how: str = "told"


SAMPLES = {
    "torchtitan": Sample(
        "torchtitan",
        "[rank0]:[titan] 2026-05-01 12:00:00,000 - root - INFO - Training starts at step 1\n"
        "[rank0]:[titan] 2026-05-01 12:00:04,500 - root - INFO - \x1b[31mstep:  1  \x1b[32mloss: "
        "12.1250  \x1b[38;2;180;60;0mgrad_norm:  1.7500  \x1b[33mmemory: 41.20GiB(52.01%)  "
        "\x1b[34mtps: 910  \x1b[36mtflops: 52.70  \x1b[35mmfu: 5.33%\x1b[39m\n"
        "[rank0]:[titan] 2026-05-01 12:00:34,500 - root - INFO - step: 11  loss:  9.2500  "
        "grad_norm:  1.5000  memory: 43.75GiB(55.20%)  tps: 5,461  tflops: 316.27  mfu: 31.98%\n"
        "[rank0]:[titan] 2026-05-01 12:00:36,000 - root - INFO - validate step: 11  loss:  9.5  "
        "memory: 43.75GiB(55.20%)  tps: 9,120\n",
        step=(1, 11),
        step_s=3.0,
        loss=9.25,
        grad_norm=1.5,
        at_s=BEGAN_S + 34.5,
        how="clock",
    ),
    "torchtitan of 2024": Sample(
        "torchtitan",
        "[rank0]:2026-05-01 12:00:10,000 - root - INFO - step: 10  loss:  8.5000  memory:  9.5GiB"
        "(12.0%)  wps: 2,730  mfu: 16.10%\n"
        "[rank0]:2026-05-01 12:00:25,000 - root - INFO - step: 20  loss:  7.5000  memory:  9.5GiB"
        "(12.0%)  wps: 2,731  mfu: 16.11%\n",
        step=(10, 20),
        step_s=1.5,
        loss=7.5,
        at_s=BEGAN_S + 25,
        how="clock",
    ),
    "NeMo 2": Sample(
        "NeMo",
        "Training epoch 0, iteration 6/99 | lr: 1.999e-06 | global_batch_size: 512 | global_step: "
        "6 | peak_memory_usage: 61203283968 | reduced_train_loss: 11.03 | train_step_timing in s: "
        "12.5\n"
        "Training epoch 0, iteration 7/99 | lr: 2.249e-06 | global_batch_size: 512 | global_step: "
        "7 | peak_memory_usage: 61203283968 | reduced_train_loss: 10.75 | train_step_timing in s: "
        "12.25 | consumed_samples: 4096 | val_loss: 11.2\n",
        step=(6, 7),
        step_s=12.25,
        seq_per_s=512 / 12.25,
        loss=10.75,
        learning_rate=2.249e-06,
        global_batch=512,
    ),
    "MaxText": Sample(
        "MaxText",
        "I0501 12:00:04.250000 140123456789504 metric_logger.py:226] completed step: 3, seconds: "
        "4.250, TFLOP/s/device: 181.250, Tokens/s/device: 3855.059, total_weights: 524288, loss: "
        "8.500, lm_loss: 8.500, perplexity: 4914.769\n"
        "I0501 12:00:08.250000 140123456789504 metric_logger.py:226] completed step: 4, seconds: "
        "4.000, TFLOP/s/device: 192.578, Tokens/s/device: 4096.000, total_weights: 524288, loss: "
        "8.250, lm_loss: 8.250, perplexity: 3827.626\n",
        step=(3, 4),
        step_s=4.0,
        tokens=524288,
        loss=8.25,
        at_s=BEGAN_S + 8.25,
    ),
    "MaxText of 2023": Sample(
        "MaxText",
        "completed step: 16, seconds: 2.125, TFLOP/s: 37.250, loss: 2.250\n",
        step=(16,),
        step_s=2.125,
        loss=2.25,
    ),
    "AXLearn": Sample(
        "AXLearn",
        "I0501 12:00:00.000000 140123456789504 trainer.py:401] trainer process   0 step        1] "
        "loss=11.25 aux={'loss': 11.25, 'per_token_loss': 'T(8, 4096)'}\n"
        "I0501 12:05:00.000000 140123456789504 trainer.py:520] trainer process   0 step      101] "
        "Average step time: 2.75 seconds\n"
        "I0501 12:05:00.100000 140123456789504 trainer.py:401] trainer process   0 step      101] "
        "loss=Array(7.5, dtype=float32) aux={'loss': 7.5}\n"
        "I0501 12:05:02.000000 140123456789504 trainer.py:512] trainer process   0 step      101] "
        "Reached max_step=101. Stopping\n",
        step=(1, 101),
        step_s=2.75,
        loss=7.5,
        at_s=BEGAN_S + 300,
    ),
    "DeepSpeed": Sample(
        "DeepSpeed",
        "[2026-05-01 12:00:10,250] [INFO] [logging.py:96:log_dist] [Rank 0] step=10, skipped=0, "
        "lr=[2.5e-05, 2.5e-05], mom=[(0.9, 0.95), (0.9, 0.95)]\n"
        "[2026-05-01 12:00:10,250] [INFO] [timer.py:260:stop] epoch=0/micro_step=40/global_step=10"
        ", RunningAvgSamplesPerSec=62.5, CurrSamplesPerSec=64.0, MemAllocated=9.1GB, "
        "MaxMemAllocated=20.5GB\n"
        "[2026-05-01 12:00:10,251] [INFO] [logging.py:96:log_dist] [Rank 0] time (ms) | "
        "forward: 250.10 | backward: 610.20 | step: 30.40\n"
        "[2026-05-01 12:00:20,250] [INFO] [logging.py:96:log_dist] [Rank 0] step=20, skipped=0, "
        "lr=[3e-05, 3e-05], mom=[(0.9, 0.95), (0.9, 0.95)]\n"
        "[2026-05-01 12:00:20,250] [INFO] [timer.py:260:stop] epoch=0/micro_step=80/global_step=20"
        ", RunningAvgSamplesPerSec=62.5, CurrSamplesPerSec=64.0, MemAllocated=9.1GB, "
        "MaxMemAllocated=20.5GB\n",
        step=(10, 20),
        step_s=1.0,
        seq_per_s=64.0,
        learning_rate=3e-05,
        at_s=BEGAN_S + 20.25,
        how="clock",
    ),
    "DeepSpeed of 2022, which counts micro steps": Sample(
        "DeepSpeed",
        "[2026-05-01 12:00:10,250] [INFO] [logging.py:69:log_dist] [Rank 0] step=10, skipped=2, "
        "lr=[5e-05], mom=[[0.9, 0.999]]\n"
        "[2026-05-01 12:00:10,250] [INFO] [timer.py:189:stop] 0/40, SamplesPerSec=83.5, "
        "MemAllocated=0.3GB, MaxMemAllocated=9.0GB\n",
        step=(10,),
        seq_per_s=83.5,
        learning_rate=5e-05,
        at_s=BEGAN_S + 10.25,
        how="",
    ),
    "DeepSpeed's pipelines": Sample(
        "DeepSpeed",
        "steps: 10 loss: 2.5000 iter time (s): 1.250 samples/sec: 102.400\n"
        "steps: 20 loss: 2.2500 iter time (s): 1.250 samples/sec: 102.400\n",
        step=(10, 20),
        step_s=1.25,
        seq_per_s=102.4,
        loss=2.25,
    ),
    "Composer": Sample(
        "Composer",
        "".join(
            f"[batch={n}/4800]:\n"
            f"\t Train time/batch: {n - 1}\n"
            f"\t Train time/sample: {(n - 1) * 256}\n"
            f"\t Train time/token: {(n - 1) * 256 * 4096}\n"
            "\t Train memory/peak_reserved_mem: 51.3280\n"
            f"\t Train loss/train/total: {11 - n / 8:.4f}\n"
            f"\t Train metrics/train/LanguageCrossEntropy: {11 - n / 8:.4f}\n"
            "\t Train throughput/batches_per_sec: 0.2500\n"
            "\t Train throughput/samples_per_sec: 64.0000\n"
            "\t Train throughput/device/samples_per_sec: 8.0000\n"
            "\t Train throughput/tokens_per_sec: 262144.0000\n"
            "\t Train throughput/device/tokens_per_sec: 32768.0000\n"
            f"\t Train time/train: {n * 4 / 3600:.4f}\n"
            "\t Train lr-DecoupledAdamW/group0: 0.0003\n"
            "[Eval batch=1/8] Eval on eval data:\n"
            "\t Eval metrics/eval/LanguageCrossEntropy: 9.9\n"
            for n in (19, 20, 21)
        ),
        step=(19, 20, 21),
        step_s=4.0,
        seq_per_s=64.0,
        tokens=1048576,
        loss=8.375,
        learning_rate=3e-4,
        global_batch=256,
    ),
    "fairseq": Sample(
        "fairseq",
        "2026-05-01 12:00:50 | INFO | train_inner | epoch 001:    100 / 2500 loss=9.250, "
        "nll_loss=8.900, ppl=478.00, wps=20480.0, ups=2, wpb=10240, bsz=320, num_updates=100, "
        "lr=1.25e-05, gnorm=2.250, clip=0, train_wall=49, wall=52\n"
        "2026-05-01 12:01:40 | INFO | train_inner | epoch 001:    200 / 2500 loss=8.750, "
        "nll_loss=8.400, ppl=338.00, wps=20480.0, ups=2, wpb=10240, bsz=320, num_updates=200, "
        "lr=2.5e-05, gnorm=2.000, clip=0, train_wall=49, wall=102\n"
        "2026-05-01 12:02:10 | INFO | valid | epoch 001 | valid on 'valid' subset | loss 9.5 | "
        "ppl 724.1 | wps 40960 | wpb 1280 | bsz 40 | num_updates 200\n",
        step=(100, 200),
        step_s=0.5,
        seq_per_s=640.0,
        tokens=10240,
        loss=8.75,
        grad_norm=2.0,
        learning_rate=2.5e-05,
        global_batch=320,
        at_s=BEGAN_S + 100,
        how="batch",
    ),
    "fairseq in JSON": Sample(
        "fairseq",
        '2026-05-01 12:00:50 | INFO | train_inner | {"epoch": 1, "update": 0.04, "loss": "9.25", '
        '"nll_loss": "8.9", "ppl": "478", "wps": "20480", "ups": "2", "wpb": "10240", '
        '"bsz": "320", "num_updates": "100", "lr": "1.25e-05", "gnorm": "2.25", "clip": "0", '
        '"train_wall": "49", "wall": "52"}\n'
        '2026-05-01 12:02:10 | INFO | train | {"epoch": 1, "train_loss": "9.1", "train_wps": '
        '"20000", "train_wpb": "10240", "train_num_updates": "2500"}\n',
        step=(100,),
        step_s=0.5,
        seq_per_s=640.0,
        tokens=10240,
        loss=9.25,
        grad_norm=2.25,
        learning_rate=1.25e-05,
        global_batch=320,
        at_s=BEGAN_S + 50,
        how="batch",
    ),
    "fairseq of 2019": Sample(
        "fairseq",
        "| epoch 001:    450 / 1891 loss=11.500, nll_loss=10.750, ppl=1722.00, wps=52500, ups=0.5,"
        " wpb=105000, bsz=5250, num_updates=445, lr=8.9e-05, gnorm=1.500, clip=0%, oom=0, "
        "loss_scale=2.000, wall=890, train_wall=756\n"
        "| epoch 001:    500 / 1891 loss=11.250, nll_loss=10.500, ppl=1448.00, wps=52500, ups=0.5,"
        " wpb=105000, bsz=5250, num_updates=495, lr=9.9e-05, gnorm=1.250, clip=0%, oom=0, "
        "loss_scale=2.000, wall=990, train_wall=840\n"
        "| epoch 001 | valid on 'valid' subset | valid_loss 8.11 | num_updates 500\n"
        "| epoch 001 | loss 10.5 | nll_loss 9.9 | ppl 955.4 | wps 52500 | ups 0.5 | wpb 105000 |"
        " bsz 5250 | num_updates 1886 | lr 0.000377 | gnorm 1.201 | clip 0% | oom 0 | wall 3800\n",
        step=(445, 495),
        step_s=2.0,
        seq_per_s=2625.0,
        tokens=105000,
        loss=11.25,
        grad_norm=1.25,
        learning_rate=9.9e-05,
        global_batch=5250,
        how="batch",
    ),
    "fairseq of 2018, which counts in each epoch": Sample(
        "fairseq",
        "| epoch 002  8000 / 8223 loss=1.25 (1.50), wps=1800, wpb=900, bsz=32, lr=0.001, "
        "clip=100%, gnorm=2.2500\n"
        "| epoch 002 | train loss 1.44 | train ppl 2.72 | s/checkpoint    7747 | words/s   1800 | "
        "words/batch    900 | bsz    32 | lr 0.001000 | clip 100% | gnorm 2.1113\n"
        "| epoch 002 | valid on 'valid' subset  1000 / 1311 loss=1.60\n"
        "| epoch 003  1000 / 8223 loss=1.00 (1.38), wps=1800, wpb=900, bsz=32, lr=0.001, "
        "clip=100%, gnorm=2.0000\n",
        step=(16223, 17446),
        step_s=0.5,
        seq_per_s=64.0,
        tokens=900,
        loss=1.0,
        grad_norm=2.0,
        learning_rate=0.001,
        global_batch=32,
        how="batch",
    ),
    "OLMo": Sample(
        "OLMo",
        "".join(
            f"[2026-05-01 12:00:{12 * n:02d}] INFO     [olmo.train:816, rank=0] "
            f"[step={n}/739328]\n"
            f"    train/CrossEntropyLoss={11.25 - n / 4:.4g}\n"
            "    train/Perplexity=76,631\n"
            f"    throughput/total_tokens={n * 4194304:,}\n"
            "    throughput/device/tokens_per_second=45,538\n"
            "    throughput/device/batches_per_second=0.0800\n"
            "    System/Peak GPU Memory (MB)=43,309\n"
            for n in (1, 2, 3)
        ),
        step=(1, 2, 3),
        step_s=12.5,
        tokens=4194304,
        loss=10.5,
        at_s=BEGAN_S + 36,
    ),
    "OLMo-core": Sample(
        "OLMo",
        "".join(
            f"2026-05-01 12:00:{n}.500\thost:0\tolmo_core.train.callbacks.console_logger:105\t"
            f"INFO\t[step={n}/1000,epoch=1,eta=1:00:00]\n"
            "    optim/LR (group 0)=0.0003\n"
            "    optim/total grad norm=1.25\n"
            f"    throughput/total tokens={n * 1048576:,}\n"
            "    throughput/device/BPS=0.5\n"
            "    throughput/device/BPS (actual avg)=0.25\n"
            "    train/CE loss=9.5\n"
            "    train/PPL=13,360\n"
            for n in (10, 12)
        ),
        step=(10, 12),
        step_s=2.0,
        tokens=1048576,
        loss=9.5,
        grad_norm=1.25,
        learning_rate=3e-4,
        at_s=BEGAN_S + 12.5,
    ),
    "torchtune": Sample(
        "torchtune",
        "Step 1010 | loss:1.25 lr:2e-05 tokens_per_second_per_gpu:2000.5 grad_norm:1.5 \n"
        "1|990|Loss: 1.5:  99%|█████████▉| 990/1000 [49:30<00:30,  3.00s/it]\r"
        "2|1010|Loss: 1.25:   1%|          | 10/1000 [00:30<49:30,  3.00s/it]\r"
        "2|1020|Loss: 1.125:   2%|▏         | 20/1000 [01:00<49:00,  3.00s/it]\n"
        "Step 1020 | loss:1.125 lr:2e-05 tokens_per_second_per_gpu:2000.5 grad_norm:1.25 \n",
        step=(990, 1010, 1020),
        step_s=3.0,
        loss=1.125,
        grad_norm=1.25,
        learning_rate=2e-05,
        how="bar",
    ),
    "torchtune's log on disk, which has no times": Sample(
        "torchtune",
        "Step 10 | loss:2.5 lr:2e-05 tokens_per_second_per_gpu:2000.5 peak_memory_active:10.5 \n",
        step=(10,),
        loss=2.5,
        learning_rate=2e-05,
        how="",
    ),
    "litgpt": Sample(
        "litgpt",
        "Epoch 1 | iter 40 step 10 | loss train: 9.250, val: n/a | iter time: 312.50 ms (step) "
        "remaining time: 1:40:00\n"
        "Epoch 1 | iter 80 step 20 | loss train: 9.125, val: 9.300 | iter time: 312.50 ms (step) "
        "remaining time: 1:38:00\n"
        "iter 80: val loss 9.3000, val time: 1250.00 ms\n",
        step=(10, 20),
        step_s=1.25,
        loss=9.125,
    ),
    "lit-gpt of 2023": Sample(
        "litgpt",
        "iter 40 step 10: loss 9.2500, iter time: 312.50ms (optimizer.step)\n"
        "iter 80 step 20: loss 9.1250, iter time: 312.50ms (optimizer.step)\n",
        step=(10, 20),
        step_s=1.25,
        loss=9.125,
    ),
    "ms-swift": Sample(
        "ms-swift",
        "{'loss': 0.75, 'token_acc': 0.875, 'grad_norm': 0.5, 'learning_rate': 7.5e-05, "
        "'memory(GiB)': 64.5, 'train_speed(iter/s)': 0.08, 'epoch': 0.91, "
        "'global_step/max_steps': '1200/3936', 'elapsed_time': '4h 16m 20s'}\n"
        '{"eval_loss": 0.5, "eval_runtime": 123.385, "eval_samples_per_second": 4.052, '
        '"epoch": 0.91, "global_step/max_steps": "1200/3936", "elapsed_time": "4h 18m 32s"}\n'
        '{"loss": 0.5, "token_acc": 0.875, "grad_norm": 0.25, "learning_rate": 7.25e-05, '
        '"train_speed(iter/s)": 0.08, "epoch": 1.06, "global_step/max_steps": "1400/3936", '
        '"percentage": "35.57%", "elapsed_time": "4h 58m", "remaining_time": "8h 59m 13s"}\n',
        step=(1200, 1400),
        step_s=12.5,
        loss=0.5,
        grad_norm=0.25,
        learning_rate=7.25e-05,
        how="bar",
    ),
    "AWS's BERT tutorial": Sample(
        "neuronx-distributed",
        "LOG Fri May  1 12:00:00 2026 - (0, 78) step_loss : 9.1875 learning_rate : 1.56e-05 "
        "throughput : 2873.25 \n"
        "LOG Fri May  1 12:00:06 2026 - (0, 79) step_loss : 9.1250 learning_rate : 1.58e-05 "
        "throughput : 2873.25 grad-norm : 1.25\n",
        step=(78, 79),
        step_s=6.0,
        loss=9.125,
        grad_norm=1.25,
        learning_rate=1.58e-05,
        at_s=BEGAN_S + 6,
        how="clock",
    ),
    "AWS's sample of Stable Diffusion": Sample(
        "AWS samples",
        "".join(
            f"*** Running epoch 1 step {n} (cumulative step {n + 400})\n"
            "Finished weight update\n"
            f"*** Finished epoch 1 step {n} (cumulative step {n + 400})\n"
            f" > E2E for epoch 1 step {n} took {1_250_000_000 + n} ns\n"
            for n in (7, 8)
        ),
        step=(407, 408),
        step_s=1.250000008,
    ),
    "nanoGPT": Sample(
        "nanoGPT",
        "step 0: train loss 10.9, val loss 10.9\n"
        "iter 10: loss 2.5000, time 412.50ms, mfu 31.02%\n"
        "iter 20: loss 2.2500, time 425.00ms, mfu 31.02%\n",
        step=(10, 20),
        step_s=0.425,
        loss=2.25,
    ),
    "llm.c": Sample(
        "nanoGPT",
        "step    1/500 | loss 10.500000 (+nanz)| norm 2.5000 (+nanz)| lr 8.50e-06 | 1250.25 ms | "
        "58.6% bf16 MFU | 419430 tok/s\n"
        "val loss 9.5\n"
        "step    2/500 | loss 10.250000 (+0.52z)| norm 2.2500 (-0.10z)| lr 9.50e-06 | 1250.00 ms | "  # noqa: E501
        "58.6% bf16 MFU | 419430 tok/s\n",
        step=(1, 2),
        step_s=1.25,
        tokens=419430 * 1.25,
        loss=10.25,
        grad_norm=2.25,
        learning_rate=9.5e-06,
    ),
    "nanochat": Sample(
        "nanoGPT",
        "step 00010/21400 (0.05%) | loss: 9.250000 | grad norm: 0.5000 | lrm: 1.00 | dt: 1200.00ms"
        " | tok/sec: 430,000 | mfu: 45.00 | total time: 1.00m\n",
        step=(10,),
        step_s=1.2,
        tokens=516_000,
        loss=9.25,
        grad_norm=0.5,
    ),
    "modded-nanogpt, whose average has the warm-up in it": Sample(
        "nanoGPT",
        "step:10/4000 train_loss:6.5000 train_time:2610ms step_avg:261.00ms\n"
        "step:20/4000 train_loss:6.2500 train_time:3220ms step_avg:161.00ms\n"
        "step:20/4000 val_loss:6.5000 train_time:3221ms step_avg:161.05ms\n",
        step=(10, 20),
        step_s=0.061,
        loss=6.25,
        how="bar",
    ),
    "AWS FSDP": Sample(
        "AWS FSDP",
        "0: 2026-05-01 12:00:10,250 [INFO] __main__: Batch 1 Loss: 11.25000, Speed: 6.08 "
        "samples/sec, lr: 0.000031\n"
        "0: 2026-05-01 12:00:12,750 [INFO] __main__: Batch 2 Loss: 10.75000, Speed: 6.40 "
        "samples/sec, lr: 0.000063\n"
        "0: 2026-05-01 12:00:14,000 [INFO] __main__: Batch 2 Validation loss: 10.9\n",
        step=(1, 2),
        step_s=2.5,
        seq_per_s=6.4,
        loss=10.75,
        learning_rate=6.3e-05,
        at_s=BEGAN_S + 12.75,
        how="clock",
    ),
    "PyTorch/XLA, which counts in each epoch": Sample(
        "PyTorch/XLA",
        "".join(
            f"| Training Device=xla:0/{device} Epoch={epoch} Step={step} Loss={2.5 - epoch / 4:.5f}"  # noqa: E501
            f" Rate=300.00 GlobalRate=280.10 Time=12:00:{(epoch * 40 - 40 + step) * 3 // 10:02d}\n"
            for epoch in (1, 2)
            for step in (20, 40)
            for device in (0, 1)
        ),
        step=(20, 40, 60, 80),
        step_s=0.3,
        loss=2.0,
        how="bar",
    ),
    "verl": Sample(
        "verl",
        "(TaskRunner pid=77) step:1 - global_seqlen/min:900.000 - actor/pg_loss:0.125 - "
        "actor/grad_norm:0.250 - actor/lr:0.000 - timing_s/gen:60.000 - timing_s/step:120.500 - "
        "perf/total_num_tokens:65536.000 - perf/throughput:67.980\n"
        "(TaskRunner pid=77) step:2 - global_seqlen/min:900.000 - actor/pg_loss:np.float64(0.0625)"
        " - actor/grad_norm:0.500 - timing_s/gen:60.000 - timing_s/step:120.250 - "
        "perf/total_num_tokens:65536.000 - perf/throughput:67.980\n",
        step=(1, 2),
        step_s=120.25,
        tokens=65536,
        loss=0.0625,
        grad_norm=0.5,
    ),
    "NeMo Automodel": Sample(
        "NeMo Automodel",
        "2026-05-01 12:00:10 | INFO | root | step 5 | epoch 0 | loss 0.9500 | grad_norm 1.2500 | "
        "lr 1.00e-05 | mem 25.10 GiB | tps 10400.50(1300.06/gpu) | num_label_tokens 21000\n"
        "2026-05-01 12:01:20 | INFO | root | step 15 | epoch 0 | loss 0.7500 | grad_norm 1.5000 | "
        "lr 1.00e-05 | mem 25.10 GiB | tps 10400.50(1300.06/gpu) | num_label_tokens 21000\n"
        "2026-05-01 12:01:21 | INFO | root | [val] step 15 | epoch 0 | loss 0.9 | lr 1.00e-05 | "
        "num_label_tokens 900\n",
        step=(5, 15),
        step_s=7.0,
        tokens=10400.5 * 7,
        loss=0.75,
        grad_norm=1.5,
        learning_rate=1e-5,
        at_s=BEGAN_S + 80,
        how="clock",
    ),
    "nanotron": Sample(
        "nanotron",
        "[default0]:05/01/2026 12:00:10 [INFO|DP=0|PP=0|TP=0|ip-7]: iteration: 9 / 1000 | "
        "consumed_tokens: 9.44M | elapsed_time_per_iteration_ms: 1.25K | tokens_per_sec: 839K | "
        "tokens_per_sec_per_gpu: 105K | global_batch_size: 1.02K | lm_loss: 7.25 | lr: 0.0003 | "
        "model_tflops_per_gpu: 35.2 | grad_norm: 0.75\n",
        step=(9,),
        step_s=1.25,
        tokens=839_000 * 1.25,
        loss=7.25,
        grad_norm=0.75,
        learning_rate=3e-4,
        at_s=BEGAN_S + 10,
    ),
    "Levanter": Sample(
        "Levanter",
        "2026-05-01T12:00:10 - 0 - levanter - INFO - Progress on:train 100it/1.00kit "
        "rate:2.0it/s remaining:07:30 elapsed:01:00 postfix:loss=4.5\n"
        "2026-05-01T12:00:20 - 0 - levanter - INFO - Progress on:train 120it/1.00kit "
        "rate:2.0it/s remaining:07:20 elapsed:01:10 postfix:loss=4.25\n",
        step=(100, 120),
        step_s=0.5,
        loss=4.25,
        at_s=BEGAN_S + 20,
        how="bar",
    ),
    "DLLogger, which counts in each epoch": Sample(
        "DLLogger",
        "".join(
            f'DLLL {{"timestamp": "{BEGAN_S + 40 * epoch + step}", "elapsedtime": '
            f'"{40 * epoch + step}.25", "type": "LOG", "step": [{epoch}, {step}], '
            f'"data": {{"train.loss": {3.5 - epoch}, "lr": 0.0001}}}}\n'
            for epoch in (0, 1)
            for step in (20, 40)
        )
        + 'DLLL {"timestamp": "1", "type": "LOG", "step": [1], "data": {"val.loss": 9.5}}\n',
        step=(20, 40, 60, 80),
        step_s=1.0,
        loss=2.5,
        learning_rate=1e-4,
        at_s=BEGAN_S + 80,
        how="bar",
    ),
    "detectron2": Sample(
        "OpenMMLab",
        '{"data_time": 0.0036, "eta_seconds": 12.5, "iteration": 19, "lr": 0.0002, '
        '"time": 0.4125, "total_loss": 1.875, "loss_cls": 0.5}\n'
        '{"data_time": 0.0036, "eta_seconds": 12.5, "iteration": 39, "lr": 0.0002, '
        '"time": 0.425, "total_loss": 1.75, "loss_cls": 0.5}\n'
        '{"bbox/AP": 39.5, "iteration": 39}\n',
        step=(19, 39),
        step_s=0.425,
        loss=1.75,
        learning_rate=2e-4,
    ),
    "mmcv's text": Sample(
        "OpenMMLab",
        "2026-05-01 12:00:10,000 - mmdet - INFO - Epoch [2][100/777]\tlr: 2.000e-02, eta: 9:59:59,"
        " time: 0.625, data_time: 0.011, memory: 9120, loss_cls: 0.5, loss: 1.5000\n"
        "2026-05-01 12:01:10,000 - mmdet - INFO - Epoch [3][100/777]\tlr: 2.000e-02, eta: 9:59:59,"
        " time: 0.625, data_time: 0.011, memory: 9120, loss_cls: 0.5, loss: 1.2500\n",
        step=(877, 1654),
        step_s=0.625,
        loss=1.25,
        learning_rate=0.02,
        at_s=BEGAN_S + 70,
    ),
    "Megatron-Bridge's time alone": Sample(
        "Megatron",
        "Step Time : 15.25s GPU utilization: 412.10MODEL_TFLOP/s/GPU\n"
        "Step Time : 15.50s GPU utilization: 412.10MODEL_TFLOP/s/GPU\n",
        step=(1, 2),
        step_s=15.5,
    ),
    "NeMo's bar without a rate": Sample(
        "NxDT",
        "Epoch 0: :   0%|          | 20/500 [00:35:00<290:12:40, v_num=, reduced_train_loss=7.000, "  # noqa: E501
        "global_step=20.0, consumed_samples=7680.0, train_step_timing in s=2.125]\n"
        "Epoch 0: :   0%|          | 40/500 [00:35:42<290:12:40, v_num=, reduced_train_loss=6.750, "  # noqa: E501
        "global_step=40.0, consumed_samples=15360.0, train_step_timing in s=2.125, val_loss=9]\n",
        step=(20, 40),
        step_s=2.125,
        seq_per_s=384 / 2.125,
        loss=6.75,
        global_batch=384,
    ),
    "litgpt that counts batches from zero": Sample(
        "litgpt",
        "iter 19 step 20: iter time: 2150.00ms (optimizer.step)\n"
        "iter 20 step 21: iter time: 2125.00ms (optimizer.step)\n",
        step=(20, 21),
        step_s=2.125,
    ),
    "a bar with figures": Sample(
        "progress",
        "Steps:  10%|█         | 100/1000 [02:05<18:45,  1.25s/it, lr=1e-5, step_loss=0.125]\r"
        "Steps:  11%|█         | 110/1000 [02:20<18:45,  1.25s/it, lr=1e-5, step_loss=0.0625]\n",
        step=(100, 110),
        step_s=1.5,
        loss=0.0625,
        learning_rate=1e-5,
        how="bar",
    ),
    "Lightning": Sample(
        "Lightning",
        "Epoch 0:   0%|          | 0/500 [00:00<?, ?it/s]\r"
        "Epoch 0:  20%|██        | 100/500 [00:50<03:20,  2.00it/s, v_num=3, train_loss=2.500]\r"
        "Epoch 0:  40%|████      | 200/500 [01:40<02:30,  2.00it/s, v_num=3, train_loss=2.250]\n",
        step=(100, 200),
        step_s=0.5,
        loss=2.25,
        how="bar",
    ),
    "Lightning's bar by Rich": Sample(
        "Lightning",
        "\x1b[2KEpoch 1/9 \x1b[38;2;98;6;224m━━━━━━━━━━\x1b[0m\x1b[38;2;98;6;224m╸\x1b[0m"
        "\x1b[38;5;237m━━━━━━\x1b[0m 100/500 \x1b[2m0:00:50 • 0:03:20\x1b[0m \x1b[2;4m2.00it/s"
        "\x1b[0m \x1b[3mv_num: 3.000 train_loss: 2.500\x1b[0m\n"
        "Epoch 1/9 ━━━━━━━━━━━━━━━╸━━━━━━━━━━━━ 200/500 0:01:40 • 0:02:30 2.00it/s v_num: 3.000 "
        "train_loss: 2.250\n"
        "Validation ━━━━━━━━━━━━━━━━━━━━━━━━━━━━ 10/10 0:00:05 • 0:00:00 2.00it/s\n",
        step=(600, 700),
        step_s=0.5,
        loss=2.25,
        how="bar",
    ),
    "Lightning's bar by Rich of 2022, without an end": Sample(
        "Lightning",
        "Epoch 0    ---------------- ---- 100/-- 0:00:50 • -:--:-- 2.00it/s loss: 2.5 \n"
        "Epoch 0    ---------------- ---- 200/-- 0:01:40 • -:--:-- 2.00it/s loss: 2.25 \n",
        step=(100, 200),
        step_s=0.5,
        loss=2.25,
        how="bar",
    ),
    "Lightning without figures": Sample(
        "Lightning",
        "Epoch 0:  20%|██        | 100/500 [00:50<03:20,  2.00it/s, v_num=3]\r"
        "Epoch 1:  20%|██        | 100/500 [00:50<03:20,  2.00it/s, v_num=3]\n",
        step=(100, 600),
        step_s=0.5,
        how="bar",
    ),
    "a trainer's bar alone": Sample(
        "progress",
        "100%|██████████| 3/3 [00:01<00:00,  2.90it/s]\n"
        "  2%|▎         | 20/1000 [01:00<49:00,  3.00s/it]\r"
        "  4%|▍         | 40/1000 [02:00<48:00,  3.00s/it]\n",
        step=(20, 40),
        step_s=3.0,
        how="bar",
    ),
    "JSON lines with a time": Sample(
        "JSON lines",
        '{"step": 10, "loss": 2.5, "step_time": 1.25, "lr": 0.0003, "tokens_per_sec": 16000}\n'
        '{"step": 20, "loss": 2.25, "step_time": 1.5, "lr": 0.0003, "tokens_per_sec": 16000, '
        '"eval": {"eval_loss": 9.5}}\n',
        step=(10, 20),
        step_s=1.5,
        tokens=24000,
        loss=2.25,
        learning_rate=3e-4,
    ),
    "JSON lines with a rate": Sample(
        "JSON lines",
        '{"train/global_step": 10, "train/loss": 2.5, "train/steps_per_second": 0.8}\n'
        '{"train/global_step": 20, "train/loss": 2.25, "train/steps_per_second": 0.8, '
        '"global_batch_size": 64}\n',
        step=(10, 20),
        step_s=1.25,
        seq_per_s=51.2,
        loss=2.25,
        global_batch=64,
    ),
    "JSON lines with moments": Sample(
        "JSON lines",
        '{"timestamp": "2026-05-01T12:00:00Z", "iteration": 10, "metrics": {"loss": 2.5}}\n'
        '{"timestamp": "2026-05-01T12:00:30Z", "iteration": 20, "metrics": {"loss": 2.25}}\n',
        step=(10, 20),
        step_s=3.0,
        loss=2.25,
        at_s=BEGAN_S + 30,
        how="clock",
    ),
    "JSON lines with a clock": Sample(
        "JSON lines",
        '{"current_steps": 10, "total_steps": 60, "loss": 0.75, "lr": 1.5e-05, "epoch": 0.5, '
        '"percentage": 16.67, "elapsed_time": "0:02:50", "remaining_time": "0:14:10"}\n'
        '{"current_steps": 20, "total_steps": 60, "loss": 0.5, "lr": 1.25e-05, "epoch": 1.0, '
        '"percentage": 33.33, "elapsed_time": "0:05:40", "remaining_time": "0:11:20"}\n',
        step=(10, 20),
        step_s=17.0,
        loss=0.5,
        learning_rate=1.25e-05,
        how="bar",
    ),
    "JSON lines without spaces": Sample(
        "JSON lines",
        '{"step":10,"loss":2.5,"step_time_ms":1250}\n{"step":20,"loss":2.25,"step_time_ms":1500}\n',
        step=(10, 20),
        step_s=1.5,
        loss=2.25,
    ),
    "JSON lines with evaluations": Sample(
        "JSON lines",
        '{"step": 10, "train/loss": 2.5, "train/step_time": 1.25, "eval/samples_per_second": 9}\n'
        '{"step": 10, "eval/loss": 7.5, "eval/steps_per_second": 9, "ts": 7}\n',
        step=(10,),
        step_s=1.25,
        loss=2.5,
    ),
    "JSON lines with Unix seconds": Sample(
        "JSON lines",
        f'{{"_step": 10, "loss": 2.5, "_timestamp": {BEGAN_S}}}\n'
        f'{{"_step": 20, "loss": 2.25, "_timestamp": {BEGAN_S + 30}}}\n',
        step=(10, 20),
        step_s=3.0,
        loss=2.25,
        at_s=BEGAN_S + 30,
        how="clock",
    ),
}
# Families whose samples are in test_formats.py.
ELSEWHERE = {"Megatron", "NxDT", "Optimum-Neuron"}


@pytest.mark.parametrize("name", SAMPLES)
def test_a_sample_of_each_family_is_read(name: str) -> None:
    sample = SAMPLES[name]
    log, steps = read(sample.text), steps_of(sample.text)

    assert log.family == sample.family
    assert tuple(steps.step) == sample.step
    for field in (
        "step_s",
        "seq_per_s",
        "tokens",
        "loss",
        "grad_norm",
        "learning_rate",
        "at_s",
    ):
        found, expected = getattr(steps, field)[-1], getattr(sample, field)
        np.testing.assert_allclose(found, expected, rtol=1e-9, err_msg=field)
    np.testing.assert_allclose(steps.global_batch, sample.global_batch)
    assert steps.how == sample.how
    assert log.n_damaged == 0


def test_each_family_has_a_sample() -> None:
    assert {sample.family for sample in SAMPLES.values()} | ELSEWHERE == set(FAMILIES)


def slow_bar(*, s_per_step: int, rate: float) -> str:
    """Write a bar whose clock says one thing, and whose rate over the batch another."""
    states = [
        nxdt(
            n,
            clock=f"{n * s_per_step // 60}:{n * s_per_step % 60:02d}",
            extra=f", throughput={rate}",
        )
        for n in range(20, 25)
    ]
    return "\r".join(states).replace("18.94s/it", f"{s_per_step}.0s/it")


def test_a_bar_s_clock_counts_where_the_rate_contradicts_it() -> None:
    steps = steps_of(slow_bar(s_per_step=25, rate=8.68))

    assert steps.step_s.tolist() == [25.0] * 5
    assert steps.how == "bar"
    assert [name for name, _ in steps.clocks] == ["batch", "bar"]
    np.testing.assert_allclose([step_s for _, step_s in steps.clocks], [1024 / 8.68, 25.0])
    np.testing.assert_allclose(steps.seq_per_s, 1024 / 25.0)


def test_a_rate_that_agrees_with_the_bar_is_finer() -> None:
    steps = steps_of(slow_bar(s_per_step=25, rate=40.5))

    np.testing.assert_allclose(steps.step_s, 1024 / 40.5)
    assert (steps.how, steps.clocks) == ("batch", ())


def test_fairseq_s_clock_counts_where_its_rate_contradicts_it() -> None:
    sample = SAMPLES["fairseq"].text.replace("wps=20480.0", "wps=409.6")
    steps = steps_of(sample)

    np.testing.assert_array_equal(steps.step_s, [np.nan, 0.5])
    assert [name for name, _ in steps.clocks] == ["batch", "bar"]


def test_a_logged_step_time_stays_and_the_contradiction_is_said() -> None:
    steps = steps_of("\n".join(f"{at(30.0 * n)} {neuronx(n)}" for n in range(5)))

    assert steps.step_s.tolist() == [9.2] * 5
    assert steps.clocks == (("clock", 30.0), ("told", 9.2))


@pytest.mark.parametrize(
    "times",
    [
        [9.2, 18.4, 27.6, 1_036.8, 1_046.0],
        [46.0, 46.0, 46.0, 46.0, 46.0, 92.0, 92.0, 92.0, 92.0, 92.0],
    ],
    ids=["a pause", "lines in batches"],
)
def test_pauses_and_lines_written_in_batches_contradict_nothing(times: list[float]) -> None:
    lines = [f"{at(second)} {neuronx(n)}" for n, second in enumerate(times)]

    assert steps_of("\n".join(lines)).clocks == ()


def test_a_bar_that_counts_batches_of_accumulated_gradients_has_the_time_of_a_step() -> None:
    (state,) = [nxdt(9, clock="3:00")]
    steps = steps_of(state.replace("10/1000", "40/4000").replace("18.94s/it", "4.50s/it"))

    assert steps.step_s.tolist() == [18.0]
