"""Load and save Hugging Face checkpoints (config.json + safetensors) of GPT-2 and Qwen2.

Names are Hugging Face's; GPT-2 differs in two ways that are converted here: its matrices are stored [in, out], and
q, k, v are one fused c_attn. A vocabulary can be padded at load (so that tensor parallel ranks get equal shares) and
cut at save.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from taco.config import ConfigError, Model, require
from taco.models.factory import build
from taco.models.hf_config import config_from_hf, config_to_hf
from taco.models.layers import HEAD

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
QKV = ("q_proj", "k_proj", "v_proj")
TRANSPOSED = ("attn.c_proj.weight", "mlp.c_fc.weight", "mlp.c_proj.weight")


class _Checkpoint:
    """The tensors of one folder, single file or sharded, read one at a time."""

    def __init__(self, path: Path, stack: ExitStack) -> None:
        self._where: dict = {}
        # the whole file first, as transformers: a save into the folder of a sharded checkpoint leaves the old index
        if (path / INDEX).is_file() and not (path / WEIGHTS).is_file():
            files = sorted(set(json.loads((path / INDEX).read_text(encoding="utf-8"))["weight_map"].values()))
        else:
            files = [WEIGHTS]
        for file in files:
            require(
                (path / file).is_file(),
                f"no file {path / file}",
                f"{WEIGHTS}, or {INDEX} and its files",
                "weights are read from safetensors",
            )
            try:
                opened = stack.enter_context(safe_open(path / file, framework="pt"))
            except SafetensorError as error:
                raise ConfigError(
                    f"got {path / file} ({error}); need a whole safetensors file; because its weights are read"
                ) from error
            self._where |= dict.fromkeys(opened.keys(), opened)

    def __call__(self, name: str) -> Tensor:
        # the first GPT-2 checkpoints carry no prefix
        found = name if name in self._where else name.removeprefix("transformer.")
        require(
            found in self._where,
            f"no tensor {name}",
            "every weight of the architecture in config.json",
            "a missing weight would stay random",
        )
        return self._where[found].get_tensor(found)


def _read(name: str, config: Model, checkpoint: Callable[[str], Tensor]) -> Tensor:
    """The value of our parameter `name`, from Hugging Face's tensors."""
    if name == HEAD and config.tied:
        name = "transformer.wte.weight" if config.arch == "gpt" else "model.embed_tokens.weight"
    if config.arch == "gpt":
        prefix, _, leaf = name.rpartition(".")
        base, _, module = prefix.rpartition(".")
        if module in QKV:
            fused = checkpoint(f"{base}.c_attn.{leaf}")
            return fused.chunk(3, dim=-1)[QKV.index(module)].t()
        if name.endswith(TRANSPOSED):
            return checkpoint(name).t()
    return checkpoint(name)


def _pad_vocab(value: Tensor, rows: int) -> Tensor:
    """Add rows that are the mean row. Their logit is the mean logit, which takes next to nothing from a trained
    softmax; zero rows would have logit 0, far above real GPT-2 logits (about -30 to -100), and ruin the loss."""
    missing = rows - value.shape[0]
    return value if missing <= 0 else torch.cat((value, value.mean(0, keepdim=True).expand(missing, -1)))


@torch.no_grad()
def load_hf(
    path: str | Path,
    *,
    vocab: int | None = None,
    layers: range | None = None,
    first: bool = True,
    last: bool = True,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> nn.Module:
    """The GPT or Qwen (or a stage of it, as in `build`) with the weights of a Hugging Face folder.

    vocab: pad embedding and head to this many rows with their mean row (50304 for GPT-2's 50257).
    Raises ConfigError for an unsupported config, a missing or truncated file, a missing tensor or a wrong shape.
    """
    path = Path(path)
    config = config_from_hf(path)
    rows = vocab or config.vocab
    require(
        rows >= config.vocab,
        f"vocab={rows}",
        f"at least {config.vocab}",
        "tokens of the checkpoint would have no embedding",
    )
    padded = Model(**{**vars(config), "vocab": rows})
    model = build(padded, layers=layers, first=first, last=last, device="meta", dtype=dtype)
    model.to_empty(device=device)
    model.tie()
    with ExitStack() as stack:
        checkpoint = _Checkpoint(path, stack)
        for name, parameter in model.named_parameters():
            value = _read(name, config, checkpoint)
            if name in (HEAD, model.embedding_name):
                value = _pad_vocab(value, rows)
            require(
                value.shape == parameter.shape,
                f"{name} of shape {tuple(value.shape)}",
                f"{tuple(parameter.shape)}",
                "config.json says so",
            )
            parameter.copy_(value)
    return model


def _to_hf(config: Model, state: Mapping[str, Tensor], vocab: int) -> dict[str, Tensor]:
    """Hugging Face's names and layouts for our whole state dict."""
    out: dict[str, Tensor] = {}
    for name, value in state.items():
        if name == HEAD and config.tied:
            continue
        if name in (HEAD, "transformer.wte.weight", "model.embed_tokens.weight"):
            value = value[:vocab]
        prefix, _, leaf = name.rpartition(".")
        base, _, module = prefix.rpartition(".")
        if config.arch == "gpt" and module in QKV:
            if module == QKV[0]:
                parts = [state[f"{base}.{part}.{leaf}"] for part in QKV]
                out[f"{base}.c_attn.{leaf}"] = torch.cat([part.t() for part in parts], dim=-1)
            continue
        out[name] = value.t() if config.arch == "gpt" and name.endswith(TRANSPOSED) else value
    return out


def _check_ours(model: nn.Module) -> None:
    """Raise ConfigError for a model that taco.models has not built, with what saves one of Hugging Face's."""
    need, why = "`model.save_pretrained(path)`", "save_hf renames the weights of taco.models"
    if any(isinstance(parameter, DTensor) for parameter in model.parameters()):
        need = (
            "`full = {k: v.full_tensor() for k, v in model.state_dict().items()}` on every rank, then "
            "`model.save_pretrained(path, state_dict=full)` on rank 0"
        )
        why += ", and save_pretrained takes whole tensors"
    ours = isinstance(getattr(model, "config", None), Model)
    require(ours, f"{type(model).__name__}, which is none of taco.models", f"for Hugging Face's {need}", why)


def _first(x: DTensor) -> bool:
    """Whether this process is the first rank of x's mesh."""
    return not any(x.device_mesh.get_coordinate() or ())


@torch.no_grad()
def save_hf(
    model: nn.Module,
    path: str | Path,
    *,
    vocab: int | None = None,
    dtype: torch.dtype | None = None,
    state: Mapping[str, Tensor] | None = None,
) -> None:
    """Write a whole GPT or Qwen as a Hugging Face folder: config.json and model.safetensors.

    vocab: the true vocabulary; rows beyond it (padding) are left out, and config.json says this number.
    dtype: of the stored weights; None keeps the model's. state: full tensors by our names, for a model whose own
    parameters are sharded. DTensors are gathered, which every rank of their mesh has to enter; its first rank
    writes, and the others do not wait for it.
    Raises ConfigError for a model of Hugging Face's own, a stage of a model, a vocabulary larger than the model's.
    """
    _check_ours(model)
    config, path = model.config, Path(path)
    vocab = vocab or config.vocab
    require(vocab <= config.vocab, f"vocab={vocab}", f"at most {config.vocab}", "the model has no more rows")
    state = dict(model.state_dict() if state is None else state)
    writes = all(_first(v) for v in state.values() if isinstance(v, DTensor))
    state = {k: v.full_tensor() if isinstance(v, DTensor) else v for k, v in state.items()}
    missing = sorted(set(build(config, device="meta").state_dict()) - set(state))
    require(not missing, f"no {', '.join(missing[:3])}", "all weights", "a checkpoint holds the whole model")
    if not writes:
        return
    dtype = dtype or next(iter(state.values())).dtype
    tensors = {k: v.to("cpu", dtype).contiguous() for k, v in _to_hf(config, state, vocab).items()}
    path.mkdir(parents=True, exist_ok=True)
    rank = dist.get_rank() if dist.is_initialized() else 0  # replicas of a model each have a rank that writes
    part = path / f"{WEIGHTS}.{rank}.part"
    save_file(tensors, part, metadata={"format": "pt"})
    os.replace(part, path / WEIGHTS)
    text = json.dumps(config_to_hf(config, vocab, str(dtype).removeprefix("torch.")), indent=2) + "\n"
    (path / "config.json").write_text(text, encoding="utf-8")
