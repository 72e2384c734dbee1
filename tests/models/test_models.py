"""The plain decoders: initial weights, stages, shards, rotary positions, sizes."""

from dataclasses import replace

import pytest
import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils.flop_counter import FlopCounterMode

from taco import models
from taco.config import ConfigError, Model
from taco.models import flops
from taco.models.layers import RotaryEmbedding
from taco.recipes import MODELS

GPT = Model(name="g", arch="gpt", layers=4, hidden=48, heads=6, kv_heads=6, ffn=80, vocab=64, max_seq=32)
QWEN = Model(name="q", arch="qwen", layers=4, hidden=48, heads=6, kv_heads=2, ffn=80, vocab=64, max_seq=32)
BOTH = pytest.mark.parametrize("config", [GPT, QWEN], ids=["gpt", "qwen"])
TOKENS = torch.arange(40).view(2, 20) * 7 % 64


def untied(config: Model) -> Model:
    return Model(**{**vars(config), "tied": False})


@BOTH
def test_logits_are_causal(config):
    model = models.build(config, 1)
    changed = TOKENS.clone()
    changed[:, 12] = (changed[:, 12] + 1) % 64
    before, after = model(TOKENS), model(changed)
    assert before.shape == (2, 20, 64)
    assert torch.equal(before[:, :12], after[:, :12])
    assert not torch.equal(before[:, 12:], after[:, 12:])


@BOTH
def test_weights_depend_on_seed_alone_and_leave_the_global_generator(config):
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    one = models.build(config, 1).state_dict()
    assert torch.equal(torch.rand(3), expected)
    again, other = models.build(config, 1).state_dict(), models.build(config, 2).state_dict()
    assert all(torch.equal(one[k], again[k]) for k in one)
    assert not any(torch.equal(one[k], other[k]) for k in one if one[k].dim() == 2)


@BOTH
def test_initial_spread_is_gpt2s(config):
    wide = Model(**{**vars(config), "hidden": 384, "ffn": 512, "vocab": 512})
    state = models.build(wide, 3).state_dict()
    residual = ("attn.c_proj.weight", "mlp.c_proj.weight", "o_proj.weight", "down_proj.weight")
    for name, value in state.items():
        if value.dim() == 2:
            want = 0.02 / (8**0.5 if name.endswith(residual) else 1.0)
            assert value.std().item() == pytest.approx(want, rel=0.03), name
        else:
            assert torch.equal(value, torch.full_like(value, 0.0 if name.endswith("bias") else 1.0)), name


@BOTH
@pytest.mark.parametrize("tied", [True, False])
def test_stages_compose_to_the_whole_model(config, tied):
    config = config if tied else untied(config)
    whole = models.build(config, 1)
    first = models.build(config, 1, layers=range(0, 1), last=False)
    middle = models.build(config, 1, layers=range(1, 3), first=False, last=False)
    last = models.build(config, 1, layers=range(3, 4), first=False)
    assert torch.equal(last(middle(first(TOKENS))), whole(TOKENS))
    assert list(middle.blocks) == ["1", "2"]
    state = whole.state_dict()
    for stage in (first, middle, last):
        assert all(torch.equal(value, state[name]) for name, value in stage.state_dict().items())


def test_a_block_that_does_not_exist_is_refused():
    with pytest.raises(ConfigError, match="block numbers from 0 to 3"):
        models.build(GPT, layers=range(3, 5))


@BOTH
def test_tied_head_shares_its_parameter_and_tie_restores_it(config):
    model = models.build(config, 1)
    assert model.lm_head.weight is model.embedding.weight
    model.lm_head.weight = nn.Parameter(model.lm_head.weight.clone())
    model.tie()
    assert model.lm_head.weight is model.embedding.weight
    assert models.build(untied(config), 1).lm_head.weight is not models.build(untied(config), 1).embedding.weight


@BOTH
def test_meta_model_is_initialised_later_to_the_same_weights(config):
    late = models.build(config, device="meta")
    late.to_empty(device="cpu")
    late.tie()
    models.initialize_(late, 9)
    now = models.build(config, 9).state_dict()
    assert all(torch.equal(value, now[name]) for name, value in late.state_dict().items())


@BOTH
def test_outliers_are_planted_in_what_blocks_write(config):
    plain = models.build(config, 9).state_dict()
    spiked = models.build(replace(config, outlier_channels=2, outlier_scale=50.0), 9).state_dict()
    writers = {"c_proj.weight", "o_proj.weight", "down_proj.weight"}
    factor = torch.ones(config.hidden, 1)
    factor[[0, config.hidden // 2]] = 50.0
    changed = {name for name, value in plain.items() if not torch.equal(value, spiked[name])}
    assert changed == {name for name in plain if ".".join(name.split(".")[-2:]) in writers}
    assert all(torch.equal(spiked[name], factor * plain[name]) for name in changed)


@BOTH
def test_attention_takes_its_head_count_from_the_projections(config):
    """Halves of q, k, v by rows and of the output by columns sum to the whole: tensor parallelism by hand."""
    attn = next(iter(models.build(config, 1).blocks.values())).get_submodule(
        "attn" if config.arch == "gpt" else "self_attn"
    )
    out_name = "c_proj" if config.arch == "gpt" else "o_proj"
    x = torch.randn(2, 10, config.hidden, generator=torch.Generator().manual_seed(0))
    whole = attn(x)
    parts = []
    full = {n: getattr(attn, n) for n in ("q_proj", "k_proj", "v_proj", out_name)}
    for rank in range(2):
        for name, linear in full.items():
            dim = 1 if name == out_name else 0
            weight = linear.weight.detach().chunk(2, dim)[rank]
            shard = nn.Linear(weight.shape[1], weight.shape[0], bias=linear.bias is not None and dim == 0)
            shard.weight = nn.Parameter(weight)
            if shard.bias is not None:
                shard.bias = nn.Parameter(linear.bias.detach().chunk(2)[rank])
            setattr(attn, name, shard)
        parts.append(attn(x))
    torch.testing.assert_close(parts[0] + parts[1], whole, atol=1e-6, rtol=1e-5)


def test_gpt_refuses_more_tokens_than_positions():
    model = models.build(GPT, 1)
    with pytest.raises(ValueError, match="got 33 tokens; need at most max_seq=32"):
        model(torch.zeros(1, 33, dtype=torch.long))


def test_rotary_keeps_fp32_angles_in_a_bf16_model():
    """At position 1000 a bf16 table is off by whole radians; the scores of equal distances must stay equal."""
    rotary = RotaryEmbedding(16, 1e4).to(torch.bfloat16)
    x = torch.randn(1, 1, 1, 16, generator=torch.Generator().manual_seed(1)).expand(1, 1002, 1, 16)
    exact = RotaryEmbedding(16, 1e4)(x)
    rounded = rotary(x.to(torch.bfloat16))
    assert rounded.dtype == torch.bfloat16
    assert (rounded.float() - exact).abs().max() < 0.03 * x.abs().max()
    near, far = (exact[0, i] * exact[0, i + 1] for i in (0, 1000))
    torch.testing.assert_close(near.sum(), far.sum(), atol=1e-3, rtol=0)


def test_rotary_tables_made_in_inference_mode_still_train():
    rotary = RotaryEmbedding(8, 1e4)
    with torch.inference_mode():
        rotary(torch.ones(1, 4, 1, 8))
    x = torch.ones(1, 4, 1, 8, requires_grad=True)
    rotary(x).sum().backward()
    assert x.grad is not None


@BOTH
@pytest.mark.parametrize("tied", [True, False])
def test_parameter_count_is_the_modules(config, tied):
    config = config if tied else untied(config)
    model = models.build(config, device="meta")
    assert flops.parameters(config) == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(
    ("name", "billions"), [("gpt-125m", 0.125), ("gpt-1.3b", 1.316), ("qwen2.5-0.5b", 0.494), ("qwen2.5-7b", 7.616)]
)
def test_parameter_counts_are_the_published_ones(name, billions):
    assert flops.parameters(MODELS[name]) / 1e9 == pytest.approx(billions, abs=6e-4)


@BOTH
def test_flops_are_what_torch_counts(config):
    """Forward and backward of every linear layer and both attention products, counted by torch's own counter."""
    model = models.build(config, 1)
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        model(TOKENS).sum().backward()
    linear = counter.get_flop_counts()["Global"]
    assert sum(linear.values()) == flops.flops_per_token(config, 20) * TOKENS.numel()
    attention = 12 * config.layers * config.hidden * 20
    assert flops.flops_per_token(config, 20) - flops.flops_per_token(config, 20, causal=True) == attention / 2


@BOTH
def test_one_graph_under_compile_for_several_lengths(config):
    model = models.build(Model(**{**vars(config), "layers": 1}), 1)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    for seq in (8, 20, 12):
        assert torch.equal(compiled(TOKENS[:, :seq]), model(TOKENS[:, :seq]))


@pytest.fixture
def second_of_two():
    """A mesh of two ranks seen from rank 1, where nobody else exists: any communication would be wrong or hang."""
    dist.init_process_group("fake", rank=1, world_size=2, store=FakeStore())
    yield init_device_mesh("cpu", (2,))
    dist.destroy_process_group()


@BOTH
def test_sharded_model_takes_its_slice_of_the_same_weights(config, second_of_two):
    model = models.build(config, device="meta")
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            placement = Shard(1) if name == "weight" and module is model.embedding else Shard(0)
            sharded = distribute_tensor(parameter.detach(), second_of_two, [placement], src_data_rank=None)
            module.register_parameter(name, nn.Parameter(sharded))
    model.to_empty(device="cpu")
    model.tie()
    models.initialize_(model, 9)
    whole = models.build(config, 9)
    for name, parameter in model.named_parameters():
        want = whole.get_parameter(name).chunk(2, dim=parameter.placements[0].dim)[1]
        assert torch.equal(parameter.to_local(), want), name
