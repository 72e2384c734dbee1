"""GPT-2/3: learned positions, LayerNorm before each sublayer, GELU, biases everywhere. Hugging Face names.

    symbol    shape                  meaning
    tokens    [batch, seq] int64     token ids below config.vocab
    x         [batch, seq, hidden]   residual stream
    logits    [batch, seq, vocab]

The one difference to Hugging Face's names: the fused c_attn is kept as q_proj, k_proj, v_proj, because a rank's
share of a fused matrix is not a contiguous slice. Weights are nn.Linear's [out, in]; taco.models.hf converts.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from taco.config import Model
from taco.models.layers import attention


class Attention(nn.Module):
    """Multi-head causal self-attention: [batch, seq, hidden] -> same."""

    def __init__(self, config: Model) -> None:
        super().__init__()
        hidden = config.hidden
        self.head_dim = config.head_dim
        self.q_proj = nn.Linear(hidden, hidden)
        self.k_proj = nn.Linear(hidden, hidden)
        self.v_proj = nn.Linear(hidden, hidden)
        self.c_proj = nn.Linear(hidden, hidden)

    def forward(self, x: Tensor) -> Tensor:
        # -1: the number of heads is whatever the (possibly sharded) projection holds
        q, k, v = (proj(x).unflatten(-1, (-1, self.head_dim)) for proj in (self.q_proj, self.k_proj, self.v_proj))
        return self.c_proj(attention(q, k, v))


class MLP(nn.Module):
    """hidden -> ffn -> GELU (tanh form) -> hidden."""

    def __init__(self, config: Model) -> None:
        super().__init__()
        self.c_fc = nn.Linear(config.hidden, config.ffn)
        self.c_proj = nn.Linear(config.ffn, config.hidden)

    def forward(self, x: Tensor) -> Tensor:
        return self.c_proj(F.gelu(self.c_fc(x), approximate="tanh"))


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, config: Model) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(config.hidden, eps=config.norm_eps)
        self.attn = Attention(config)
        self.ln_2 = nn.LayerNorm(config.hidden, eps=config.norm_eps)
        self.mlp = MLP(config)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class Transformer(nn.Module):
    """Embedding (first stage), the chosen blocks, final norm (last stage)."""

    def __init__(self, config: Model, layers: range, *, first: bool, last: bool) -> None:
        super().__init__()
        self.max_seq = config.max_seq
        self.wte = nn.Embedding(config.vocab, config.hidden) if first else None
        self.wpe = nn.Embedding(config.max_seq, config.hidden) if first else None
        self.h = nn.ModuleDict({str(i): Block(config) for i in layers})
        self.ln_f = nn.LayerNorm(config.hidden, eps=config.norm_eps) if last else None

    def forward(self, x: Tensor) -> Tensor:
        if self.wte is not None:
            seq = x.shape[1]
            if seq > self.max_seq:
                raise ValueError(
                    f"got {seq} tokens; need at most max_seq={self.max_seq}; because positions are learned"
                )
            # positions go through wpe as their own [seq] input, so that sequence parallelism can slice them
            x = self.wte(x) + self.wpe(torch.arange(seq, device=x.device))
        for block in self.h.values():
            x = block(x)
        return x if self.ln_f is None else self.ln_f(x)


class GPT(nn.Module):
    """A whole GPT, or the stage of it that holds blocks `layers`.

    forward: tokens on the first stage, hidden states elsewhere -> logits on the last stage, hidden states elsewhere.
    Raises ValueError for more tokens than positions.
    """

    embedding_name = "transformer.wte.weight"

    def __init__(self, config: Model, layers: range, *, first: bool = True, last: bool = True) -> None:
        super().__init__()
        self.config = config
        self.transformer = Transformer(config, layers, first=first, last=last)
        self.lm_head = nn.Linear(config.hidden, config.vocab, bias=False) if last else None
        self.tie()

    @property
    def blocks(self) -> nn.ModuleDict:
        """The blocks of this stage, keyed by their number in the whole model."""
        return self.transformer.h

    @property
    def embedding(self) -> nn.Embedding | None:
        return self.transformer.wte

    def tie(self) -> None:
        """Let the head share the embedding's parameter; to be called again after either was replaced. No effect
        when untied or when the two live on different stages (their gradients then have to be summed)."""
        if self.config.tied and self.embedding is not None and self.lm_head is not None:
            self.lm_head.weight = self.embedding.weight

    def forward(self, x: Tensor) -> Tensor:
        x = self.transformer(x)
        return x if self.lm_head is None else self.lm_head(x)
