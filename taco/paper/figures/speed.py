"""Figure of codec_speed: rates of every operation under the rate of a copy, small calls, other implementations."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from taco.paper import style
from taco.paper.table import Cells, number
from taco.recipes.speed import SPEED

MARKS = ("o", "v", "s", "^", "D", "<", "P", ">", "X", "d", "p", "h")
"""A mark for each codec of the grid: colours tell families only."""
CODECS = (*SPEED.codecs, *SPEED.coding_codecs)
TICKS = [t for power in range(5) for t in (10**power, 3 * 10**power)]
DTYPE = SPEED.dtypes[0]
WORDS = {
    "encode": "encode",
    "decode": "decode",
    "decode_sum": "decoded sum",
    "decode_sum_encode": "re-encoded sum",
}


def codec_speed(rows: list[Cells]) -> Figure:
    """A panel per operation and number of parts: GB/s by size; the copy's in grey. Then small calls, and the peers'."""
    operations = [r for r in rows if r["part"] == "operation" and r["status"] == "measured" and r["dtype"] == DTYPE]
    if not operations:
        fig = style.figure(1.2)
        style.empty(fig.subplots(), "no log in this source")
        style.notes(fig, rows)
        return fig
    beside = _beside(rows)
    fig = style.figure(6.2 + 0.14 * len(beside))
    top, bottom = fig.subfigures(2, 1, height_ratios=(5.4, 0.8 + 0.14 * len(beside)))
    axes = top.subplots(3, 3)
    ours = [r for r in operations if r["arm"] == "ours"]
    panels = [("encode", "1"), ("decode", "1"), *((op, str(n)) for op in WORDS if "sum" in op for n in SPEED.parts)]
    rates = [number(r[column]) for r in ours for column in ("gbps", "copy_gbps")]
    limits = (0.8 * min(rates, default=1.0), 1.25 * max(rates, default=1.0))
    places = [axes[0][0], axes[0][1], *axes[1], *axes[2]]
    for letter, ax, (op, parts) in zip("abdefghi", places, panels, strict=True):
        mine = [r for r in ours if r["op"] == op and r["parts"] == parts]
        title = f"{letter}  {WORDS[op]}" + (f" of {parts}" if parts != "1" else "")
        _roofline(ax, mine, title, limits)
    _launches(axes[0][2], [r for r in rows if r["part"] == "launch"])
    for ax in (axes[0][0], axes[1][0], axes[2][0]):
        ax.set_ylabel("GB/s")
    for codec in CODECS:
        axes[0][0].plot([], [], **_look(codec), label=codec)
    axes[0][0].plot([], [], "_", color=style.FAINT, markersize=7, label="copy of the same bytes")
    top.legend(loc="outside lower center", ncols=7, handletextpad=0.3, columnspacing=1.2, fontsize=6.5)
    _peers(bottom.subplots(), beside)
    style.notes(bottom, rows)
    return fig


def _look(codec: str) -> dict:
    return {"color": style.colour(codec), "marker": MARKS[CODECS.index(codec)], "markersize": 3, "linewidth": 0.7}


def _roofline(ax: Axes, rows: list[Cells], title: str, limits: tuple[float, float]) -> None:
    ax.set_title(title)
    if not rows:
        style.empty(ax, "not measured in this source")
        return
    sizes = sorted({number(r["mib"]) for r in rows})
    for r in rows:
        ax.plot(number(r["mib"]), number(r["copy_gbps"]), "_", color=style.FAINT, markersize=7, zorder=1)
    for codec in [c for c in reversed(CODECS) if any(r["codec"] == c for r in rows)]:
        mine = [r for r in rows if r["codec"] == codec]
        ax.plot([number(r["mib"]) for r in mine], [number(r["gbps"]) for r in mine], **_look(codec))
    ax.set(xscale="log", yscale="log")
    ax.set_yticks(TICKS, [str(t) for t in TICKS])
    ax.set_xticks(sizes, [f"{size:g} MiB" if size == sizes[0] else f"{size:g}" for size in sizes])
    ax.minorticks_off()
    ax.set_ylim(limits)
    style.grid(ax, "both")


def _launches(ax: Axes, rows: list[Cells]) -> None:
    ax.set_title("c  small calls, us a call")
    if not rows:
        style.empty(ax, "not measured in this source")
        return
    sizes = sorted({number(r["mib"]) for r in rows})
    times = [number(r["us"]) for r in rows]
    shift = {"encode": -0.24, "decode": -0.08, "decode_sum": 0.08, "decode_sum_encode": 0.24}
    for r in rows:
        look = _look(r["codec"]) | ({"markerfacecolor": "white"} if r["arm"] == "eager" else {})
        x = sizes.index(number(r["mib"])) + shift[r["op"]] + 0.06 * SPEED.launch_codecs.index(r["codec"])
        ax.plot(x, number(r["us"]), **look)
    ax.set_xticks(range(len(sizes)), [f"{1024 * size:g} KiB" for size in sizes])
    ax.set_yscale("log")
    ax.set_yticks(TICKS, [str(t) for t in TICKS])
    ax.minorticks_off()
    ax.set_ylim(0.7 * min(times), 1.8 * max(times))
    ax.text(0.02, 0.98, "open: host; filled: CUDA graph", fontsize=5.5, va="top", transform=ax.transAxes)
    ax.set_xlabel("each: encode, decode, and the two sums of 2", fontsize=5.5, labelpad=1)
    style.grid(ax, "y")


def _beside(rows: list[Cells]) -> list[Cells]:
    """Rows of the size at which implementations are compared: the others', and ours of the same codecs."""
    chosen = [
        r for r in rows
        if r["part"] == "operation" and r["dtype"] == DTYPE and number(r["mib"]) == SPEED.compared_mib and r["arm"]
    ]  # fmt: skip
    compared = {(r["op"], r["codec"]) for r in chosen if r["arm"] not in ("ours", "copy")}
    return [r for r in chosen if (r["op"], r["codec"]) in compared]


def _peers(ax: Axes, rows: list[Cells]) -> None:
    if not rows:
        style.empty(ax, "no other implementation in this source")
        return
    for y, r in enumerate(rows):
        if r["status"] == "failed":
            ax.text(0, y, " did not run", va="center", fontsize=6, color=style.FAINT)
            continue
        solid = r["arm"] == "ours"
        ax.barh(y, number(r["gbps"]), height=0.7, color=style.colour(r["codec"]), alpha=1.0 if solid else 0.45)
        ax.plot(number(r["copy_gbps"]), y, "|", color=style.PLAIN, markersize=6)
        ax.text(0, y, f" {number(r['us']):.1f} us", va="center", fontsize=6, color="white" if solid else style.PLAIN)
    ax.set_yticks(range(len(rows)), [f"{r['op']} {r['codec']}: {r['arm']}" for r in rows])
    ax.set_ylim(len(rows) - 0.4, -0.6)
    ax.set(
        xlabel="GB/s (line: a copy of the same bytes)", title=f"j  implementations, {SPEED.compared_mib} MiB of {DTYPE}"
    )
    style.grid(ax, "x")
