"""An interrupted run goes on to the same losses, bit for bit; the log has every step once."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from distributed import run_ranks
from train_cases import fit, fit_ranks, log_of, numbers, stochastic, tiny_run

from taco.config import Override, Parallel, Policy
from taco.log import LogError, part_path
from taco.recipes import policy, preset
from taco.train import checkpoint
from taco.train.checkpoint import CheckpointError
from taco.train.data import prepare

# the warm-up ends between the checkpoint of step 6 and the interruption; then layers have codecs of their own
WARM = Policy(
    tp_forward=stochastic("int4"),
    tp_backward=stochastic("int6"),
    overrides=(Override(role="tp_forward", layers=(1,), codec=preset("int6")),),
    warmup_steps=7,
    warmup=stochastic(),
)

ALONE = {
    "plain": {},
    "accumulation": {"micro_batch": 2},
    "bf16": {"dtype": "bfloat16"},
    "virtual": {
        "parallel": Parallel(virtual_tp=2),
        "chosen": Policy(tp_forward=stochastic(), tp_backward=stochastic("int4")),
    },
    "warm-up": {"parallel": Parallel(virtual_tp=2), "chosen": WARM},
}


@pytest.mark.parametrize("case", ALONE)
def test_one_process_resumes_to_equal_bits(tmp_path, data, case):
    run = tiny_run(data, **ALONE[case])
    fit(run, tmp_path / "whole")
    assert fit(run, tmp_path / "cut", stop=8) == 0
    assert fit(run, tmp_path / "cut") == 6
    whole, cut = log_of(tmp_path / "whole"), log_of(tmp_path / "cut")
    assert numbers(cut) == numbers(whole)
    assert [r["step"] for r in cut.of("step")] == list(range(1, 11))
    assert cut.end["val_loss"] == whole.end["val_loss"] == whole.of("eval")[-1]["val_loss"]
    assert [r["step"] for r in cut.of("resume")] == [6]


def test_a_record_every_few_steps_has_their_mean_loss_also_after_a_resume(tmp_path, data):
    each, few = tiny_run(data), tiny_run(data, log_every=4)
    fit(each, tmp_path / "each")
    fit(few, tmp_path / "whole")
    fit(few, tmp_path / "cut", stop=8)
    assert fit(few, tmp_path / "cut") == 6
    whole, losses = log_of(tmp_path / "whole"), [r["loss"] for r in log_of(tmp_path / "each").of("step")]
    # of every fourth step, of the last, and of those with a checkpoint (every third)
    spans = [(0, 3), (3, 4), (4, 6), (6, 8), (8, 9), (9, 10)]
    assert [(r["step"], r["loss"]) for r in whole.of("step")] == [
        (end, pytest.approx(sum(losses[start:end]) / (end - start), rel=1e-12)) for start, end in spans
    ]
    assert numbers(log_of(tmp_path / "cut")) == numbers(whole)
    assert whole.end["val_loss"] == log_of(tmp_path / "each").end["val_loss"]


def test_comparison_sees_forgotten_moments(tmp_path, data, monkeypatch):
    """The comparison above can fail: without the optimizer's moments the losses are others."""
    run = tiny_run(data)
    fit(run, tmp_path / "whole")
    fit(run, tmp_path / "cut", stop=8)
    monkeypatch.setattr(checkpoint, "optimizer_state", lambda named, optimizer: {})
    assert fit(run, tmp_path / "cut") == 6
    assert numbers(log_of(tmp_path / "cut")) != numbers(log_of(tmp_path / "whole"))


RANKS = {
    "tp2-pp2": (
        Parallel(tp=2, pp=2, microbatches=2),
        Policy(
            tp_forward=preset("taco"),
            tp_backward=stochastic(),
            pp_forward=preset("tahquant"),
            pp_backward=stochastic(),
        ),
    ),
    "tp2-warm-up": (Parallel(tp=2), WARM),
    "dp2-differences": (Parallel(dp=2), policy(dp="sdp4bit")),
}


@pytest.mark.parametrize("case", RANKS)
def test_ranks_resume_to_equal_bits(tmp_path, data, case):
    parallel, chosen = RANKS[case]
    run = tiny_run(data, parallel=parallel, chosen=chosen)
    size = parallel.world_size
    run_ranks(size, fit_ranks, run, tmp_path / "whole", 0)
    assert run_ranks(size, fit_ranks, run, tmp_path / "cut", 8) == [0] * size
    assert run_ranks(size, fit_ranks, run, tmp_path / "cut", 0) == [6] * size
    assert numbers(log_of(tmp_path / "cut")) == numbers(log_of(tmp_path / "whole"))


def test_interrupted_after_the_last_checkpoint_only_closes_the_log(tmp_path, data):
    run = tiny_run(data)
    fit(run, tmp_path / "whole")
    log = log_of(tmp_path / "whole")
    part = part_path(log.path)
    log.path.rename(part)
    part.write_text("".join(part.read_text().splitlines(keepends=True)[:-1]))
    assert fit(run, tmp_path / "whole") == 10
    assert numbers(log_of(tmp_path / "whole")) == numbers(log)
    assert log_of(tmp_path / "whole").end["val_loss"] == log.end["val_loss"]


def test_finished_run_is_not_run_again_unless_forced(tmp_path, data):
    run = tiny_run(data, steps=3)
    fit(run, tmp_path)
    first = log_of(tmp_path)
    before = first.path.read_bytes()
    assert fit(run, tmp_path) is None
    assert first.path.read_bytes() == before
    assert fit(run, tmp_path, force=True) == 0
    assert first.path.read_bytes() != before
    assert numbers(log_of(tmp_path)) == numbers(first)


def _without_fields(config: dict) -> None:
    for role in ("tp_forward", "tp_backward"):
        del config["policy"][role]["difference"]
    for field in ("keep_checkpoints", "from_run", "from_step"):
        del config["train"][field]


def _age_log(path: Path) -> None:
    """Take fields out of a log's header, as if it were written before they existed."""
    header, *rest = path.read_text().splitlines(keepends=True)
    record = json.loads(header)
    _without_fields(record["config"])
    path.write_text(json.dumps(record) + "\n" + "".join(rest))


def test_what_was_written_before_a_field_existed_goes_on(tmp_path, data):
    run = tiny_run(data, parallel=Parallel(virtual_tp=2), chosen=policy(tp="int8"))
    fit(run, tmp_path / "whole")
    fit(run, tmp_path / "cut", stop=8)
    for path in (tmp_path / "cut" / "checkpoints").rglob("run.json"):
        about = json.loads(path.read_text())
        _without_fields(about["config"])
        path.write_text(json.dumps(about))
    _age_log(next((tmp_path / "cut" / "results").rglob("*.part")))
    assert fit(run, tmp_path / "cut") == 6
    assert numbers(log_of(tmp_path / "cut")) == numbers(log_of(tmp_path / "whole"))
    _age_log(log_of(tmp_path / "whole").path)
    assert fit(run, tmp_path / "whole") is None


def test_another_runs_result_is_not_overwritten(tmp_path, data):
    fit(tiny_run(data, steps=3), tmp_path)
    before = log_of(tmp_path).path.read_bytes()
    with pytest.raises(LogError, match=r"another configuration \(train\.steps: 3 there, 4 here\)"):
        fit(tiny_run(data, steps=4), tmp_path)
    assert log_of(tmp_path).path.read_bytes() == before


def test_another_runs_checkpoint_is_neither_used_nor_overwritten(tmp_path, data):
    fit(tiny_run(data), tmp_path, stop=8)
    files = sorted(p for p in tmp_path.rglob("*") if p.is_file())
    before = [p.read_bytes() for p in files]
    with pytest.raises(CheckpointError, match="another run"):
        fit(tiny_run(data, lr=0.5), tmp_path)
    assert [p.read_bytes() for p in files] == before
    assert fit(tiny_run(data), tmp_path) == 6


def test_damaged_checkpoint_stops_the_run_before_it_writes(tmp_path, data):
    run = tiny_run(data)
    fit(run, tmp_path, stop=8)
    file = next((tmp_path / "checkpoints" / "test" / "tiny-run" / "step-000006").glob("*.distcp"))
    file.write_bytes(file.read_bytes()[:100])
    part = next((tmp_path / "results").rglob("*.part"))
    before = part.read_bytes()
    with pytest.raises(CheckpointError, match="truncated"):
        fit(run, tmp_path)
    assert part.read_bytes() == before


def test_changed_corpus_is_not_trained_on(tmp_path, data):
    shutil.copytree(data, tmp_path / "data")
    run = tiny_run(tmp_path / "data")
    fit(run, tmp_path, stop=8)
    shutil.rmtree(tmp_path / "data")
    text = tmp_path / "text.txt"
    text.write_text("Another text that is long enough to train on.\n" * 200)
    held = shutil.copy(text, tmp_path / "held.txt")
    prepare([text], tmp_path / "data", held_out=[held])
    with pytest.raises(LogError, match="its corpus"):
        fit(run, tmp_path)


def test_lost_log_of_a_checkpoint_is_an_error(tmp_path, data):
    run = tiny_run(data)
    fit(run, tmp_path, stop=8)
    next((tmp_path / "results").rglob("*.part")).unlink()
    with pytest.raises(LogError, match="start in the middle"):
        fit(run, tmp_path)
    assert fit(run, tmp_path, force=True) == 0


def test_restart_replaces_what_cannot_go_on_and_keeps_what_can(tmp_path, data):
    fit(tiny_run(data), tmp_path, stop=8)
    assert fit(tiny_run(data), tmp_path, restart=True) == 6
    other = tiny_run(data, lr=0.5)
    assert fit(other, tmp_path, restart=True) == 0
    assert log_of(tmp_path).header["config"]["train"]["lr"] == 0.5
    log_of(tmp_path).path.unlink()
    assert fit(other, tmp_path, restart=True) == 0
    assert fit(other, tmp_path, restart=True) is None
