"""Which coder a codec has."""

from __future__ import annotations

from functools import lru_cache

from taco.codec.asymmetric import AsymmetricCoder
from taco.codec.base import Coder
from taco.codec.baselines import CastCoder, NoCoder, TensorCoder
from taco.codec.group import GroupCoder
from taco.codec.tahquant import TahQuantCoder
from taco.config import AsymmetricCodec, CastCodec, Codec, GroupCodec, NoCodec, TahQuantCodec, TensorCodec

_CODERS: dict[type[Codec], type[Coder]] = {
    NoCodec: NoCoder,
    CastCodec: CastCoder,
    TensorCodec: TensorCoder,
    AsymmetricCodec: AsymmetricCoder,
    TahQuantCodec: TahQuantCoder,
}
BACKENDS = ("auto", "reference", "cuda")


@lru_cache(maxsize=256)
def coder(config: Codec, backend: str = "auto") -> Coder:
    """The coder of a codec, one object per (config, backend).

    backend: 'auto' runs CUDA kernels for group codecs on CUDA tensors and plain torch elsewhere; 'reference' runs plain
    torch on every device; 'cuda' only the kernels. Raises `ValueError` for an unknown backend or configuration class.
    """
    if backend not in BACKENDS:
        raise ValueError(f"got backend={backend!r}; need one of {', '.join(BACKENDS)}; because those paths exist")
    if type(config) is GroupCodec:
        return GroupCoder(config, backend)
    if type(config) not in _CODERS:
        raise ValueError(f"got {config!r}; need a codec of taco.config; because coders are chosen by its class")
    return _CODERS[type(config)](config)
