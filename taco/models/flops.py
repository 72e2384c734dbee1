"""How many parameters a model has and how many floating-point operations a training token costs."""

from __future__ import annotations

from taco.config import Model


def _matmul_weights(config: Model) -> int:
    """Weights that a token is multiplied with: every block's matrices and the head (tied or not)."""
    kv_width = config.kv_heads * config.head_dim
    attention = config.hidden * (2 * config.hidden + 2 * kv_width)
    mlp = config.hidden * config.ffn * (2 if config.arch == "gpt" else 3)
    return config.layers * (attention + mlp) + config.vocab * config.hidden


def parameters(config: Model) -> int:
    """Number of parameters; a tied head counts once."""
    hidden, kv_width = config.hidden, config.kv_heads * config.head_dim
    if config.arch == "gpt":
        biases = 4 * hidden + config.ffn + hidden
        norms = 4 * hidden
        rest = config.layers * (biases + norms) + 2 * hidden + config.max_seq * hidden
    else:
        rest = config.layers * (hidden + 2 * kv_width + 2 * hidden) + hidden
    untied = 0 if config.tied else config.vocab * hidden
    return _matmul_weights(config) + rest + untied


def flops_per_token(config: Model, seq: int, *, causal: bool = False) -> float:
    """Floating-point operations of forward and backward for one token of a sequence of `seq` tokens.

    6 N + 12 layers hidden seq (PaLM, arXiv 2204.02311, appendix B): a multiply-add is 2 operations, backward costs
    twice forward; N is the number of weights in matrix products: the head counts also when tied, the embedding
    look-up does not. The second term is q k^T and the product with v over the full square, the convention of most
    published utilisation figures; causal=True counts the lower triangle that a causal kernel computes, half of it.
    Norms, activations and recomputation are not counted.
    """
    attention = 12.0 * config.layers * config.hidden * seq
    return 6.0 * _matmul_weights(config) + (attention / 2 if causal else attention)
