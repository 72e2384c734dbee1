"""Which class an architecture has, and models of it with their initial weights."""

from __future__ import annotations

import torch

from taco.config import Model, require
from taco.models.gpt import GPT
from taco.models.layers import initialize_
from taco.models.qwen import Qwen

ARCHITECTURES = {"gpt": GPT, "qwen": Qwen}


def build(
    config: Model,
    seed: int = 0,
    *,
    layers: range | None = None,
    first: bool = True,
    last: bool = True,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> GPT | Qwen:
    """The model of `config`, or a pipeline stage of it, with initial weights that depend on (seed, name) only.

    layers: the blocks to build, numbered as in the whole model; None means all. first: with the embedding.
    last: with the final norm and the head. A stage's weights equal the same weights of the whole model.
    device 'meta' leaves the weights unset; `initialize_(model, seed)` sets them later, also after sharding.
    Raises ConfigError for blocks that do not exist.
    """
    layers = range(config.layers) if layers is None else layers
    require(
        all(0 <= i < config.layers for i in layers),
        f"layers={layers!r}",
        f"block numbers from 0 to {config.layers - 1}",
        f"{config.name} has {config.layers} blocks",
    )
    # on meta first: nn.Linear's own initialisation would draw from, and so change, the global generator
    with torch.device("meta"):
        model = ARCHITECTURES[config.arch](config, layers, first=first, last=last).to(dtype)
    if torch.device(device).type != "meta":
        model.to_empty(device=device)
        model.tie()
        initialize_(model, seed)
    return model
