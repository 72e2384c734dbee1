"""How the error of compression grows through a model: the same weights and tokens with and without codecs.

    tp_forward    block 0, 1, ...   |hidden states - uncompressed ones| / |uncompressed ones| after each block
    tp_backward   ..., 1, 0         the same of the loss's gradient with respect to them

An error that a block adds travels on, so that the last block's forward error and the first block's backward error are
those of a whole pass. Records with the codec `ROUNDING` are of a pass without codecs whose sums are rounded to the
messages' dtype after each addition: what the dtype alone does.
"""

from __future__ import annotations

from torch import Tensor

from taco.config import TENSOR_ROLES, Policy
from taco.parallel import Parallelism, uncompressed
from taco.parallel.evaluation import untraced
from taco.parallel.virtual import VirtualComm

SEQUENCES = 4
ROUNDING = "rounding"


def _states(par: Parallelism, tokens: Tensor, targets: Tensor) -> dict[tuple[str, int], Tensor]:
    """(role, block) -> what leaves the block (fp32), and the loss's gradient with respect to it."""
    [model] = par.modules
    found: dict[tuple[str, int], Tensor] = {}

    def keep(layer: int, out: Tensor) -> None:
        found["tp_forward", layer] = out.detach().float()
        out.register_hook(lambda grad: found.__setitem__(("tp_backward", layer), grad.detach().float()))

    hooks = [
        block.register_forward_hook(lambda _module, _args, out, layer=int(name): keep(layer, out))
        for name, block in model.blocks.items()
    ]
    try:
        par.zero_grad()
        par.step(tokens, targets, 1)
        par.zero_grad()
    finally:
        for hook in hooks:
            hook.remove()
    return found


def depth_records(par: Parallelism, policy: Policy, tokens: Tensor, targets: Tensor) -> list[dict]:
    """One {role, layer, error} a block and direction, over the first `SEQUENCES` sequences, and one {.., codec} each of
    `ROUNDING`.

    Empty for real ranks, which hold parts of a model, and where nothing is compressed. Gradients are gone afterwards.
    """
    p = par.parallel
    if p.world_size > 1 or p.virtual_tp == 1 or not policy.compresses(*TENSOR_ROLES):
        return []
    [model] = par.modules
    rounded = VirtualComm.build(p.virtual_tp, Policy(), plain_sum="once" if p.virtual_sum == "stepwise" else "stepwise")
    batch = tokens[:SEQUENCES], targets[:SEQUENCES]
    with untraced(par.communicators.values()):
        coded = _states(par, *batch)
    with uncompressed(par):
        exact = _states(par, *batch)
    with model.virtual_comm.instead(rounded):
        chance = _states(par, *batch)
    # a gradient that comes from erroneous states is in error, too, also where backward messages are not compressed
    return [
        {"role": role, "layer": layer, **codec, "error": ((found[role, layer] - true).norm() / true.norm()).item()}
        for codec, found in (({}, coded), ({"codec": ROUNDING}, chance))
        for (role, layer), true in sorted(exact.items())
    ]
