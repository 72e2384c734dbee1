"""The table of pareto and what chance does to a loss, against arithmetic done by hand here."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import matplotlib.pyplot as plt
import paper_logs
import pytest

from taco import log, recipes
from taco.config import Data, Override, Parallel, Run, Train, to_dict
from taco.paper import style, tables
from taco.paper.figures import draw
from taco.paper.table import distinct, number, read_table, write_table
from taco.paper.tables import load, pareto, training
from taco.recipes import MODELS, policy, preset

BASE = Run(
    name="base", model=MODELS["gpt-mini"], parallel=Parallel(virtual_tp=4), data=Data(corpus="data/text", seq=64),
    train=Train(steps=8, batch=4),
)  # fmt: skip


def run(name: str, *, seed: int = 1, parallel: Parallel | None = None, steps: int = 8, **codecs) -> Run:
    train = replace(BASE.train, seed=seed, steps=steps)
    return replace(BASE, name=name, policy=policy(**codecs), train=train, parallel=parallel or BASE.parallel)


def logs_of(folder: Path, *runs: tuple[Run, float]) -> load.Logs:
    return load.Logs(
        runs={r.name: log.read(paper_logs.run_log(folder, r, val_loss=loss, ratio=2.5)) for r, loss in runs}
    )


def rewritten(folder: Path, name: str, extra: list[tuple[str, dict]]) -> None:
    """The log with these records behind its own."""
    found = log.read(folder / f"{name}.jsonl")
    own = [(r["kind"], {k: v for k, v in r.items() if k != "kind"}) for r in found.records]
    end = {k: v for k, v in found.end.items() if k not in ("kind", "records")}
    paper_logs.write(folder / f"{name}.jsonl", own + extra, config=found.header["config"], end=end)


def policies(logs: load.Logs) -> dict[str, dict]:
    _, rows = pareto.pareto(logs)
    return {r["codec"]: r for r in rows if r["part"] == "policy"}


REVERSED = Parallel(virtual_tp=4, virtual_sum="reversed")
RUNS = (
    (run("none-1"), 2.0),
    (run("none-2", seed=2), 2.1),
    (run("none-reversed-1", parallel=REVERSED), 2.004),
    (run("none-vtp1-2", seed=2, parallel=Parallel()), 2.0979),
    (run("int8-1", tp="int8"), 2.002),
    (run("int8-2", seed=2, tp="int8"), 2.1084),
    (run("int4-1", tp="int4"), 2.04),
    (run("long", tp="int4", steps=16), 2.5),
)


def test_means_over_pairs_and_the_band_of_chance_by_hand(tmp_path: Path):
    int8 = policies(logs_of(tmp_path, *RUNS))["int8"]
    assert (int8["seeds"], int8["pairs"], int8["controls"]) == (2, 2, 2)
    assert int8["delta_pct"] == pytest.approx((0.1 + 0.4) / 2)
    assert (int8["delta_low_pct"], int8["delta_high_pct"]) == (pytest.approx(0.1), pytest.approx(0.4))
    # controls of seed 1: +0.2%, of seed 2: -0.1%
    assert int8["control_band_pct"] == pytest.approx(0.2)
    assert int8["within_band"] is True  # of the seeds, which is wider
    # the means of all uncompressed runs of a seed are 2.002 and 2.09895
    assert int8["delta_to_all_pct"] == pytest.approx((0.0 + 100 * (2.1084 / 2.09895 - 1)) / 2)
    assert int8["val_loss"] == pytest.approx(2.0552)
    assert int8["log"] == "int8-1; int8-2"
    assert int8["wire_ratio"] == pytest.approx(2.5, rel=1e-5)


def test_a_change_beyond_what_chance_does_is_outside_the_band(tmp_path: Path):
    one = policies(logs_of(tmp_path, *(pair for pair in RUNS[:-1] if pair[0].train.seed == 1)))
    assert (one["int8"]["within_band"], one["int4"]["within_band"]) == (True, False)


def test_without_controls_the_seeds_are_the_band(tmp_path: Path):
    logs = logs_of(tmp_path, *(pair for pair in RUNS if "vtp1" not in pair[0].name and "reversed" not in pair[0].name))
    int8 = policies(logs)["int8"]
    assert (int8["controls"], math.isnan(int8["control_band_pct"])) == (0, True)
    assert int8["noise_band_pct"] == pytest.approx(5.0)
    assert int8["within_band"] is True


def test_budgets_are_not_mixed_and_a_run_without_its_baseline_has_no_change(tmp_path: Path):
    _, rows = pareto.pareto(logs_of(tmp_path, *RUNS))
    int4 = [r for r in rows if r["codec"] == "int4"]
    assert [(r["planned_tokens"], r["pairs"]) for r in int4] == [(2048, 1), (4096, 0)]
    assert int4[0]["delta_pct"] == pytest.approx(2.0)
    assert math.isnan(int4[1]["delta_pct"])
    assert int4[1]["within_band"] is None


def test_a_control_is_no_baseline_and_is_compared_with_one(tmp_path: Path):
    _, rows = training.accuracy(logs_of(tmp_path, *RUNS))
    final = {r["log"]: r for r in rows if r["part"] == "final"}
    assert final["int8-1"]["delta_pct"] == pytest.approx(0.1)
    assert final["none-reversed-1"]["delta_pct"] == pytest.approx(0.2)
    assert (final["none-reversed-1"]["codec"], final["none-reversed-1"]["virtual_sum"]) == ("none", "reversed")
    assert final["none-1"]["delta_pct"] == 0
    assert final["int8-2"]["control_band_pct"] == pytest.approx(0.2)
    only = logs_of(tmp_path / "only", (run("none-reversed-1", parallel=REVERSED), 2.0), (run("int8-1", tp="int8"), 2.0))
    _, rows = training.accuracy(only)
    assert all(math.isnan(r["delta_pct"]) for r in rows if r["part"] == "final" and r["kind"] == "measured")


def test_what_stands_beside_the_loss(tmp_path: Path):
    logs_of(tmp_path, *RUNS[:1], *RUNS[4:5])
    prompt = {"corpus": "data/text", "prompt": [1, 2], "logprob": -1.0}
    exact = {"val_loss_uncompressed": 2.02}
    for name, loss, accuracy, tokens, more in (
        ("none-1", 3.0, 0.5, [7, 8, 9, 10], {}),
        ("int8-1", 3.03, 0.49, [7, 8, 5, 10], exact),
    ):
        rewritten(
            tmp_path,
            name,
            [
                ("eval", {"step": 8, "val_loss": 1.0, "val_accuracy": accuracy} | more),
                ("held_out", {"step": 8, "corpus": "data/code", "loss": loss, "accuracy": 0.1}),
                ("generate", {"step": 8, "tokens": tokens, **prompt}),
                *(("sqnr", {"step": s, "role": "tp_forward", "sqnr_db": s * 10.0}) for s in (1, 4, 4)),
                *(("depth", {"role": "tp_forward", "layer": i, "error": 0.1 * (i + 1)}) for i in (0, 1)),
                ("depth", {"role": "tp_forward", "layer": 0, "codec": "rounding", "error": 0.05}),
            ],
        )
    names = ("none-1", "int8-1")
    found = load.Logs(runs={name: log.read(tmp_path / f"{name}.jsonl") for name in names})
    int8 = policies(found)["int8"]
    assert int8["val_accuracy"] == 0.49
    assert int8["accuracy_change_points"] == pytest.approx(-1.0)
    assert (int8["other_corpus"], int8["other_delta_pct"]) == ("code", pytest.approx(1.0))
    assert int8["same_continuation"] == 0.5
    assert (int8["sqnr_forward_db"], math.isnan(int8["sqnr_backward_db"])) == (40.0, True)
    assert int8["delta_uncompressed_pct"] == pytest.approx(1.0)
    _, rows = training.accuracy(found)
    final = {r["log"]: r for r in rows if r["part"] == "final"}
    assert final["int8-1"]["delta_uncompressed_pct"] == pytest.approx(1.0)
    assert math.isnan(final["none-1"]["delta_uncompressed_pct"])
    _, rows = pareto.pareto(found)
    assert [(r["codec"], r["layer"], r["error"]) for r in rows if r["part"] == "depth"] == [
        ("int8", 0, pytest.approx(0.1)),
        ("int8", 1, pytest.approx(0.2)),
        ("rounding", 0, pytest.approx(0.05)),
    ]


def test_probes_of_one_block_have_rows_of_the_probe(tmp_path: Path):
    runs = [(run(f"none-{seed}", seed=seed), 2.0) for seed in (1, 2)]
    found = logs_of(tmp_path, *runs)
    for (each, _), error in zip(runs, (0.3, 0.4), strict=True):
        records = [
            ("sensitivity", {"step": 8, "role": "tp_backward", "layer": i, "codec": "int4", "error": error + i})
            for i in (-1, 0)
        ]
        rewritten(tmp_path, each.name, records)
    found = load.Logs(runs={name: log.read(tmp_path / f"{name}.jsonl") for name in found.runs})
    _, rows = pareto.pareto(found)
    assert {r["part"] for r in rows} == {"sensitivity"}
    assert [(r["codec"], r["role"], r["layer"], r["log"]) for r in rows] == [
        ("int4", "tp_backward", layer, "none-1; none-2") for layer in (-1, 0)
    ]
    assert rows[1]["error"] == pytest.approx(math.sqrt((0.3**2 + 0.4**2) / 2))


def _over(roles: str, layers: tuple[int, ...], codec: str) -> tuple[Override, ...]:
    return tuple(Override(role=f"tp_{role}", layers=layers, codec=preset(codec)) for role in roles.split())


WORDS = {
    "int4": policy(tp="int4"),
    "int4 (int8 in blocks 0 3)": replace(policy(tp="int4"), overrides=_over("forward backward", (3, 0), "int8")),
    "int4 (int8 in the ends and block 0)": replace(
        policy(tp="int4"), overrides=_over("forward backward", (-1, 0), "int8")
    ),
    "int4 (int8 forward in the ends)": replace(policy(tp="int4"), overrides=_over("forward", (-1,), "int8")),
    "none (int8 backward in block 2)": replace(policy(), overrides=_over("backward", (2,), "int8")),
    "int6 forward, int4 backward (int8 for 7 steps)": replace(
        policy(tp_forward="int6", tp_backward="int4"), warmup_steps=7, warmup=preset("int8")
    ),
    "int4 (none forward in block 0, int8 for 1 step)": replace(
        policy(tp="int4"), overrides=_over("forward", (0,), "none"), warmup_steps=1, warmup=preset("int8")
    ),
}


def test_policies_of_layers_and_warm_ups_have_rows_and_words_of_their_own(tmp_path: Path):
    runs = [(replace(run(f"r{i}"), policy=chosen), 2.0 + i / 100) for i, chosen in enumerate(WORDS.values())]
    found = policies(logs_of(tmp_path, RUNS[0], *runs))
    assert set(found) == set(WORDS)
    assert [found[words]["delta_pct"] for words in WORDS] == pytest.approx([0.5 * i for i in range(len(WORDS))])
    assert {style.colour(words) for words in WORDS if words.startswith("int")} == {style.OURS}
    _, rows = training.accuracy(logs_of(tmp_path, *runs))
    assert {r["codec"] for r in rows if r["kind"] == "measured"} == set(WORDS)


def test_the_figure_shows_every_part(tmp_path: Path):
    logs_of(tmp_path / "logs", *RUNS)
    for name in ("int8-1", "int4-1"):
        records = [("depth", {"role": role, "layer": i, "error": 0.1 * (i + 1)})
                   for role in ("tp_forward", "tp_backward") for i in (0, 1)]  # fmt: skip
        rewritten(tmp_path / "logs", name, [*records, ("sqnr", {"step": 8, "role": "tp_forward", "sqnr_db": 40.0})])
    found = load.Logs(runs={r.name: log.read(tmp_path / "logs" / f"{r.name}.jsonl") for r, _ in RUNS})
    write_table(tmp_path / "mini" / "pareto.csv", *pareto.pareto(found))
    svg, _ = draw.make("pareto", "mini", tmp_path, tmp_path)
    assert svg.stat().st_size > 10_000
    rows = read_table(tmp_path / "mini" / "pareto.csv")
    assert all(number(r["delta_pct"]) == pytest.approx(0.25) for r in rows if r["codec"] == "int8" and r["pairs"])


def test_an_old_log_without_newer_fields_is_comparable(tmp_path: Path):
    logs_of(tmp_path, *RUNS[:1], *RUNS[4:5])
    for name in ("none-1",):
        found = log.read(tmp_path / f"{name}.jsonl")
        config = to_dict(RUNS[0][0])
        del config["parallel"]["virtual_sum"], config["data"]["other"], config["train"]["generate"]
        records = [(r["kind"], {k: v for k, v in r.items() if k != "kind"}) for r in found.records]
        paper_logs.write(tmp_path / f"{name}.jsonl", records, config=config, end={"val_loss": 2.0})
    found = load.Logs(runs={name: log.read(tmp_path / f"{name}.jsonl") for name in ("none-1", "int8-1")})
    assert policies(found)["int8"]["delta_pct"] == pytest.approx(0.1)


def test_a_queued_run_has_a_row_where_it_has_a_log(tmp_path: Path):
    queued = recipes.EXPERIMENTS["accuracy"].optional("fresh")
    assert queued
    paper_logs.run_log(tmp_path / "fresh", recipes.RUNS[queued[0]])
    for name in ("accuracy", "pareto"):
        rows = read_table(tables.make(name, "fresh", tmp_path))
        found = {r["log"] for r in rows if r["status"] == "measured"}
        assert found == ({queued[0]} if name == "accuracy" else set())  # pareto has rows of compressed runs only
        assert not {r["log"] for r in rows} & set(queued[1:])


def test_a_run_that_read_another_text_is_no_baseline(tmp_path: Path):
    found = logs_of(tmp_path, *RUNS)
    for name, text in (("none-1", "a"), ("none-reversed-1", "a"), ("int8-1", "b")):
        found.runs[name].header["corpus"] = {"splits": {"train": {"sha256": text}}}
    int8 = policies(found)["int8"]
    assert (int8["seeds"], int8["pairs"]) == (2, 1)
    found.runs["int8-1"].header["corpus"] = found.runs["none-1"].header["corpus"]
    assert policies(found)["int8"]["pairs"] == 2


def test_distinct_values_are_few():
    assert distinct(["b", "a", "b", "", None]) == "a; b"
    assert distinct(range(6)) == "0 and 5 more"


def test_names_stand_beside_their_points_and_clear_of_each_other():
    fig, ax = plt.subplots(figsize=(4, 3), dpi=100)
    ax.set(xlim=(0, 10), ylim=(0, 10))
    points = [(2.0, 5.0, "alone", "red"), (8.0, 5.0, "first of two", "blue"), (8.0, 5.05, "second of two", "blue")]
    fig.draw_without_rendering()
    style.name_points(ax, points)
    boxes = {text.get_text(): text.get_window_extent() for text in ax.texts}
    assert set(boxes) == {name for _, _, name, _ in points}
    assert abs(boxes["alone"].y0 - ax.transData.transform((2, 5))[1]) < 8
    assert not boxes["first of two"].overlaps(boxes["second of two"])
    assert all(ax.get_window_extent().containsx(box.x0) and ax.get_window_extent().containsx(box.x1)
               for box in boxes.values())  # fmt: skip
    plt.close(fig)
