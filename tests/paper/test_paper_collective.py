"""collective on paper: gains and bandwidths by hand, who is what, and every verdict each way that it can come out."""

from __future__ import annotations

from pathlib import Path

import collective_logs
import pytest
from collective_logs import MIB, failed, row

from taco.paper import claims, tables
from taco.paper.claims.verdict import FAILS, HOLDS, UNTESTABLE
from taco.paper.figures import draw
from taco.paper.figures.collective import collective as figure
from taco.paper.table import Cells, read_table
from taco.recipes import EXPERIMENTS
from taco.recipes.collective import COLLECTIVES


def made(folder: Path, *records: dict, transport: str = "nvlink") -> list[Cells]:
    """The measured and failed rows of the table of one transport's log."""
    collective_logs.write(folder / "fresh", transport, list(records))
    rows = read_table(tables.make("collective", "fresh", folder))
    return [r for r in rows if r["status"] != "missing"]


def found(rows: list[Cells], arm: str, codec: str = "none") -> Cells:
    (only,) = [r for r in rows if (r["arm"], r["codec"]) == (arm, codec)]
    return only


def ours(us: float, **more) -> dict:
    return row(us, **{"arm": "fused", "codec": "int8"} | more)


# --- table -----------------------------------------------------------------------------------------


def test_gains_are_against_the_fastest_that_is_uncompressed_and_not_ours(tmp_path: Path):
    rows = made(
        tmp_path, row(240.0), row(210.0, arm="symm-two-shot"), ours(180.0, codec="none"), ours(100.0),
        row(150.0, arm="unfused", codec="int8"), row(50.0, arm="quick", codec="fp8", source="s", note="n"),
    )  # fmt: skip
    assert {(r["best_bf16_us"], r["best_bf16_arm"]) for r in rows} == {("210", "symm-two-shot")}
    gains = {(r["arm"], r["codec"]): (r["speedup_vs_best_bf16"], r["speedup_vs_own_bf16"]) for r in rows}
    assert gains["fused", "int8"] == ("2.1", "1.8")
    assert gains["unfused", "int8"] == ("1.4", "1.2")
    assert gains["nccl", "none"] == ("0.875", "0.75")
    assert gains["quick", "fp8"] == ("4.2", "3.6")


@pytest.mark.parametrize("other", [{"mib": 128}, {"collective": "all_gather"}, {"world_size": 4}, {"dtype": "float16"}])
def test_other_cases_are_not_compared(other: dict, tmp_path: Path):
    row_ = found(made(tmp_path, row(240.0, **other), ours(100.0)), "fused", "int8")
    assert {row_[k] for k in ("best_bf16_us", "best_bf16_arm", "speedup_vs_best_bf16", "speedup_vs_own_bf16")} == {""}


def test_another_transports_times_are_not_compared(tmp_path: Path):
    collective_logs.write(tmp_path / "fresh", "host", [row(2400.0, transport="host")])
    assert found(made(tmp_path, ours(100.0)), "fused", "int8")["best_bf16_us"] == ""


@pytest.mark.parametrize(
    ("collective", "ranks", "gbps"),
    [
        ("all_reduce", 2, "671.089"), ("reduce_scatter", 2, "335.544"), ("all_gather", 4, "503.316"),
        ("all_reduce", 8, "1174.41"),
    ],
)  # fmt: skip
def test_bus_bandwidth_by_hand(collective: str, ranks: int, gbps: str, tmp_path: Path):
    (only,) = made(tmp_path, row(100.0, collective=collective, world_size=ranks))
    assert only["bytes"] == str(64 * MIB)
    assert only["bus_gbps"] == gbps


def test_a_row_says_whose_it_is_and_where(tmp_path: Path):
    arms = ("nccl", "symm-one-shot", "fused", "unfused", "coccl-ring", "quick")
    rows = made(tmp_path, *(row(40.0, transport="tcp", arm=arm, source="s", note="n") for arm in arms), transport="tcp")
    assert {r["arm"]: r["label"] for r in rows} == {
        "nccl": "peer", "symm-one-shot": "peer", "fused": "ours", "unfused": "ours", "coccl-ring": "authors-code",
        "quick": "peer",
    }  # fmt: skip
    assert {(r["link"], r["transport"], r["implementation"], r["note"]) for r in rows} == {
        ("tcp", "nccl 2.28", "s", "n")
    }


def test_an_arm_that_raised_has_its_reason_and_no_number(tmp_path: Path):
    rows = made(tmp_path, row(240.0), failed(arm="fused", codec="int8", reason="no peer access"))
    broken = found(rows, "fused", "int8")
    assert (broken["status"], broken["reason"], broken["label"]) == ("failed", "no peer access", "ours")
    assert {broken[k] for k in ("us", "bus_gbps", "best_bf16_us", "speedup_vs_best_bf16", "rank_identical")} == {""}


def test_the_order_is_that_of_transports_collectives_and_arms(results: Path):
    rows = read_table(results / "fresh" / "collective.csv")
    assert list(dict.fromkeys(r["link"] for r in rows)) == ["nvlink", "host", "tcp"]
    assert list(dict.fromkeys(r["collective"] for r in rows)) == list(COLLECTIVES)
    first = [(r["arm"], r["codec"]) for r in rows if (r["link"], r["mib"]) == ("nvlink", "0.25")]
    assert first[:5] == [
        ("nccl", "none"), ("symm-two-shot", "none"), ("symm-one-shot", "none"), ("fused", "none"), ("fused", "taco"),
    ]  # fmt: skip
    assert first[-1][0] == "other"


def test_it_is_an_experiment_of_three_logs_that_mini_does_not_have():
    logs = ("collective-nvlink", "collective-host", "collective-tcp")
    assert [EXPERIMENTS["collective"].logs(source) for source in ("mini", "logged", "fresh")] == [(), logs, logs]


# --- claims ----------------------------------------------------------------------------------------

SIZES = {"nvlink": (64, 128, 256), "host": (16, 64, 256), "tcp": (16, 64)}


def sized(transport: str, us: dict[float, float], **more) -> list[dict]:
    """NCCL in 1000 us and ours in us[mib], at each of these sizes."""
    arm = "unfused" if transport == "tcp" else "fused"
    where = {"transport": transport} | more
    pairs = [(row(1000.0, mib=mib, **where), ours(time, mib=mib, **{"arm": arm} | where)) for mib, time in us.items()]
    return [each for pair in pairs for each in pair]


def verdict(folder: Path, claim: str, transport: str, records: list[dict]) -> Cells:
    made(folder, *records, transport=transport)
    return next(r for r in read_table(claims.make("fresh", folder)) if r["id"] == claim)


@pytest.mark.parametrize(("transport", "least"), [("nvlink", 2.0), ("host", 1.75), ("tcp", 2.0)])
def test_the_worst_size_decides(transport: str, least: float, tmp_path: Path):
    exact = dict.fromkeys(SIZES[transport], 1000 / least)
    claim = f"all-reduce-{transport}"
    small = sized(transport, {1: 4000.0})
    holds = verdict(tmp_path, claim, transport, sized(transport, exact) + small)
    assert (holds["verdict"], float(holds["value"])) == (HOLDS, pytest.approx(least))
    slow = exact | {SIZES[transport][1]: 1000 / least + 1}
    fails = verdict(tmp_path, claim, transport, sized(transport, slow) + small)
    assert (fails["verdict"], float(fails["value"]) < least) == (FAILS, True)
    assert f"{SIZES[transport][1]} MiB on 2 ranks" in fails["reason"]


@pytest.mark.parametrize("transport", SIZES)
def test_nothing_is_judged_without_every_size_of_ours_and_theirs(transport: str, tmp_path: Path):
    fast = dict.fromkeys(SIZES[transport], 100.0)
    whole = sized(transport, fast)
    other = [{**r, "arm": "fused" if transport == "tcp" else "unfused"} if r["codec"] == "int8" else r for r in whole]
    for records in (
        whole[2:], [r for r in whole if r["codec"] == "none"], [r for r in whole if r["codec"] == "int8"], other,
        sized(transport, fast, collective="reduce_scatter"), sized(transport, fast, dtype="float16"),
    ):  # fmt: skip
        made_ = verdict(tmp_path, f"all-reduce-{transport}", transport, records)
        assert (made_["verdict"], made_["value"], made_["status"]) == (UNTESTABLE, "", "missing")


def test_torchs_own_kernel_is_a_rival_too_and_ours_uncompressed_is_told(tmp_path: Path):
    us = dict.fromkeys(SIZES["nvlink"], 400.0)
    records = [*sized("nvlink", us), row(700.0, arm="symm-two-shot", mib=256), ours(720.0, codec="none", mib=256)]
    fails = verdict(tmp_path, "all-reduce-nvlink", "nvlink", records)
    assert (fails["verdict"], fails["value"]) == (FAILS, "1.75")
    assert "700.0 us of symm-two-shot, 1.80x against our own kernel" in fails["reason"]


@pytest.mark.parametrize(
    ("records", "verdict_is", "value"),
    [
        ([ours(1.0), ours(1.0, codec="none"), ours(1.0, arm="unfused")], HOLDS, "1"),
        ([ours(1.0), ours(1.0, codec="int4", rank_identical=False)], FAILS, "0.5"),
        ([ours(1.0), row(1.0, rank_identical=False)], HOLDS, "1"),
        ([ours(1.0, collective="reduce_scatter", rank_identical=None)], UNTESTABLE, ""),
        ([row(1.0)], UNTESTABLE, ""),
    ],
)
def test_ranks_bits_are_judged_over_every_row_of_ours(records: list[dict], verdict_is: str, value: str, tmp_path: Path):
    found_ = verdict(tmp_path, "rank-identical", "nvlink", records)
    assert (found_["verdict"], found_["value"]) == (verdict_is, value)
    assert ("not in all_reduce fused int4 64 MiB over nvlink" in found_["reason"]) == (verdict_is == FAILS)


@pytest.mark.parametrize(("us", "verdict_is"), [(980.0, HOLDS), (1020.0, HOLDS), (1030.0, FAILS)])
def test_the_slowest_chosen_path_decides(us: float, verdict_is: str, tmp_path: Path):
    records = [row(1000.0), ours(us, arm="chosen", path="fused"), ours(10.0)]
    records += [row(1000.0, mib=1), ours(900.0, arm="chosen", path="uncompressed", mib=1)]
    found_ = verdict(tmp_path, "never-slower", "nvlink", records)
    assert (found_["verdict"], float(found_["value"])) == (
        verdict_is,
        pytest.approx(min(1000 / us, 1000 / 900), rel=1e-5),
    )
    assert "all_reduce of int8 over nvlink, path fused, 64 MiB on 2 ranks" in found_["reason"]
    nothing = verdict(tmp_path / "other", "never-slower", "nvlink", [row(1000.0), ours(10.0)])
    assert (nothing["verdict"], nothing["status"]) == (UNTESTABLE, "missing")


# --- figure ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("records", [[row(9.0, mib=1)], [ours(9.0, mib=1, collective="all_gather")], [failed()]])
def test_the_figure_of_a_quick_look_says_what_it_lacks(records: list[dict], tmp_path: Path):
    made(tmp_path, *records)
    svg, _ = draw.make("collective", "fresh", tmp_path, tmp_path / "figures")
    assert svg.stat().st_size > 1000


def test_the_legend_names_what_was_measured_and_nothing_else(tmp_path: Path):
    copies = row(8.0, arm="symm-copies", collective="all_gather")
    drawn = figure(made(tmp_path, row(9.0), copies, ours(5.0), failed(arm="symm-one-shot")))
    _, labels = drawn.subfigs[0].axes[0].get_legend_handles_labels()
    assert labels == ["NCCL, uncompressed", "torch symmetric memory, copy engines", "int8"]
