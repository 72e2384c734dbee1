"""Tiny models, batches and training loops that the tests of taco.parallel share."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from taco.config import Model, Parallel, Policy
from taco.models import build
from taco.parallel import Parallelism, build_mesh, setup
from taco.recipes import policy

GPT = Model(name="gpt-tiny", arch="gpt", layers=2, hidden=64, heads=8, kv_heads=8, ffn=128, vocab=256, max_seq=32)
QWEN = replace(GPT, name="qwen-tiny", arch="qwen", heads=16, ffn=96, norm_eps=1e-6)
SEQ, BATCH = 16, 8
ALONE, PLAIN = Parallel(), Policy()


def batch(step: int, parallel: Parallel = ALONE, rank: int = 0) -> tuple[Tensor, Tensor]:
    """Tokens and targets of one step for a dp rank: a noisy counting task, so that losses move."""
    generator = torch.Generator().manual_seed(step)
    start = torch.randint(GPT.vocab, (BATCH, 1), generator=generator)
    noise = torch.randint(3, (BATCH, SEQ + 1), generator=generator)
    text = (start + 5 * torch.arange(SEQ + 1) + noise) % GPT.vocab
    return tuple(part.chunk(parallel.dp)[rank] for part in (text[:, :-1], text[:, 1:]))


def make(model: Model, parallel: Parallel = ALONE, codecs: Policy = PLAIN, **options: object) -> Parallelism:
    mesh = build_mesh(parallel, "cpu")
    return setup(model, partial(build, model, 3), parallel, codecs, mesh=mesh, **options)


def whole(tensor: Tensor) -> Tensor:
    """The tensor itself or what a DTensor's ranks hold together (collective)."""
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().clone()


def gradients(par: Parallelism) -> dict[str, Tensor]:
    return {name: whole(p.grad) for name, p in par.named_parameters()}


def parameters(par: Parallelism) -> dict[str, Tensor]:
    return {name: whole(p) for name, p in par.named_parameters()}


def train(par: Parallelism, steps: int, *, first: int = 0, clip: float = 1.0) -> dict:
    """losses, norms and the first step's whole gradients of `steps` AdamW steps."""
    optimizer = torch.optim.AdamW(
        [p for _, p in par.named_parameters()], lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1, foreach=True
    )
    out: dict = {"losses": [], "norms": [], "gradients": {}}
    for step in range(first, first + steps):
        par.zero_grad()
        parts = par.parallel.microbatches
        out["losses"].append(par.step(*batch(step, par.parallel, par.dp_rank), parts))
        if step == first:
            out["gradients"] = gradients(par)
        out["norms"].append(par.clip_(clip))
        optimizer.step()
    return out


__all__ = [
    "BATCH",
    "GPT",
    "QWEN",
    "SEQ",
    "Policy",
    "batch",
    "gradients",
    "make",
    "parameters",
    "policy",
    "train",
    "whole",
]
