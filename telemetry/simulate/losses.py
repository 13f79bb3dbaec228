"""Training loss of a simulated run: a power law of model size and tokens, with noise."""

import math

import numpy as np

from telemetry import catalog
from telemetry.blocks import FloatArray, IntArray
from telemetry.simulate.noise import mixed, windows
from telemetry.simulate.script import Script

# Hoffmann et al., the parametric fit of section D.3: nats per token.
LEAST, SIZE, TOKENS = 1.69, 406.4, 410.7
SIZE_POWER, TOKENS_POWER = 0.34, 0.28
# Deviation of a step's loss whose batch is a million tokens; smaller batches scatter more.
NOISE, NOISE_TOKENS, MAX_NOISE = 0.02, 1e6, 0.2


def expected_loss(n_params: float, n_tokens: FloatArray, *, vocab_size: int) -> FloatArray:
    """Compute the loss of a language model after a number of tokens.

    Parameters
    ----------
    n_params : of the model
    n_tokens : (n_steps,) trained so far
    vocab_size : number of tokens in its vocabulary

    Returns
    -------
    (n_steps,) nats per token, no more than guessing costs: ``log(vocab_size)``.

    Notes
    -----
    ``1.69 + 406.4 / n_params ** 0.34 + 410.7 / n_tokens ** 0.28``. The fit is of whole training
    runs, one point each; taken along a run, with its learning rate still high, it is a little
    too low. Warm-up of the learning rate, spikes and the end of a schedule are left out.

    References
    ----------
    J. Hoffmann et al., "Training Compute-Optimal Large Language Models", arXiv:2203.15556,
    equation 10.

    Seven billion parameters after a trillion tokens:

    >>> expected_loss(7e9, np.array([1e12]), vocab_size=32000).round(3)
    array([2.052])
    """
    expected = (
        LEAST + SIZE / n_params**SIZE_POWER + TOKENS / np.maximum(n_tokens, 1) ** TOKENS_POWER
    )
    return np.asarray(np.minimum(expected, math.log(vocab_size)))


def losses(script: Script, step: IntArray) -> FloatArray | None:
    """Return the loss of some steps: (n_steps,); None for a model outside the law.

    A step's loss depends on the seed, the run and its number. The scatter of steps is
    our assumption: 0.02 at a batch of a million tokens, by the root of the batch elsewhere.
    """
    model = catalog.model(script.run.model)
    if model.kind != "decoder":
        return None
    batch = script.run.global_batch * script.run.seq_len
    noise = windows("normal", mixed(script.key("loss"), step), 1)[:, 0]
    scatter = min(MAX_NOISE, NOISE * math.sqrt(NOISE_TOKENS / batch))
    expected = expected_loss(model.params, (step + 1.0) * batch, vocab_size=model.vocab)
    return np.asarray(expected + scatter * noise)
