"""What a run is judged by beside its loss: accuracy, the other corpus, continued prompts, errors by depth."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from distributed import run_ranks
from train_cases import MODEL, fit, fit_ranks, log_of, numbers, stochastic, tiny_run

from taco.config import Parallel, Policy, to_dict
from taco.models import build
from taco.parallel import setup
from taco.recipes import policy
from taco.train import checkpoint
from taco.train.data import DataError, TokenDataset, prepare
from taco.train.depth import ROUNDING, depth_records
from taco.train.evaluate import greedy, held_out
from taco.train.launch import World

VIRTUAL = Parallel(virtual_tp=2)


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    folder = tmp_path_factory.mktemp("other")
    for name in ("train", "val"):
        (folder / f"{name}.txt").write_text("\n".join(f"int {name}_{i} = {i * 7};" for i in range(200)))
    prepare([folder / "train.txt"], folder / "data", held_out=[folder / "val.txt"])
    return folder / "data"


def with_other(run, other):
    return replace(run, data=replace(run.data, other=str(other)))


def parallelism(parallel: Parallel = VIRTUAL, chosen: Policy | None = None):
    def make(**stage):
        return build(MODEL, 1, **stage)

    return setup(MODEL, make, parallel, chosen or policy())


def test_the_other_corpus_is_evaluated_once_and_changes_no_number(tmp_path, data, other):
    run = tiny_run(data)
    fit(run, tmp_path / "alone")
    fit(with_other(run, other), tmp_path / "both")
    alone, both = log_of(tmp_path / "alone"), log_of(tmp_path / "both")
    assert numbers(both) == numbers(alone)
    [record] = both.of("held_out")
    assert (record["step"], record["corpus"], record["tokens"]) == (10, str(other), 2 * 4 * 16)
    assert record["loss"] > 0
    assert record["loss"] != both.end["val_loss"]
    assert 0 <= record["accuracy"] <= 1
    assert both.header["other_corpus"]["splits"]["val"]["sha256"]
    assert "other_corpus" not in alone.header
    assert all(0 <= e["val_accuracy"] <= 1 for e in alone.of("eval"))


def test_another_tokenizer_is_refused_before_anything_is_written(tmp_path, data, other):
    folder = tmp_path / "trained"
    prepare([other.parent / "train.txt"], folder, "bpe:300", held_out=[other.parent / "val.txt"])
    with pytest.raises(DataError, match="bpe:300"):
        fit(with_other(tiny_run(data), folder), tmp_path)
    assert not list(tmp_path.rglob("*.jsonl*"))


def test_prompts_are_continued_greedily(tmp_path, data, other):
    run = with_other(tiny_run(data, generate=5, steps=2), other)
    fit(run, tmp_path)
    records = log_of(tmp_path).of("generate")
    assert [r["corpus"] for r in records] == [str(data)] * 4 + [str(other)] * 4
    first = TokenDataset(data, "val", 16, batch=4).batch(0)[0]
    for record, prompt in zip(records, first, strict=False):
        assert record["prompt"] == prompt.tolist()
        assert len(record["tokens"]) == 5
        assert record["logprob"] < 0


def test_greedy_takes_the_most_probable_token_each_time():
    par = parallelism()
    prompts = torch.arange(12).view(2, 6)
    tokens, chances = greedy(par, prompts, 4)
    whole = build(MODEL, 1)
    sequence = prompts
    for i in range(4):
        logits = whole(sequence)[:, -1]
        assert torch.equal(tokens[:, i], logits.argmax(-1))
        torch.testing.assert_close(chances[:, i], logits.log_softmax(-1).amax(-1), rtol=1e-4, atol=1e-4)
        sequence = torch.cat([sequence, tokens[:, i : i + 1]], 1)


def test_real_ranks_continue_like_virtual_ones(tmp_path, data):
    grids = {"virtual": VIRTUAL, "real": Parallel(tp=2)}
    runs = {name: tiny_run(data, parallel=grid, generate=4, steps=2) for name, grid in grids.items()}
    fit(runs["virtual"], tmp_path / "virtual")
    run_ranks(2, fit_ranks, runs["real"], tmp_path / "real", 0)
    virtual, real = ([r["tokens"] for r in log_of(tmp_path / name).of("generate")] for name in ("virtual", "real"))
    assert virtual == real


@pytest.mark.parametrize("codec", ["int8", "int4"])
def test_errors_grow_from_the_codec_alone(codec):
    par = parallelism(chosen=policy(tp=codec))
    data = torch.randint(MODEL.vocab, (6, 17), generator=torch.Generator().manual_seed(1))
    records = depth_records(par, policy(tp=codec), data[:, :-1], data[:, 1:])
    places = [(d, i) for d in ("tp_backward", "tp_forward") for i in (0, 1)]
    own, rounding = ([r for r in records if ("codec" in r) == named] for named in (False, True))
    assert [(r["role"], r["layer"]) for r in own] == [(r["role"], r["layer"]) for r in rounding] == places
    low, high = {"int8": (1e-4, 0.05), "int4": (0.02, 0.5)}[codec]
    assert all(low < r["error"] < high for r in own)
    assert {r["codec"] for r in rounding} == {ROUNDING}
    assert all(r["error"] < 1e-5 for r in rounding)
    again = depth_records(par, policy(tp=codec), data[:, :-1], data[:, 1:])
    assert again == records


def test_rounding_is_that_of_the_messages_dtype():
    """Sums of four bfloat16 parts that are rounded after each addition, beside sums rounded once."""

    def make(**stage):
        return build(MODEL, 1, **stage)

    par = setup(MODEL, make, Parallel(virtual_tp=4), policy(tp="int4"), dtype=torch.bfloat16)
    data = torch.randint(MODEL.vocab, (4, 17), generator=torch.Generator().manual_seed(1))
    records = depth_records(par, policy(tp="int4"), data[:, :-1], data[:, 1:])
    errors = [r["error"] for r in records if r.get("codec") == ROUNDING]
    assert len(errors) == 2 * MODEL.layers
    assert all(1e-4 < error < 0.05 for error in errors)


def test_the_direction_that_is_not_compressed_has_its_own_error_only():
    par = parallelism(chosen=policy(tp_backward="int4"))
    data = torch.randint(MODEL.vocab, (4, 17), generator=torch.Generator().manual_seed(1))
    records = depth_records(par, policy(tp_backward="int4"), data[:, :-1], data[:, 1:])
    errors = {(r["role"], r["layer"]): r["error"] for r in records if "codec" not in r}
    assert errors["tp_forward", 0] == errors["tp_forward", 1] == 0.0
    assert errors["tp_backward", 0] > 0.0


def test_looking_leaves_no_trace(tmp_path, data):
    """Also not in a stochastic codec's seeds, which count calls, nor in the counts of paths."""
    grid = {"parallel": VIRTUAL, "chosen": policy(tp=stochastic()), "steps": 4, "checkpoint_every": 0}
    fit(tiny_run(data, **grid), tmp_path / "blind")
    fit(tiny_run(data, monitor_every=4, **grid), tmp_path / "seeing")
    blind, seeing = log_of(tmp_path / "blind"), log_of(tmp_path / "seeing")
    assert numbers(seeing) == numbers(blind)
    assert seeing.end["paths"] == blind.end["paths"]
    assert {r["role"] for r in seeing.of("depth")} == {"tp_forward", "tp_backward"}
    assert not blind.of("depth")
    par = parallelism(chosen=policy(tp=stochastic()))
    before = to_dict(par.parallel), [(c.calls, c.messages, c.min_bytes) for c in par.communicators.values()]
    tokens = torch.zeros(2, 8, dtype=torch.long)
    depth_records(par, policy(tp="int8"), tokens, tokens)
    assert before == (to_dict(par.parallel), [(c.calls, c.messages, c.min_bytes) for c in par.communicators.values()])
    assert all(p.grad is None for _, p in par.named_parameters())


def test_real_ranks_and_uncompressed_runs_have_no_depth():
    tokens = torch.zeros(2, 8, dtype=torch.long)
    assert depth_records(parallelism(), policy(), tokens, tokens) == []
    assert depth_records(parallelism(Parallel()), policy(tp="int8"), tokens, tokens) == []


def alone(folder, data, step: int) -> float:
    """The held-out loss of a checkpoint's weights in a process that compresses nothing."""
    par = parallelism(Parallel())
    state = {f"model.{name}": value for name, value in par.state_dict().items()}
    checkpoint.load_(folder / "checkpoints" / "test" / "tiny-run", step, state, World())
    par.load_state_dict({name.removeprefix("model."): value for name, value in state.items()})
    return held_out(par, TokenDataset(data, "val", 16, batch=4, seed=1), 2, 1)["loss"]


@pytest.mark.parametrize(
    ("grid", "chosen"),
    [
        (VIRTUAL, policy(tp_forward="int4")),
        (Parallel(tp=2), policy(tp_forward="int4", tp_backward="int8")),
        (Parallel(pp=2, microbatches=2), policy(pp="int4")),
    ],
    ids=["virtual", "tp", "pp"],
)
def test_weights_are_also_judged_without_compression(tmp_path, data, grid, chosen):
    run_ranks(grid.world_size, fit_ranks, tiny_run(data, parallel=grid, chosen=chosen), tmp_path, 0)
    log = log_of(tmp_path)
    for record in log.of("eval"):
        assert abs(record["val_loss_uncompressed"] - record["val_loss"]) > 1e-5
        assert 0 <= record["val_accuracy_uncompressed"] <= 1
    assert log.of("eval")[-1]["val_loss_uncompressed"] == pytest.approx(alone(tmp_path, data, 10), rel=1e-6)
    coded = [paths for role, paths in log.end["paths"].items() if chosen.compresses(role)]
    assert coded
    assert all("uncompressed" not in paths for paths in coded)


def test_a_run_that_evaluates_as_it_is_has_one_loss(tmp_path, data):
    """One pass of evaluation serves both fields, or there is no second field: nothing is compressed."""
    fit(tiny_run(data, parallel=VIRTUAL, chosen=policy(tp_backward="int4")), tmp_path / "backward")
    for record in log_of(tmp_path / "backward").of("eval"):
        assert record["val_loss_uncompressed"] == record["val_loss"]
        assert record["val_accuracy_uncompressed"] == record["val_accuracy"]
    fit(tiny_run(data, chosen=policy(tp="int4")), tmp_path / "alone")
    assert all("val_loss_uncompressed" not in record for record in log_of(tmp_path / "alone").of("eval"))


def test_what_is_looked_at_last_counts_nowhere(tmp_path, data, other):
    """Neither the other corpus nor the continued prompts, whose tokens do not depend on one another."""
    grid = {"parallel": VIRTUAL, "chosen": policy(tp=stochastic()), "steps": 4}
    fit(tiny_run(data, **grid), tmp_path / "alone")
    fit(tiny_run(data, generate=4, **grid), tmp_path / "own")
    fit(with_other(tiny_run(data, generate=4, **grid), other), tmp_path / "both")
    alone, own, both = (log_of(tmp_path / name) for name in ("alone", "own", "both"))
    assert alone.end["paths"] == own.end["paths"] == both.end["paths"]
    assert [r["tokens"] for r in both.of("generate")][:4] == [r["tokens"] for r in own.of("generate")]


def test_held_out_text_below_a_batch_is_refused(tmp_path, data):
    run = tiny_run(data, batch=1024)
    with pytest.raises(DataError, match=r"held-out sequences of 16 tokens .* need a batch of 1024"):
        fit(run, tmp_path)
    assert not list(tmp_path.rglob("*.jsonl*"))
