"""How every figure looks, and how it becomes the same bytes each time.

Colours are Okabe and Ito's, which stay apart for colour-blind readers. A colour means one family of codecs in every
figure.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path

import matplotlib
from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator

from taco.paper.table import Cells
from taco.recipes import PRESETS

WIDTH = 7.0
"""Inches: two columns of a paper."""

PAPER, OURS, OTHERS, PLAIN = "#D55E00", "#0072B2", "#666666", "#000000"
FAMILY = {
    "none": PLAIN,
    **dict.fromkeys(("taco", "taco-e5m2"), PAPER),
    **dict.fromkeys(("int8", "int6", "int4", "fp8"), OURS),
}
AXIS_COLOURS = {"tp": "#0072B2", "dp": "#E69F00", "pp": "#009E73"}
ROLE_COLOURS = {"tp_forward": "#0072B2", "tp_backward": "#D55E00"}
ROLE_WORDS = {"tp_forward": "forward", "tp_backward": "backward"}
GRID, FAINT = "#DDDDDD", "#999999"

RC = {
    "font.family": "DejaVu Sans", "font.size": 7.5, "axes.titlesize": 8, "axes.labelsize": 7.5,
    "axes.titlelocation": "left", "xtick.labelsize": 7, "ytick.labelsize": 7, "legend.fontsize": 7,
    "legend.frameon": False, "axes.linewidth": 0.6,
    "axes.spines.top": False, "axes.spines.right": False, "axes.axisbelow": True, "xtick.major.width": 0.6,
    "ytick.major.width": 0.6, "lines.linewidth": 1.2, "lines.markersize": 4, "figure.dpi": 100, "savefig.dpi": 200,
    "svg.hashsalt": "taco", "svg.fonttype": "path", "path.simplify": False, "axes.unicode_minus": True,
}  # fmt: skip


def figure(height: float, width: float = WIDTH) -> Figure:
    """An empty figure of this size in inches, without any global state of pyplot."""
    fig = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(fig)
    return fig


def own_fonts() -> None:
    """Forget the fonts of the machine: only those that come with matplotlib look the same everywhere."""
    fonts = font_manager.fontManager
    fonts.ttflist = [f for f in fonts.ttflist if f.fname.startswith(matplotlib.get_data_path())]


def save(fig: Figure, path: Path) -> tuple[Path, Path]:
    """Write `path`.svg and `path`.png, without dates or versions in them."""
    _settle(fig)
    path.parent.mkdir(parents=True, exist_ok=True)
    svg, png = path.with_suffix(".svg"), path.with_suffix(".png")
    fig.savefig(svg, metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    fig.savefig(png, metadata={"Software": None})
    return svg, png


def _settle(fig: Figure) -> None:
    """Lay the figure out once, then round where the axes are.

    The layout's solver differs in the last bits from call to call, and SVG ids are hashes of exact positions.
    """
    fig.draw_without_rendering()
    fig.set_layout_engine("none")
    for ax in fig.axes:
        ax.set_position([round(v, 4) for v in ax.get_position().bounds])


def colour(codec: str) -> str:
    """The colour of a codec's family; a variant such as 'taco-g256', which is no preset, has its base's."""
    if codec in PRESETS:
        return FAMILY.get(codec, OTHERS)
    return FAMILY.get(codec.split(" ")[0].split("-")[0], OTHERS)


NOTATION = "A / B: forward and backward; numbers: blocks, ends: embedding and head."
"""What `brief` leaves out of a policy's words, for a figure's notes."""


def brief(codec: str, width: int = 26) -> str:
    """The words of a table for a policy, shortened (`NOTATION`) and wrapped for a figure."""
    base, _, others = codec.removesuffix(")").partition(" (")
    base = base.removesuffix(" backward").replace(" forward, ", " / ") if " forward, " in base else base
    for long, short in (("the ends", "ends"), ("blocks ", ""), ("block ", "")):
        others = others.replace(long, short)
    return "\n".join(textwrap.wrap(f"{base} + {others}" if others else base, width))


def families(ax: Axes) -> None:
    """Empty lines on `ax` that tell a legend which colour is which family."""
    for label, value in (("the paper's codec", PAPER), ("ours", OURS), ("others", OTHERS)):
        ax.plot([], [], "o", color=value, label=label)


def percents(ax: Axes, axis: str) -> None:
    """Changes of a loss in %, along 'x' or 'y': logarithmic beyond 0.1 on both sides, and labelled so."""
    getattr(ax, f"set_{axis}scale")("symlog", linthresh=0.1)
    places = getattr(ax, f"{axis}axis")
    places.set_major_locator(FixedLocator([-10, -1, -0.1, 0, 0.1, 1, 10]))
    places.set_major_formatter(lambda value, _: f"{value:g}")


def grid(ax: Axes, axis: str) -> None:
    """Thin lines to read values by."""
    ax.grid(axis=axis, color=GRID, linewidth=0.5)
    ax.tick_params(length=2)


def spread(values: Sequence[float], gap: float) -> list[float]:
    """Positions as near to `values` as possible that are at least `gap` apart, in the values' order."""
    order = sorted(range(len(values)), key=lambda i: (values[i], i))
    blocks: list[list] = []  # [centre of the block's targets, indices]: touching blocks merge into one
    for i in order:
        blocks.append([values[i], [i]])
        while len(blocks) > 1 and _bottom(blocks[-1], gap) < _top(blocks[-2], gap) + gap:
            _, second = blocks.pop()
            members = blocks[-1][1] + second
            blocks[-1] = [sum(values[j] for j in members) / len(members), members]
    placed = [0.0] * len(values)
    for block in blocks:
        for k, i in enumerate(block[1]):
            placed[i] = _bottom(block, gap) + k * gap
    return placed


def _bottom(block: list, gap: float) -> float:
    return block[0] - gap * (len(block[1]) - 1) / 2


def _top(block: list, gap: float) -> float:
    return block[0] + gap * (len(block[1]) - 1) / 2


def label_at_right(ax: Axes, points: Sequence[tuple[float, float, str, str]], gap: float) -> None:
    """Write each (x, y, text, colour) beside the axes, `gap` apart in y units, with a thin line to its point."""
    right = ax.get_xlim()[1]
    for (x, y, text, tint), place in zip(points, spread([p[1] for p in points], gap), strict=True):
        ax.annotate(
            text, xy=(x, y), xytext=(right, place), color=tint, va="center", ha="left", fontsize=6.5,
            annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": tint, "linewidth": 0.35, "shrinkA": 1, "shrinkB": 2},
        )  # fmt: skip


# where a name may stand: points to the right and up of its point, and its alignment
_SIDES = [
    (right * 4, up, ha)
    for up in (-1.5, 4, -7, 9, -12, 14, -17, 19, -22)
    for right, ha in ((1, "left"), (-1, "right"), (0, "center"))
    if right or up != -1.5
]


def name_points(ax: Axes, points: Sequence[tuple[float, float, str, str]], size: float = 4.5) -> None:
    """Write each (x, y, name, colour) near its point, where it covers the least of other names and points.

    The axes have their final size and limits. A name's size is estimated: half of `size` (points) a letter. Names may
    have several lines.
    """
    inch = 72 / ax.get_figure().dpi
    places = [tuple(inch * v for v in ax.transData.transform((x, y))) for x, y, _, _ in points]
    left, bottom, right, top = (inch * v for v in ax.get_window_extent().extents)
    taken = [(x - 2, y - 2, x + 2, y + 2) for x, y in places]
    for (x, y, name, tint), (at_x, at_y) in sorted(zip(points, places, strict=True), key=lambda p: (-p[1][1], p[1][0])):
        lines, boxes = name.split("\n"), []
        wide, high = 0.5 * size * max(map(len, lines)), 1.2 * size * len(lines) - 0.2 * size
        for dx, dy, ha in _SIDES:
            start = at_x + dx - wide * {"left": 0, "center": 0.5, "right": 1}[ha]
            box = (start, at_y + dy, start + wide, at_y + dy + high)
            outside = max(0, left - box[0]) + max(0, box[2] - right) + max(0, bottom - box[1]) + max(0, box[3] - top)
            boxes.append((sum(_shared(box, other) for other in taken) + 10 * size * outside, box, (dx, dy, ha)))
        _, box, (dx, dy, ha) = min(boxes, key=lambda b: b[0])  # the first of equal ones: the nearest
        taken.append(box)
        far = {"arrowstyle": "-", "color": tint, "linewidth": 0.3, "shrinkA": 0, "shrinkB": 1} if abs(dy) > 8 else None
        ax.annotate(
            name, (x, y), (dx, dy), textcoords="offset points", color=tint, fontsize=size, ha=ha, va="bottom",
            linespacing=1.0, arrowprops=far,
        )  # fmt: skip


def _shared(a: tuple[float, ...], b: tuple[float, ...]) -> float:
    """Area that two boxes (left, bottom, right, top) share."""
    return max(0.0, min(a[2], b[2]) - max(a[0], b[0])) * max(0.0, min(a[3], b[3]) - max(a[1], b[1]))


def empty(ax: Axes, text: str) -> None:
    """Say in the place of a panel why it has nothing to show."""
    ax.set_axis_off()
    ax.text(0.5, 0.5, text, ha="center", va="center", color=FAINT, transform=ax.transAxes)


def notes(fig: Figure, rows: Iterable[Cells], *, speed: bool = False, more: str = "") -> None:
    """The line under a figure: where the numbers come from, which logs this source lacks, what CPU times mean, and
    `more`."""
    rows = list(rows)
    measured = [r for r in rows if r["status"] == "measured"]
    lines = []
    places = {
        r["hardware"] + (f" over {r['transport']}" if r["transport"] not in ("", "none") else "") for r in measured
    }
    places = sorted(places - {""})
    if places:
        lines.append("Measured on " + "; ".join(places) + ".")
    if speed and any(r["device"] == "cpu" for r in measured):
        lines.append("Absolute speeds of CPU processes mean nothing for GPUs: read the ratios and the bytes.")
    absent = sorted({r["log"] for r in rows if r["status"] == "missing"})
    if absent:
        others = f" and {len(absent) - 4} more" if len(absent) > 4 else ""
        lines.append("Not measured in this source: " + ", ".join(absent[:4]) + others + ".")
    if more:
        lines.append(more)
    if lines:
        text = "\n".join(textwrap.wrap(" ".join(lines), width=150))
        fig.supxlabel(text, x=0.01, ha="left", fontsize=6, color="#555555")
