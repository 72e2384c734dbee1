"""What cannot be parallel, found before anything is changed."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

from torch import nn
from torch.distributed.tensor.parallel import ParallelStyle

from taco.config import Policy, block_of, require


def matching(model: nn.Module, pattern: str) -> list[tuple[str, nn.Module]]:
    """Modules whose dotted name matches, part by part, with * for any one part."""
    parts = pattern.split(".")
    found = []
    for name, module in model.named_modules():
        own = name.split(".")
        if len(own) == len(parts) and all(map(fnmatchcase, own, parts)):
            found.append((name, module))
    return found


def check_style(pattern: str, style: ParallelStyle) -> None:
    """Raise ConfigError for what is no ParallelStyle, and for one of torch's own."""
    own = type(style).__module__.startswith("torch.")
    require(
        isinstance(style, ParallelStyle) and not own,
        f"{'torch.distributed' if own else repr(style)}{f'.{type(style).__name__}' if own else ''} for {pattern!r}",
        "a style of taco.parallel, such as ColwiseParallel()",
        "torch's styles send uncompressed, past the policy" if own else "a style says how a module is sharded",
    )


def check_inside(model: nn.Module, blocks: Iterable[nn.Module], known: Iterable[nn.Module]) -> None:
    """Raise ConfigError for a module with parameters inside one of `blocks` that is none of `known`: each rank runs a
    block on its share, so that what a replicated parameter gets is a part of its gradient."""
    names, known = {module: name for name, module in model.named_modules()}, set(known)
    for block in blocks:
        strange = [m for m in block.modules() if m not in known and any(p is not None for p in m._parameters.values())]
        require(
            not strange,
            f"{type(model).__name__} with {', '.join(f'{names[m]} ({type(m).__name__})' for m in strange[:3])}",
            "a style for each in plan=: SharedParallel() where it sees a rank's share, ReplicateParallel() where it "
            f"sees whole sums; or none for {names[block]}",
            "a block's gradients are summed over ranks, those of a parameter without a style are not",
        )


def check_norms(model: nn.Module, patterns: Iterable[str]) -> None:
    """Raise ConfigError for norms of queries or keys that are taken over all heads, which no rank has."""
    config = getattr(model, "config", None)
    hidden, heads = (getattr(config, name, None) for name in ("hidden_size", "num_attention_heads"))
    size = getattr(config, "head_dim", None) or (hidden // heads if hidden and heads else None)
    for pattern in patterns if size else ():
        for name, module in matching(model, pattern):
            found = [tuple(p.shape) for p in module.parameters(recurse=False)]
            require(
                all(shape == (size,) for shape in found),
                f"{name} with parameters {found}",
                f"({size},), the size of one head",
                "a norm over all heads needs those of other ranks",
            )


def check_policy(policy: Policy) -> None:
    """Raise ConfigError for a codec or a preset's name in place of a Policy."""
    require(
        isinstance(policy, Policy),
        f"policy {policy!r}",
        "a Policy, e.g. taco.recipes.policy(tp='int8')",
        "it names a codec per role",
    )


def check_blocks(model: nn.Module, policy: Policy) -> None:
    """Raise ConfigError where the policy overrides the codec of blocks that the whole model does not have."""
    policy.check_blocks({block for name, _ in model.named_modules() if (block := block_of(name)) is not None})


def check_heads(model: nn.Module, ways: int) -> None:
    """Raise ConfigError unless every head lands on one rank."""
    config = getattr(model, "config", None)
    for name in ("heads", "kv_heads", "num_attention_heads", "num_key_value_heads"):
        value = getattr(config, name, None) or ways
        require(value % ways == 0, f"{name}={value} on {ways} ranks", f"a multiple of {ways}", "a head is not split")
