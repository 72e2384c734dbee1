"""Figure of collective: times and bandwidths over NVLink, and the gain over the best uncompressed arm by transport."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from taco.paper import style
from taco.paper.table import Cells, number
from taco.recipes.collective import COLLECTIVES, FUSED, TRANSPORTS, UNFUSED

DTYPE = "bfloat16"
WORDS = {"all_reduce": "all-reduce", "reduce_scatter": "reduce-scatter", "all_gather": "all-gather"}
WAYS = {"nvlink": "NVLink", "host": "host memory", "tcp": "loopback TCP"}
# (arm, codec) -> legend, colour, mark, line
LINES = {
    ("nccl", "none"): ("NCCL, uncompressed", style.OTHERS, "s", "-"),
    ("nccl-eager", "none"): ("NCCL, without a graph", style.OTHERS, "s", ":"),
    ("symm-two-shot", "none"): ("torch symmetric memory, two-shot", style.FAINT, "<", "-"),
    ("symm-one-shot", "none"): ("torch symmetric memory, one-shot", style.FAINT, ">", "--"),
    ("symm-copies", "none"): ("torch symmetric memory, copy engines", style.FAINT, "P", "-."),
    (FUSED, "none"): ("ours, uncompressed", style.PLAIN, "o", "-"),
    (FUSED, "taco"): ("taco", style.PAPER, "o", "-"),
    (FUSED, "int8"): ("int8", style.OURS, "s", "-"),
    (FUSED, "fp8"): ("fp8", style.OURS, "v", ":"),
    (FUSED, "int6"): ("int6", style.OURS, "^", "--"),
    (FUSED, "int4"): ("int4", style.OURS, "D", "-"),
}
TIMED = [key for key in LINES if key[1] not in ("fp8", "int6")]
TICKS = [t for power in range(6) for t in (10**power, 3 * 10**power)]


def collective(rows: list[Cells]) -> Figure:
    """Rows of panels: us a call, then bus bandwidth, each by size over NVLink; then the all-reduce's gain by link."""
    measured = [r for r in rows if r["status"] == "measured" and r["dtype"] == DTYPE]
    if not measured:
        fig = style.figure(1.2)
        style.empty(fig.subplots(), "no log in this source")
        style.notes(fig, rows)
        return fig
    fig = style.figure(7.1)
    body, foot = fig.subfigures(2, 1, height_ratios=(6.9, 0.2))
    axes = body.subplots(3, 3)
    nvlink = _of(measured, "nvlink")
    for column, name in enumerate(COLLECTIVES):
        mine = [r for r in nvlink if r["collective"] == name]
        _by_size(axes[0][column], mine, "us", f"{'abc'[column]}  {WORDS[name]}{_ranks(mine)}")
        _by_size(axes[1][column], mine, "bus_gbps", f"{'def'[column]}  {WORDS[name]}, bus bandwidth")
    for column, link in enumerate(TRANSPORTS):
        mine = [r for r in _of(measured, link) if r["collective"] == "all_reduce"]
        _gains(axes[2][column], mine, UNFUSED if link == "tcp" else FUSED, f"{'ghi'[column]}  {WAYS[link]}")
    for ax, label in zip(axes[:, 0], ("us a call, NVLink", "GB/s, NVLink", "gain of the all-reduce"), strict=True):
        ax.set_ylabel(label)
    drawn = {(r["arm"], r["codec"]) for r in measured}
    for key, (label, tint, mark, line) in LINES.items():
        if key in drawn:
            axes[0][0].plot([], [], label=label, **_look(tint, mark, line))
    body.legend(loc="outside lower center", ncols=5, handletextpad=0.4, columnspacing=1.2, fontsize=6.5)
    style.notes(foot, rows)
    return fig


def _of(rows: list[Cells], link: str) -> list[Cells]:
    """Rows of a transport, of the largest world size that it has."""
    mine = [r for r in rows if r["link"] == link]
    most = max((number(r["world_size"]) for r in mine), default=0)
    return [r for r in mine if number(r["world_size"]) == most]


def _ranks(rows: list[Cells]) -> str:
    return f", {rows[0]['world_size']} GPUs" if rows else ""


def _look(tint: str, mark: str, line: str) -> dict:
    return {"color": tint, "marker": mark, "linestyle": line, "markersize": 3, "linewidth": 0.8}


def _draw(ax: Axes, rows: list[Cells], arm: str, codec: str, column: str, key: tuple[str, str]) -> None:
    """The values of one arm and codec by size."""
    mine = sorted((r for r in rows if (r["arm"], r["codec"]) == (arm, codec)), key=lambda r: number(r["mib"]))
    if mine:
        ax.plot([number(r["mib"]) for r in mine], [number(r[column]) for r in mine], **_look(*LINES[key][1:]))


def _sizes(ax: Axes, rows: list[Cells]) -> None:
    sizes = sorted({number(r["mib"]) for r in rows})
    shown = sizes if len(sizes) < 7 else sizes[::-2][::-1]
    ax.set_xscale("log")
    ax.set_xticks(shown, [f"{size:g} MiB" if size == shown[-1] else f"{size:g}" for size in shown])
    ax.minorticks_off()


def _by_size(ax: Axes, rows: list[Cells], column: str, title: str) -> None:
    ax.set_title(title)
    if not rows:
        style.empty(ax, "not measured in this source")
        return
    for arm, codec in TIMED:
        _draw(ax, rows, arm, codec, column, (arm, codec))
    if column == "us":
        values = [number(r[column]) for r in rows if (r["arm"], r["codec"]) in TIMED]
        ax.set_yscale("log")
        ax.set_yticks(TICKS, [str(t) for t in TICKS])
        ax.set_ylim(0.8 * min(values, default=1.0), 1.25 * max(values, default=1.0))
    else:
        ax.set_ylim(0, None)
    _sizes(ax, rows)
    style.grid(ax, "both")


def _gains(ax: Axes, rows: list[Cells], arm: str, title: str) -> None:
    """Below the line at 1 compression costs time: where a curve crosses it, compression begins to pay."""
    ax.set_title(title + _ranks(rows))
    if not any(r["arm"] == arm for r in rows):
        style.empty(ax, "not measured in this source")
        return
    ax.axhline(1, color=style.PLAIN, linewidth=0.6, linestyle=":")
    for key in LINES:
        if key[0] == FUSED:
            _draw(ax, rows, arm, key[1], "speedup_vs_best_bf16", key)
    ax.set_ylim(0, None)
    _sizes(ax, rows)
    style.grid(ax, "both")
