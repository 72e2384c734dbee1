"""Which style each module of a model gets, and `parallelize`, which applies it.

Plans are by module name, so they fit our GPT and Qwen (whole or a pipeline stage) and every model with the same
names, such as Hugging Face's Qwen2 and Llama.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import ParallelStyle

from taco.comm import Meter
from taco.config import Policy, require
from taco.parallel.checks import (
    check_blocks,
    check_heads,
    check_inside,
    check_norms,
    check_policy,
    check_style,
    matching,
)
from taco.parallel.functions import TensorComm
from taco.parallel.layers import SEQUENCE
from taco.parallel.tensor import (
    ColwiseParallel,
    PrepareModuleInput,
    ReplicateParallel,
    RowwiseParallel,
    SequenceParallel,
    SharedParallel,
    Styled,
)

# what modules are for -> their name patterns
_GPT = {
    "embedding": ("transformer.wte",),
    "blocks": ("transformer.h.*.attn", "transformer.h.*.mlp"),
    "columns": tuple(f"transformer.h.*.{n}" for n in ("attn.q_proj", "attn.k_proj", "attn.v_proj", "mlp.c_fc")),
    "rows": ("transformer.h.*.attn.c_proj", "transformer.h.*.mlp.c_proj"),
    "heads": (),
    "sequence": ("transformer.wpe", "transformer.h.*.ln_1", "transformer.h.*.ln_2", "transformer.ln_f"),
}
_LLAMA = {
    "embedding": ("model.embed_tokens",),
    "blocks": ("model.layers.*.self_attn", "model.layers.*.mlp"),
    "columns": tuple(
        f"model.layers.*.{n}"
        for n in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj")
    ),
    "rows": ("model.layers.*.self_attn.o_proj", "model.layers.*.mlp.down_proj"),
    "heads": ("model.layers.*.self_attn.q_norm", "model.layers.*.self_attn.k_norm"),
    "sequence": ("model.layers.*.input_layernorm", "model.layers.*.post_attention_layernorm", "model.norm"),
}
HEAD = "lm_head"


def module_names(model: nn.Module) -> dict[str, tuple[str, ...]]:
    """The name patterns of a model, by what they are for.

    Raises ConfigError for a model with other names or with a fused query/key/value projection.
    """
    names = {name for name, _ in model.named_modules()}
    require(
        not any(name.endswith("c_attn") for name in names),
        "a model with the fused projection c_attn (Hugging Face's GPT-2)",
        "q_proj, k_proj, v_proj, as in taco.models (taco.models.load_hf converts)",
        "a rank's share of a fused matrix is not a contiguous slice",
    )
    for table, prefix in ((_GPT, "transformer"), (_LLAMA, "model")):
        if prefix in names:
            return table
    require(
        False,
        f"{type(model).__name__} with modules {', '.join(n for n, _ in model.named_children())}",
        "plan=",
        "only models named like GPT-2 or Qwen2/Llama have a plan of their own",
    )
    raise AssertionError


def default_plan(
    model: nn.Module, *, sequence_parallel: bool = False, loss_parallel: bool = True
) -> dict[str, ParallelStyle]:
    """Pattern -> style, for a model whose names are known. See `parallelize`."""
    names = module_names(model)
    layout = SEQUENCE if sequence_parallel else Replicate()
    plan: dict[str, ParallelStyle] = {}
    for name in names["embedding"]:
        plan[name] = RowwiseParallel(output_layouts=layout)
    for name in names["blocks"]:
        plan[name] = PrepareModuleInput(input_layouts=layout)
    for name in names["columns"]:
        plan[name] = ColwiseParallel()
    for name in names["rows"]:
        plan[name] = RowwiseParallel(output_layouts=layout)
    for name in names["heads"]:
        plan[name] = SharedParallel()
    if sequence_parallel:
        for name in names["sequence"]:
            plan[name] = SequenceParallel()
    plan[HEAD] = ColwiseParallel(input_layouts=layout, output_layouts=None if loss_parallel else Replicate())
    return plan


def parallelize(
    model: nn.Module,
    mesh: DeviceMesh,
    policy: Policy,
    *,
    plan: Mapping[str, ParallelStyle] | None = None,
    sequence_parallel: bool = False,
    loss_parallel: bool = True,
    meter: Meter | None = None,
    observer: Callable[[str, str, Tensor], None] | None = None,
    node_size: int = 0,
    seed: int = 0,
    src_data_rank: int | None = 0,
    comm: TensorComm | None = None,
) -> nn.Module:
    """Shard `model` over the one-dimensional `mesh`, in place, and return it.

    Parameters become DTensors; parameters without a style are replicated; tied parameters stay tied. The input
    (tokens [batch, seq]) is the same on every rank. With `loss_parallel` the head gives this rank's vocabulary shard
    (for `vocab_parallel_cross_entropy`), otherwise all logits, which a loss inside the model needs. With
    `sequence_parallel` seq is a multiple of the mesh.
    The communicators are `model.tensor_comm`.

    comm: communicators to use instead of new ones from policy, meter, observer, node_size and seed; the parts of one
    model share theirs.
    src_data_rank: whose weights count (they are broadcast); None: every rank already has the same ones.
    Raises ConfigError for a plan that matches nothing or leaves parameters inside a block without a style, torch's own
    styles, sizes that do not divide, a model without a plan or already sharded, a mesh of several dimensions, a policy
    that is none, and one of layers that the model does not have. The model is as it was then.
    """
    _check_arguments(model, mesh, policy, sequence_parallel and plan is None)
    if comm is None:
        check_blocks(model, policy)
        comm = TensorComm.build(mesh, policy, meter=meter, observer=observer, node_size=node_size, seed=seed)
    check_heads(model, mesh.size())
    aliases = _aliases(model)
    given = plan is not None
    chosen = plan if given else default_plan(model, sequence_parallel=sequence_parallel, loss_parallel=loss_parallel)
    styled = _checked(model, mesh, chosen, given=given)
    for style, modules in styled:
        style.src_data_rank = src_data_rank
        if getattr(style, "comm", comm) is None:
            style.comm = comm
        for module in modules:
            style._apply(module, mesh)
    _replicate_rest(model, mesh, comm, src_data_rank)
    _tie_again(aliases)
    for name, module in model.named_modules():
        if hasattr(module, "comm_name"):
            module.comm_name = name
    model.tensor_comm = comm
    return model


def _checked(
    model: nn.Module, mesh: DeviceMesh, plan: Mapping[str, ParallelStyle], *, given: bool
) -> list[tuple[ParallelStyle, list[nn.Module]]]:
    """Each style of the plan with its modules. Raises ConfigError, before anything is changed, for a key of a `given`
    plan that matches none, for what is no style of this package, and for modules that a style cannot shard."""
    styled = []
    for pattern, style in plan.items():
        check_style(pattern, style)
        found = [module for _, module in matching(model, pattern)]
        require(bool(found) or not given, f"plan key {pattern!r}", "a module of the model", "no module has that name")
        for module in found if isinstance(style, Styled) else ():
            style.check(module, mesh.size())
        styled.append((style, found))
    if not given:
        check_norms(model, module_names(model)["heads"])
    blocks, known = [], []
    for style, modules in styled:
        (blocks if isinstance(style, PrepareModuleInput) else known).extend(modules)
    check_inside(model, blocks, known)
    return styled


def _check_arguments(model: nn.Module, mesh: DeviceMesh, policy: Policy, shards_sequences: bool) -> None:
    check_policy(policy)
    require(
        mesh.ndim == 1,
        f"a mesh of {mesh.ndim} dimensions {mesh.mesh_dim_names}",
        "one of them, e.g. mesh['tp']",
        "a layer is sharded over one group of ranks",
    )
    require(
        not hasattr(model, "tensor_comm"),
        f"{type(model).__name__} that is already parallel",
        "a model with whole parameters",
        "a share is not sharded again",
    )
    require(
        not (shards_sequences and hasattr(getattr(model, "config", None), "model_type")),
        "sequence_parallel on a Hugging Face model",
        "sequence_parallel=False, or a plan= and explicit position_ids",
        "it derives positions from the length of the sequence shard",
    )


def _aliases(model: nn.Module) -> list[list[tuple[nn.Module, str]]]:
    """Parameters that several modules share: for each, its (module, name) pairs."""
    places: dict[int, list[tuple[nn.Module, str]]] = {}
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                places.setdefault(id(parameter), []).append((module, name))
    return [shared for shared in places.values() if len(shared) > 1]


def _tie_again(aliases: list[list[tuple[nn.Module, str]]]) -> None:
    for (module, name), *others in aliases:
        first = module._parameters[name]
        for other, other_name in others:
            require(
                first.placements == other._parameters[other_name].placements,
                f"shared parameter {name} sharded as {first.placements} and {other._parameters[other_name].placements}",
                "one layout",
                "both modules use the same shard",
            )
            other._parameters[other_name] = first


def _replicate_rest(model: nn.Module, mesh: DeviceMesh, comm: TensorComm, src_data_rank: int | None) -> None:
    """Optimizers and clipping take either DTensors or plain tensors, not both: the rest becomes replicated DTensors."""
    rest = ReplicateParallel(comm=comm)
    rest.src_data_rank = src_data_rank
    for module in list(model.modules()):
        if any(p is not None and not isinstance(p, DTensor) for p in module._parameters.values()):
            rest._apply(module, mesh)
