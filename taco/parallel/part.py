"""A model part as a training step runs it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class Part(nn.Module):
    """One model part as it runs: the model in the compute dtype."""

    def __init__(self, model: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.model, self.dtype = model, dtype
        if dtype != torch.float32:
            for module in model.modules():
                if isinstance(module, nn.Embedding):  # autocast leaves look-ups, and so the residual stream, in fp32
                    module.register_forward_hook(lambda _module, _args, out: out.to(dtype))

    def forward(self, x: Tensor) -> Any:
        with torch.autocast(x.device.type, self.dtype, enabled=self.dtype != torch.float32):
            return self.model(x)
