"""Qwen2 / Qwen2.5: rotary positions, RMSNorm, grouped-query attention with QKV bias, SwiGLU. Hugging Face names.

symbol    shape                  meaning
tokens    [batch, seq] int64     token ids below config.vocab
x         [batch, seq, hidden]   residual stream
logits    [batch, seq, vocab]
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from taco.config import Model
from taco.models.layers import RotaryEmbedding, attention


class Attention(nn.Module):
    """Grouped-query causal self-attention: [batch, seq, hidden] -> same.

    Positions are rotated after the projections, when the tensors hold the whole sequence also under sequence
    parallelism.
    """

    def __init__(self, config: Model, rotary: RotaryEmbedding) -> None:
        super().__init__()
        hidden, kv_width = config.hidden, config.kv_heads * config.head_dim
        self.head_dim = config.head_dim
        self.rotary = rotary
        self.q_proj = nn.Linear(hidden, hidden)
        self.k_proj = nn.Linear(hidden, kv_width)
        self.v_proj = nn.Linear(hidden, kv_width)
        self.o_proj = nn.Linear(hidden, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        # -1: the number of heads is whatever the (possibly sharded) projection holds
        q, k, v = (proj(x).unflatten(-1, (-1, self.head_dim)) for proj in (self.q_proj, self.k_proj, self.v_proj))
        return self.o_proj(attention(self.rotary(q), self.rotary(k), v))


class MLP(nn.Module):
    """SwiGLU: down(silu(gate(x)) * up(x))."""

    def __init__(self, config: Model) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden, config.ffn, bias=False)
        self.up_proj = nn.Linear(config.hidden, config.ffn, bias=False)
        self.down_proj = nn.Linear(config.ffn, config.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, config: Model, rotary: RotaryEmbedding) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(config.hidden, eps=config.norm_eps)
        self.self_attn = Attention(config, rotary)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden, eps=config.norm_eps)
        self.mlp = MLP(config)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x))
        return x + self.mlp(self.post_attention_layernorm(x))


class Decoder(nn.Module):
    """Embedding (first stage), the chosen blocks, final norm (last stage)."""

    def __init__(self, config: Model, layers: range, *, first: bool, last: bool) -> None:
        super().__init__()
        rotary = RotaryEmbedding(config.head_dim, config.rope_theta)
        self.embed_tokens = nn.Embedding(config.vocab, config.hidden) if first else None
        self.layers = nn.ModuleDict({str(i): Block(config, rotary) for i in layers})
        self.norm = nn.RMSNorm(config.hidden, eps=config.norm_eps) if last else None

    def forward(self, x: Tensor) -> Tensor:
        if self.embed_tokens is not None:
            x = self.embed_tokens(x)
        for block in self.layers.values():
            x = block(x)
        return x if self.norm is None else self.norm(x)


class Qwen(nn.Module):
    """A whole Qwen2, or the stage of it that holds blocks `layers`.

    forward: tokens on the first stage, hidden states elsewhere -> logits on the last stage, hidden states elsewhere.
    """

    embedding_name = "model.embed_tokens.weight"

    def __init__(self, config: Model, layers: range, *, first: bool = True, last: bool = True) -> None:
        super().__init__()
        self.config = config
        self.model = Decoder(config, layers, first=first, last=last)
        self.lm_head = nn.Linear(config.hidden, config.vocab, bias=False) if last else None
        self.tie()

    @property
    def blocks(self) -> nn.ModuleDict:
        """The blocks of this stage, keyed by their number in the whole model."""
        return self.model.layers

    @property
    def embedding(self) -> nn.Embedding | None:
        return self.model.embed_tokens

    def tie(self) -> None:
        """Let the head share the embedding's parameter; to be called again after either was replaced. No effect
        when untied or when the two live on different stages (their gradients then have to be summed)."""
        if self.config.tied and self.embedding is not None and self.lm_head is not None:
            self.lm_head.weight = self.embedding.weight

    def forward(self, x: Tensor) -> Tensor:
        x = self.model(x)
        return x if self.lm_head is None else self.lm_head(x)
