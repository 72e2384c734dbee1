"""Configurations to and from plain JSON data."""

from __future__ import annotations

from dataclasses import asdict, fields, is_dataclass
from typing import Any

from taco.config.check import one_of, require
from taco.config.codec import AsymmetricCodec, CastCodec, Codec, GroupCodec, NoCodec, TahQuantCodec, TensorCodec
from taco.config.run import Data, Model, Parallel, Policy, Run, Train

CODEC_CLASSES = {c.__name__: c for c in (NoCodec, CastCodec, TensorCodec, GroupCodec, AsymmetricCodec, TahQuantCodec)}


def to_dict(config: Any) -> dict:
    """Plain JSON data of a configuration; codecs carry their class under 'type'."""
    if isinstance(config, Codec):
        return {"type": type(config).__name__, **asdict(config)}
    return {f.name: to_dict(v) if is_dataclass(v := getattr(config, f.name)) else v for f in fields(config)}


def _build(cls: type, data: dict, where: str) -> Any:
    known = {f.name for f in fields(cls)}
    unknown = sorted(set(data) - known)
    require(
        not unknown,
        f"unknown field {', '.join(unknown)} in {where}",
        f"fields among {', '.join(sorted(known))}",
        "a misspelt field would be ignored",
    )
    return cls(**data)


def codec_from_dict(data: dict) -> Codec:
    """Inverse of `to_dict` for a codec. Raises `ConfigError` for an unknown type or field."""
    kind = data.get("type")
    one_of("codec type", kind, tuple(CODEC_CLASSES), "these codecs exist")
    return _build(CODEC_CLASSES[kind], {k: v for k, v in data.items() if k != "type"}, kind)


def run_from_dict(data: dict) -> Run:
    """Inverse of `to_dict` for a run. Raises `ConfigError` for an unknown field at any level."""
    data = dict(data)
    policy = {k: codec_from_dict(v) if isinstance(v, dict) else v for k, v in data.pop("policy", {}).items()}
    parts: dict[str, Any] = {"policy": _build(Policy, policy, "policy")}
    for name, cls in (("model", Model), ("parallel", Parallel), ("data", Data), ("train", Train)):
        if name in data:
            parts[name] = _build(cls, data.pop(name), name)
    return _build(Run, {**data, **parts}, "run")
