"""What both architectures share: causal attention, rotary positions, and the initial weights."""

from __future__ import annotations

import hashlib
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

INIT_STD = 0.02
RESIDUAL = ("attn.c_proj.weight", "mlp.c_proj.weight", "o_proj.weight", "down_proj.weight")
HEAD = "lm_head.weight"


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal softmax attention.

    q [batch, seq, heads, head_dim], k and v [batch, seq, kv_heads, head_dim] -> [batch, seq, heads * head_dim].
    Head counts are those of the tensors, so a rank's share of the heads works like the whole.
    """
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])
    return out.transpose(1, 2).flatten(2)


class RotaryEmbedding(nn.Module):
    """Rotary positions (arXiv 2104.09864), half-split layout as in Qwen2, in fp32 whatever the dtype of the model.

    forward(x [batch, seq, heads, head_dim]) -> same shape and dtype. Positions are 0..seq-1, so x must hold the
    whole sequence. The cos/sin tables are kept as plain attributes and not as buffers: a buffer would follow
    `model.to(bfloat16)`, and bf16 cannot tell neighbouring positions apart.
    """

    def __init__(self, head_dim: int, theta: float) -> None:
        super().__init__()
        self.head_dim, self.theta = head_dim, theta
        self._tables: dict[torch.device, tuple[Tensor, Tensor]] = {}

    def _table(self, seq: int, device: torch.device) -> tuple[Tensor, Tensor]:
        cached = self._tables.get(device)
        if cached is None or cached[0].shape[0] < seq:
            # inference tensors could not be saved for a later backward
            with torch.inference_mode(False), torch.no_grad():
                exponent = torch.arange(0, self.head_dim, 2, dtype=torch.float32, device=device) / self.head_dim
                positions = torch.arange(seq, dtype=torch.float32, device=device)
                angles = torch.outer(positions, 1.0 / self.theta**exponent).repeat(1, 2)
                cached = (angles.cos()[:, None], angles.sin()[:, None])
            self._tables[device] = cached
        return cached[0][:seq], cached[1][:seq]

    def forward(self, x: Tensor) -> Tensor:
        cos, sin = self._table(x.shape[1], x.device)
        full = x.float()
        low, high = full.chunk(2, dim=-1)
        return (full * cos + torch.cat((-high, low), dim=-1) * sin).to(x.dtype)


def _generator(seed: int, name: str) -> torch.Generator:
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)


def initial_value(
    name: str, shape: torch.Size, *, seed: int, layers: int, tied_to: str = "", outliers: tuple[int, float] = (0, 1.0)
) -> Tensor:
    """The initial value of parameter `name`: fp32 on the CPU, the same on every device and rank.

    Matrices are normal(0, 0.02); those that write into the residual stream are divided by sqrt(2 * layers) (GPT-2).
    Biases are 0 and norm weights 1. Each parameter has its own generator, seeded by (seed, name), so a pipeline
    stage or a rank gets the full model's values without making the others. `tied_to`: the embedding's name when
    the head shares its weight. outliers: (count, factor) of channels that are written to more strongly, spread evenly.
    """
    if len(shape) < 2:
        return torch.zeros(shape) if name.endswith("bias") else torch.ones(shape)
    if name == HEAD and tied_to:
        name = tied_to
    std = INIT_STD / math.sqrt(2 * layers) if name.endswith(RESIDUAL) else INIT_STD
    value = torch.empty(shape).normal_(0.0, std, generator=_generator(seed, name))
    count, factor = outliers
    if count and name.endswith(RESIDUAL):
        value[torch.arange(count) * shape[0] // count] *= factor
    return value


@torch.no_grad()
def initialize_(model: nn.Module, seed: int) -> None:
    """Give every parameter of a GPT or Qwen (whole, stage, or sharded into DTensors) its `initial_value`.

    One full parameter exists at a time, on the CPU; a DTensor takes its own slice without communication.
    """
    for name, parameter in model.named_parameters():
        full = initial_value(
            name,
            parameter.shape,
            seed=seed,
            layers=model.config.layers,
            tied_to=model.embedding_name if model.config.tied else "",
            outliers=(model.config.outlier_channels, model.config.outlier_scale),
        )
        if isinstance(parameter, DTensor):
            local = full.to(parameter.device_mesh.device_type, parameter.dtype)
            full = distribute_tensor(local, parameter.device_mesh, parameter.placements, src_data_rank=None)
        parameter.copy_(full)
