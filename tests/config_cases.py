"""The smallest run that can be configured, for the tests of taco.config."""

from __future__ import annotations

from taco.config import Data, Model, Run

TINY = Model(name="tiny", arch="gpt", layers=2, hidden=32, heads=4, kv_heads=4, ffn=64, vocab=64, max_seq=32)


def tiny_run(**changes) -> Run:
    """A run of TINY with these fields."""
    return Run(**{"name": "r", "model": TINY, "data": Data(corpus="data/tiny", seq=16)} | changes)
