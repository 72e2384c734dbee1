"""Everything that can be configured, as frozen dataclasses without torch.

A configuration is valid once it exists: `__post_init__` raises `ConfigError` that says what was
given, what is needed, and why. Names in errors are the field names.
"""

from taco.config.check import ConfigError, require
from taco.config.codec import (
    MAX_GROUP,
    MIN_GROUP,
    NONE,
    PAYLOADS,
    ROTATIONS,
    ROUNDINGS,
    SCALES,
    AsymmetricCodec,
    CastCodec,
    Codec,
    GroupCodec,
    NoCodec,
    TahQuantCodec,
    TensorCodec,
)
from taco.config.grid import TRANSPORTS, VIRTUAL_SUMS, Parallel
from taco.config.model import Model
from taco.config.plain import CODEC_CLASSES, codec_from_dict, completed, run_from_dict, to_dict
from taco.config.policy import ENDS, ROLES, TENSOR_ROLES, Override, Policy, block_of
from taco.config.run import DTYPES, PROMPT_TOKENS, Data, Run, Train

__all__ = [
    "CODEC_CLASSES",
    "DTYPES",
    "ENDS",
    "MAX_GROUP",
    "MIN_GROUP",
    "NONE",
    "PAYLOADS",
    "PROMPT_TOKENS",
    "ROLES",
    "ROTATIONS",
    "ROUNDINGS",
    "SCALES",
    "TENSOR_ROLES",
    "TRANSPORTS",
    "VIRTUAL_SUMS",
    "AsymmetricCodec",
    "CastCodec",
    "Codec",
    "ConfigError",
    "Data",
    "GroupCodec",
    "Model",
    "NoCodec",
    "Override",
    "Parallel",
    "Policy",
    "Run",
    "TahQuantCodec",
    "TensorCodec",
    "Train",
    "block_of",
    "codec_from_dict",
    "completed",
    "require",
    "run_from_dict",
    "to_dict",
]
