"""Figures of what codecs keep and of what tensor-parallel tensors look like."""

from __future__ import annotations

import math

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from taco.paper import style
from taco.paper.table import Cells, number
from taco.recipes import SOURCES, captures

ROOMY = 16  # data sets whose numbers of four figures stand side by side


def _unique(values) -> list[str]:
    return list(dict.fromkeys(values))


def codec_fidelity(rows: list[Cells]) -> Figure:
    """Top: SQNR of captured tensors against bytes an element, of all elements and of the small ones. Bottom: SQNR of
    every codec on every data set."""
    measured = [r for r in rows if r["status"] == "measured"]
    codecs = _unique((r["label"], r["codec"]) for r in measured)
    heights = 3.0, 1.3 + 0.16 * max(len(codecs), 10)
    fig = style.figure(sum(heights))
    top, bottom = fig.subfigures(2, 1, height_ratios=heights)
    sides, below = top.subplots(1, 2), bottom.subplots()
    if measured:
        _trade(sides[0], measured, "sqnr_db", "a  all elements of")
        _trade(sides[1], measured, "bulk_sqnr_db", "b  the 99% smallest of")
        _sqnr_map(below, measured, codecs)
    else:
        for ax in (*sides, below):
            style.empty(ax, "no log in this source")
    style.notes(fig, rows)
    return fig


def _trade(ax: Axes, rows: list[Cells], column: str, title: str) -> None:
    chosen = [r for r in rows if r["tensors"] == "captured"]
    words = "captured tensors" if chosen else "a normal distribution"
    chosen = chosen or [r for r in rows if r["dataset"] == "gauss"]
    chosen = [r for r in chosen if math.isfinite(number(r[column])) and r["label"] == "ours" and r["codec"] != "none"]
    if not chosen:
        style.empty(ax, "not in this source's log")
        return
    labels = []
    for codec in _unique(r["codec"] for r in chosen):
        mine = [r for r in chosen if r["codec"] == codec]
        xs, ys = [number(r["bytes_per_element"]) for r in mine], [number(r[column]) for r in mine]
        tint = style.colour(codec)
        ax.plot(xs, ys, "-", color=tint, linewidth=0.6)
        for r, x, y in zip(mine, xs, ys, strict=True):
            ax.plot(x, y, "v" if r["role"] == "tp_backward" else "o", color=tint, markersize=3.2, alpha=0.85)
        labels.append((max(xs), max(ys), codec, tint))
    style.grid(ax, "both")
    ax.set(xlabel="bytes an element on the wire", ylabel="SQNR, dB", title=f"{title} {words}", ylim=(-2, None))
    ax.plot([], [], "o", color=style.FAINT, markersize=3.2, label="forward")
    ax.plot([], [], "v", color=style.FAINT, markersize=3.2, label="backward")
    ax.legend(loc="lower left", handletextpad=0.1, borderpad=0)
    low, high = ax.get_ylim()
    style.label_at_right(ax, labels, (high - low) / 22)


def _sqnr_map(ax: Axes, rows: list[Cells], codecs: list[tuple[str, str]]) -> None:
    columns = _unique(_column(r) for r in rows)
    columns.sort(key=lambda c: (c[0] != "synthetic", c[1], number(c[2] or 0), c[3] != "tp_forward"))
    values = {(r["label"], r["codec"], *_column(r)): number(r["sqnr_db"]) for r in rows}
    grid = [[values.get((*codec, *column), math.nan) for column in columns] for codec in codecs]
    ax.imshow([[min(v, 55.0) for v in line] for line in grid], cmap="Blues", vmin=0, vmax=75, aspect="auto")
    digits = 1 if len(columns) <= ROOMY else 0
    for i, line in enumerate(grid):
        for j, value in enumerate(line):
            text = "" if math.isnan(value) else "∞" if value > 150 else f"{value:.{digits}f}"
            ax.text(j, i, text, ha="center", va="center", fontsize=6)
    names = [
        dataset + (f", step {step}" if step else "") + (f", {style.ROLE_WORDS.get(role, role)}" if role else "")
        for _, dataset, step, role in columns
    ]
    ax.set_xticks(range(len(columns)), names, rotation=40, ha="right", rotation_mode="anchor", fontsize=6)
    ax.set_yticks(range(len(codecs)), [c if label == "ours" else f"{c}, {label}" for label, c in codecs])
    for tick, (_, codec) in zip(ax.get_yticklabels(), codecs, strict=True):
        tick.set_color(style.colour(codec))
    ax.tick_params(length=0)
    for spine in ax.spines.values():
        spine.set_visible(False)
    ax.set_title("c  SQNR in dB by data set")


def _column(row: Cells) -> tuple[str, str, str, str]:
    return row["tensors"], row["dataset"], row.get("step", ""), row["role"]


def distribution(rows: list[Cells]) -> Figure:
    """Of one run's last captured step: histograms by direction; size, near-zero share, kurtosis and crest factor of the
    tensors by layer. Below, where there is more: kurtosis by run and step."""
    measured = [r for r in rows if r["part"] == "tensor" and r["status"] == "measured"]
    places = sorted(_unique(_place(r) for r in measured), key=_captured_order)
    more = 0.7 + 0.22 * len(places) if len(places) > 1 else 0.0
    fig = style.figure(4.4 + more)
    top, bottom = fig.subfigures(2, 1, height_ratios=(4.4, more)) if more else (fig, None)
    axes = top.subplots(2, 3)
    tensors, bins = (
        [r for r in found if _place(r) == places[0]]
        for found in (measured, [r for r in rows if r["part"] == "histogram"] if places else [])
    )
    if bottom is not None:
        _by_place(bottom.subplots(), measured, places)
        top.suptitle(_words(places[0]), fontsize=6.5, x=0.01, ha="left")
    for ax, role, letter in zip(axes[0], style.ROLE_WORDS, "ab", strict=False):
        _histograms(ax, [r for r in bins if r["role"] == role], f"{letter}  {style.ROLE_WORDS[role]}")
    if tensors:
        _by_layer(axes[0][2], tensors, {"rms": "o"})
        axes[0][2].set(ylabel="rms", title="c  size of the elements", yscale="log")
        axes[0][2].legend(handletextpad=0.1, borderpad=0, loc="best")
        _by_layer(axes[1][0], tensors, {"near_zero_fraction": "o"}, normal=math.erf(0.1 / math.sqrt(2)))
        axes[1][0].set(ylabel="share of |x| < 0.1 rms", title="d  near-zero elements", ylim=(0, None))
        _by_layer(axes[1][1], tensors, {"kurtosis": "o"}, normal=3)
        axes[1][1].set(ylabel="kurtosis", title="e  tails")
        _by_layer(axes[1][2], tensors, {"crest_db_mean": "o", "crest_rotated_db_mean": "s"})
        axes[1][2].set(ylabel="crest factor of a group, dB", title="f  as it is (filled), rotated (open)")
    else:
        for ax in (axes[0][2], *axes[1]):
            style.empty(ax, "no log in this source")
    style.notes(fig, rows)
    return fig


def _place(row: Cells) -> tuple[str, str]:
    return row["run"], row.get("step", "")


def _words(place: tuple[str, str]) -> str:
    return place[0] + (f", step {place[1]}" if place[1] else "")


def _captured_order(place: tuple[str, str]) -> tuple:
    """In the order of the recipes, a run's last step first."""
    known = [run for source in SOURCES for run in captures(source)]
    return known.index(place[0]) if place[0] in known else len(known), place[0], -number(place[1] or 0)


def _by_place(ax: Axes, rows: list[Cells], places: list[tuple[str, str]]) -> None:
    for role, tint in style.ROLE_COLOURS.items():
        shift = -0.15 if role == "tp_forward" else 0.15
        mine = [(number(r["kurtosis"]), places.index(_place(r)) + shift) for r in rows if r["role"] == role]
        ax.plot(*zip(*mine, strict=True), "o", color=tint, markersize=2.5, alpha=0.3, markeredgewidth=0)
    ax.axvline(3, color=style.FAINT, linestyle="--", linewidth=0.8)
    ax.set(xscale="log", xlabel="kurtosis (dashed: normal)", title="g  tails by run and step", ylim=(len(places), -1))
    ax.set_yticks(range(len(places)), [_words(place) for place in places])
    style.grid(ax, "x")


def _histograms(ax: Axes, bins: list[Cells], title: str) -> None:
    if not bins:
        style.empty(ax, "no histogram in this source")
        return
    layers = _unique((r["run"], r["layer"], r["name"]) for r in bins)
    for i, layer in enumerate(layers):
        mine = [r for r in bins if (r["run"], r["layer"], r["name"]) == layer]
        xs = [(number(r["bin_low"]) + number(r["bin_high"])) / 2 for r in mine]
        ys = [number(r["density"]) or math.nan for r in mine]
        shade = 0.25 + 0.75 * i / max(1, len(layers) - 1)
        ax.plot(xs, ys, color=style.ROLE_COLOURS[bins[0]["role"]], alpha=shade, linewidth=0.9)
    low, high = number(bins[0]["bin_low"]), max(number(r["bin_high"]) for r in bins)
    xs = [low + (high - low) * i / 200 for i in range(201)]
    ys = [math.exp(-x * x / 2) / math.sqrt(2 * math.pi) for x in xs]
    ax.plot(xs, [y if y > 1e-6 else math.nan for y in ys], color=style.FAINT, linestyle="--", linewidth=0.8)
    ax.text(0.03, 0.93, "dashed: normal", color=style.FAINT, fontsize=6.5, transform=ax.transAxes)
    style.grid(ax, "y")
    ax.set(
        yscale="log",
        ylim=(1e-6, 10),
        xlabel="x / rms",
        ylabel="density",
        title=f"{title} (darker: deeper)",
    )


def _by_layer(ax: Axes, rows: list[Cells], columns: dict[str, str], normal: float | None = None) -> None:
    """One mark per tensor and column; the first column's marks are filled, the second's open."""
    if normal is not None:
        ax.axhline(normal, color=style.FAINT, linestyle="--", linewidth=0.8)
        ax.text(1, normal, "normal ", color=style.FAINT, ha="right", va="bottom", fontsize=6.5,
                transform=ax.get_yaxis_transform())  # fmt: skip
    layers = _unique(r["layer"] for r in sorted(rows, key=lambda r: (number(r["layer"]), r["layer"])))
    for role, tint in style.ROLE_COLOURS.items():
        shift = -0.12 if role == "tp_forward" else 0.12
        mine = [r for r in rows if r["role"] == role]
        for (column, mark), face in zip(columns.items(), (tint, "white"), strict=False):
            xs = [layers.index(r["layer"]) + shift for r in mine]
            ax.plot(
                xs, [number(r[column]) for r in mine], mark, color=tint, markerfacecolor=face, markersize=3.5, alpha=0.8
            )
        ax.plot([], [], "o", color=tint, label=style.ROLE_WORDS[role])
    ax.set_xticks(range(len(layers)), ["ends" if layer == "-1" else layer for layer in layers])
    ax.set_xlabel("layer")
    style.grid(ax, "y")
