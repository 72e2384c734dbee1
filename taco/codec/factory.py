"""Which coder a codec has."""

from __future__ import annotations

from dataclasses import is_dataclass
from functools import lru_cache

from taco.codec.asymmetric import AsymmetricCoder
from taco.codec.backend import KernelCoder
from taco.codec.base import Coder
from taco.codec.baselines import CastCoder, NoCoder, TensorCoder
from taco.codec.group import GroupCoder
from taco.codec.tahquant import TahQuantCoder
from taco.config import (
    CODEC_CLASSES,
    AsymmetricCodec,
    CastCodec,
    Codec,
    GroupCodec,
    NoCodec,
    TahQuantCodec,
    TensorCodec,
)

_CODERS: dict[type[Codec], type[Coder]] = {
    GroupCodec: GroupCoder,
    NoCodec: NoCoder,
    CastCodec: CastCoder,
    TensorCodec: TensorCoder,
    AsymmetricCodec: AsymmetricCoder,
    TahQuantCodec: TahQuantCoder,
}
_OURS = frozenset(_CODERS)
BACKENDS = ("auto", "reference", "cuda")


@lru_cache(maxsize=256)
def coder(config: Codec, backend: str = "auto") -> Coder:
    """The coder of a codec, one object per (config, backend).

    backend of codecs that have kernels (group, min/max, TAH-Quant): 'auto' runs them on CUDA tensors and plain torch
    elsewhere; 'reference' runs plain torch on every device; 'cuda' only the kernels. The other codecs are plain torch.
    A clipped group codec has no kernels: 'auto' is plain torch. Raises `ValueError` for an unknown backend or
    configuration class, and for 'cuda' where there are no kernels.
    """
    if backend not in BACKENDS:
        raise ValueError(f"got backend={backend!r}; need one of {', '.join(BACKENDS)}; because those paths exist")
    if type(config) not in _CODERS:
        if isinstance(config, Codec):
            kind = type(config).__name__
            raise ValueError(
                f"got {config!r} of a class without a coder; need taco.codec.register({kind}, ...) with its Coder, in "
                "every process, before its first use; because its class chooses the coder"
            )
        raise ValueError(
            f"got {config!r}; need a codec, e.g. taco.recipes.preset('int8'); because its class chooses the coder"
        )
    chosen = _CODERS[type(config)]
    return chosen(config, backend) if issubclass(chosen, KernelCoder) else chosen(config)


def register(config_class: type[Codec], coder_class: type[Coder]) -> None:
    """Let codecs of `config_class`, a frozen dataclass of yours, be coded by `coder_class(config)` everywhere.

    Then communicators, policies and measurements take them, and runs in JSON name the class as a codec's 'type'. Every
    process registers, before its first use. Raises `ValueError` for other classes and for names that are ours.
    """
    ok = isinstance(config_class, type) and issubclass(config_class, Codec) and is_dataclass(config_class)
    if not ok or not (isinstance(coder_class, type) and issubclass(coder_class, Coder)):
        raise ValueError(
            f"got {config_class!r} with {coder_class!r}; need a dataclass below taco.config.Codec and a class below "
            "taco.codec.Coder; because the one chooses the other"
        )
    if config_class.__name__ in {c.__name__ for c in _OURS}:
        raise ValueError(f"got {config_class.__name__}; need another name; because that codec is taco's own")
    _CODERS[config_class] = coder_class
    CODEC_CLASSES[config_class.__name__] = config_class
    coder.cache_clear()
