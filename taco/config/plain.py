"""Configurations to and from plain JSON data."""

from __future__ import annotations

import json
from dataclasses import MISSING, asdict, fields, is_dataclass
from typing import Any

from taco.config.check import ConfigError, one_of, require
from taco.config.codec import AsymmetricCodec, CastCodec, Codec, GroupCodec, NoCodec, TahQuantCodec, TensorCodec
from taco.config.grid import Parallel
from taco.config.model import Model
from taco.config.policy import Override, Policy
from taco.config.run import Data, Run, Train

CODEC_CLASSES = {c.__name__: c for c in (NoCodec, CastCodec, TensorCodec, GroupCodec, AsymmetricCodec, TahQuantCodec)}
_PLAIN_TYPES: dict[str, Any] = {"int": int, "float": (int, float), "bool": bool, "str": str}


def to_dict(config: Any) -> dict:
    """Plain JSON data of a configuration; codecs carry their class under 'type'."""
    if isinstance(config, Codec):
        return {"type": type(config).__name__, **asdict(config)}
    return {f.name: _plain(getattr(config, f.name)) for f in fields(config)}


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    return to_dict(value) if is_dataclass(value) else value


def _check_types(cls: type, data: dict, where: str) -> None:
    for f in fields(cls):
        allowed = _PLAIN_TYPES.get(f.type)
        value = data.get(f.name)
        ok = (
            f.name not in data
            or not allowed
            or (isinstance(value, allowed) and isinstance(value, bool) is (f.type == "bool"))
        )
        require(
            ok,
            f"{where}.{f.name}={value!r}",
            f"type {f.type}",
            "a value of another type would be taken for something else",
        )


def _build(cls: type, data: dict, where: str) -> Any:
    require(isinstance(data, dict), f"{where}={data!r}", "an object with named fields", "fields are given by name")
    known = {f.name for f in fields(cls)}
    unknown = sorted(set(data) - known)
    require(
        not unknown,
        f"unknown field {', '.join(unknown)} in {where}",
        f"fields among {', '.join(sorted(known))}",
        "a misspelt field would be ignored",
    )
    needed = {f.name for f in fields(cls) if f.default is MISSING and f.default_factory is MISSING}
    missing = sorted(needed - set(data))
    require(not missing, f"{where} without {', '.join(missing)}", "these fields", "they have no default")
    _check_types(cls, data, where)
    return cls(**data)


def codec_from_dict(data: dict) -> Codec:
    """Inverse of `to_dict` for a codec. Raises `ConfigError` for an unknown type or field."""
    require(isinstance(data, dict), f"codec={data!r}", "an object with named fields", "fields are given by name")
    kind = data.get("type")
    one_of("codec type", kind, tuple(CODEC_CLASSES), "these codecs exist")
    return _build(CODEC_CLASSES[kind], {k: v for k, v in data.items() if k != "type"}, kind)


def _codecs_built(data: dict) -> dict:
    """Fields with each codec built from its own plain data."""
    return {k: codec_from_dict(v) if isinstance(v, dict) else v for k, v in data.items()}


def _override(data: Any) -> Override:
    where = "policy.overrides"
    require(isinstance(data, dict), f"{where} with {data!r}", "objects with named fields", "fields are given by name")
    data = _codecs_built(data)
    if isinstance(layers := data.get("layers"), list):
        data["layers"] = tuple(layers)
    return _build(Override, data, where)


def _policy(data: Any) -> Policy:
    require(isinstance(data, dict), f"policy={data!r}", "an object with named fields", "fields are given by name")
    data = dict(data)
    overrides = data.pop("overrides", [])
    require(
        isinstance(overrides, list),
        f"policy.overrides={overrides!r}",
        "a list of objects",
        "each names a role, its layers and their codec",
    )
    built = tuple(map(_override, overrides))
    return _build(Policy, _codecs_built(data) | {"overrides": built}, "policy")


def run_from_dict(data: dict) -> Run:
    """Inverse of `to_dict` for a run. Raises `ConfigError` for an unknown field at any level."""
    require(isinstance(data, dict), f"run={data!r}", "an object with named fields", "fields are given by name")
    data = dict(data)
    parts: dict[str, Any] = {"policy": _policy(data.pop("policy", {}))}
    for name, cls in (("model", Model), ("parallel", Parallel), ("data", Data), ("train", Train)):
        if name in data:
            parts[name] = _build(cls, data.pop(name), name)
    return _build(Run, {**data, **parts}, "run")


def completed(data: Any) -> Any:
    """JSON data of a run with the defaults of fields that did not exist when it was written; other data as it is.

    Two runs are the same where these are equal, whenever they were written.
    """
    try:
        return json.loads(json.dumps(to_dict(run_from_dict(data))))
    except ConfigError:
        return data
