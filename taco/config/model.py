"""The shape of a model."""

from __future__ import annotations

from dataclasses import dataclass

from taco.config.check import at_least, one_of, positive, require


@dataclass(frozen=True, kw_only=True)
class Model:
    """A decoder-only transformer.

    arch: 'gpt' is GPT-2/3 (learned positions, LayerNorm, GELU), 'qwen' is Qwen2.5 (RoPE, RMSNorm,
        SwiGLU, grouped-query attention, QKV bias).
    vocab is the embedding's row count (tokens must be below it).
    outlier_channels, outlier_scale: in the initial weights, how many channels of the residual stream every block writes
        to so many times as strongly (0: none). Large trained models have such channels; here they test codecs.
    """

    name: str
    arch: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    ffn: int
    vocab: int
    max_seq: int
    tied: bool = True
    rope_theta: float = 1e6
    norm_eps: float = 1e-5
    outlier_channels: int = 0
    outlier_scale: float = 1.0

    def __post_init__(self) -> None:
        one_of("arch", self.arch, ("gpt", "qwen"), "these architectures exist")
        at_least(
            1,
            "it is a size",
            layers=self.layers,
            hidden=self.hidden,
            heads=self.heads,
            kv_heads=self.kv_heads,
            ffn=self.ffn,
            vocab=self.vocab,
            max_seq=self.max_seq,
        )
        positive(
            "it is a frequency base or keeps a division finite", rope_theta=self.rope_theta, norm_eps=self.norm_eps
        )
        positive("it multiplies weights", outlier_scale=self.outlier_scale)
        require(
            0 <= self.outlier_channels <= self.hidden,
            f"outlier_channels={self.outlier_channels}",
            f"0 to hidden={self.hidden}",
            "they are channels of the hidden states",
        )
        require(
            self.hidden % self.heads == 0,
            f"hidden={self.hidden}, heads={self.heads}",
            "heads to divide hidden",
            "every head has hidden/heads channels",
        )
        require(
            self.heads % self.kv_heads == 0,
            f"heads={self.heads}, kv_heads={self.kv_heads}",
            "kv_heads to divide heads",
            "query heads share key/value heads in equal groups",
        )
        require(
            self.arch != "gpt" or self.kv_heads == self.heads,
            f"kv_heads={self.kv_heads} with arch='gpt'",
            f"kv_heads={self.heads}",
            "GPT-2 has no grouped-query attention",
        )
        require(
            self.arch != "qwen" or self.head_dim % 2 == 0,
            f"hidden={self.hidden}, heads={self.heads} with arch='qwen'",
            "an even number of channels per head",
            "rotary positions turn channels in pairs",
        )

    @property
    def head_dim(self) -> int:
        return self.hidden // self.heads
