"""Verdicts on the speed of collectives: INT8 against the best uncompressed ones, by transport; and on ranks' bits."""

from __future__ import annotations

from collections.abc import Callable

from taco.paper.claims.verdict import Tables, Verdict, absent, finite, judged
from taco.paper.table import Cells, number
from taco.paper.tables.load import mean
from taco.recipes.claims import Claim
from taco.recipes.collective import CHOSEN, COLLECTIVE, FUSED, UNFUSED

CODEC = "int8"
# transport -> our arm there, and the sizes in MiB between which its claim speaks
JUDGED = {"nvlink": (FUSED, 64, 256), "host": (FUSED, 16, 256), "tcp": (UNFUSED, 16, 64)}


def _sizes(link: str) -> tuple[float, ...]:
    """The sizes of the full grid that a claim speaks of."""
    _, low, high = JUDGED[link]
    cases = (case for case in COLLECTIVE[link].cases() if case.collective == "all_reduce")
    return tuple(case.mib for case in cases if low <= case.mib <= high)


def all_reduce(link: str) -> Callable[[Claim, Tables], Verdict]:
    """The rule for one transport: the size with the least gain decides, and no size may be missing."""

    def rule(claim: Claim, tables: Tables) -> Verdict:
        arm, sizes = JUDGED[link][0], _sizes(link)
        rows = tables.rows("collective", collective="all_reduce", link=link, arm=arm, codec=CODEC, dtype="bfloat16")
        rows = [r for r in finite(rows, "speedup_vs_best_bf16") if number(r["mib"]) in sizes]
        if {number(r["mib"]) for r in rows} != set(sizes):
            told = ", ".join(f"{size:g}" for size in sizes)
            return absent(f"times of {CODEC} beside an uncompressed all-reduce over {link} at each of {told} MiB")
        worst = min(rows, key=lambda r: number(r["speedup_vs_best_bf16"]))
        value = number(worst["speedup_vs_best_bf16"])
        return judged(value >= claim.threshold, value, f"least gain of {len(rows)}: {_words(worst)}", rows)

    return rule


def never_slower(claim: Claim, tables: Tables) -> Verdict:
    """The paths that measured tables choose, every collective, size, codec and transport."""
    rows = finite(tables.rows("collective", arm=CHOSEN), "speedup_vs_best_bf16")
    if not rows:
        return absent("times of the paths that a crossover table chooses")
    worst = min(rows, key=lambda r: number(r["speedup_vs_best_bf16"]))
    value = number(worst["speedup_vs_best_bf16"])
    words = (
        f"least of {len(rows)}: {worst['collective']} of {worst['codec']} over {worst['link']}, path {worst['path']}"
    )
    return judged(value >= claim.threshold, value, f"{words}, {_words(worst)}", rows)


def _words(row: Cells) -> str:
    own = number(row["speedup_vs_own_bf16"])
    kernel = f", {own:.2f}x against our own kernel with an uncompressed payload" if own == own else ""
    return (
        f"{row['mib']} MiB on {row['world_size']} ranks in {number(row['us']):.1f} us against "
        f"{number(row['best_bf16_us']):.1f} us of {row['best_bf16_arm']}{kernel}"
    )


def rank_identical(claim: Claim, tables: Tables) -> Verdict:
    """Every all-reduce and all-gather of ours that was timed, on every transport."""
    rows = [r for r in tables.rows("collective", label="ours") if r["rank_identical"] in ("true", "false")]
    if not rows:
        return absent("timed collective of ours whose ranks were compared")
    value = mean(r["rank_identical"] == "true" for r in rows)
    other = [r for r in rows if r["rank_identical"] == "false"]
    words = f"the ranks' bits are equal in {len(rows) - len(other)} of {len(rows)} timed collectives"
    named = "; ".join(f"{r['collective']} {r['arm']} {r['codec']} {r['mib']} MiB over {r['link']}" for r in other[:3])
    return judged(value >= claim.threshold, value, words + (f", not in {named}" if other else ""), rows)
