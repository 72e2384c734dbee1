"""Model shapes."""

from __future__ import annotations

from dataclasses import replace

from taco.config import Model
from taco.recipes.names import by_name


def _gpt(name: str, layers: int, hidden: int, heads: int, *, vocab: int = 50304, max_seq: int = 2048) -> Model:
    return Model(
        name=name, arch="gpt", layers=layers, hidden=hidden, heads=heads, kv_heads=heads,
        ffn=4 * hidden, vocab=vocab, max_seq=max_seq,
    )  # fmt: skip


def _qwen(name: str, layers: int, hidden: int, heads: int, kv_heads: int, ffn: int, **more) -> Model:
    shape = {"vocab": 151936, "max_seq": 32768, "tied": True, "norm_eps": 1e-6} | more
    return Model(name=name, arch="qwen", layers=layers, hidden=hidden, heads=heads, kv_heads=kv_heads, ffn=ffn, **shape)


MODELS: dict[str, Model] = by_name(
    _gpt("gpt-mini", 4, 128, 8, vocab=1024, max_seq=256),
    _gpt("gpt-125m", 12, 768, 12),
    _gpt("gpt-350m", 24, 1024, 16),
    _gpt("gpt-1.3b", 24, 2048, 16),
    _gpt("gpt-2.7b", 32, 2560, 32),
    _gpt("gpt-6.7b", 32, 4096, 32),
    _gpt("gpt-13b", 40, 5120, 40),
    _qwen("qwen-mini", 4, 128, 16, 8, 352, vocab=1024, max_seq=256),
    _qwen("qwen2.5-0.5b", 24, 896, 14, 2, 4864),
    # the 0.5b shape with heads that split over 8 tensor-parallel ranks
    _qwen("qwen-0.5b-tp8", 24, 1024, 16, 8, 4864),
    # and with the vocabulary that the texts are in
    _qwen("qwen-0.5b-gpt2", 24, 1024, 16, 8, 4864, vocab=50304),
    _qwen("qwen2.5-1.5b", 28, 1536, 12, 2, 8960),
    _qwen("qwen2.5-3b", 36, 2048, 16, 2, 11008),
    _qwen("qwen2.5-7b", 28, 3584, 28, 4, 18944, vocab=152064, tied=False),
)
# 4 of 768 channels hold four fifths of the residual stream's energy at the start
OUTLIERS = replace(MODELS["gpt-125m"], name="gpt-125m-outliers", outlier_channels=4, outlier_scale=30.0)
MODELS[OUTLIERS.name] = OUTLIERS
