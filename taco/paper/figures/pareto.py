"""Figure of pareto: change of the loss against bytes and against SQNR, with what chance alone does; errors by block."""

from __future__ import annotations

import math
from collections import Counter

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from taco.paper import style
from taco.paper.figures.training import BAND, budget_words, nothing, places_of
from taco.paper.table import Cells, number

TRADES = (("wire_ratio", "times fewer bytes than uncompressed"), ("sqnr_forward_db", "SQNR of forward messages, dB"))
"""Column of the table and axis of the panels that have values."""

BELOW = {"depth": "error by depth", "sensitivity": "bits in one block alone"}
"""Part of the table -> words of its panels."""


def pareto(rows: list[Cells]) -> Figure:
    """Top: mean change of the validation loss of each policy, in panels of each model, corpus and budget; a dash is
    that of the same weights without compression.

    Below: errors behind each block, a line per policy, and of the gradient with a codec in one block alone; each of
    the model, corpus and budget that has most of them.
    """
    points = [r for r in rows if r["part"] == "policy" and r["status"] == "measured"]
    if not points:
        return nothing(rows)
    below = [(words, found) for part, words in BELOW.items() if (found := [r for r in rows if r["part"] == part])]
    panels = [
        (place, column, label)
        for place in places_of(points)
        for column, label in TRADES
        if any(math.isfinite(number(r[column])) for r in _of(points, place))
    ]
    count = math.ceil(len(panels) / 2)
    fig = style.figure(0.8 + 2.4 * (count + len(below)))
    body = fig.subfigures()  # the legend stands outside of it, below the title
    lines = body.subfigures(count + len(below), 1, squeeze=False)[:, 0]
    letters = iter("abcdefghijklmnopqrstuvwxyz")
    trades = []
    for i, line in enumerate(lines[:count]):
        here = panels[2 * i : 2 * i + 2]
        for ax, (place, column, label) in zip(line.subplots(1, len(here), squeeze=False)[0], here, strict=True):
            title = f"{next(letters)}  {budget_words(place)}"
            trades.append((ax, _trade(ax, _of(points, place), column, label, title)))
    for line, (words, found) in zip(lines[count:], below, strict=True):
        place, _ = Counter(places_of([r])[0] for r in found).most_common(1)[0]
        where = budget_words(place).rpartition(", ")[0]  # without the text
        for ax, role in zip(line.subplots(1, 2), style.ROLE_WORDS, strict=True):
            mine = [r for r in found if r["role"] == role and places_of([r])[0] == place]
            title = f"{next(letters)}  {style.ROLE_WORDS[role]} {words}, {where}"
            trades.append((ax, _errors(ax, mine, title)))
    style.families(trades[0][0])
    trades[0][0].plot([], [], "s", color=BAND, label="chance")
    if any(math.isfinite(number(r["delta_uncompressed_pct"])) for r in points):
        trades[0][0].plot([], [], "_", color="black", label="same weights, messages as they are")
    handles, labels = trades[0][0].get_legend_handles_labels()
    body.legend(handles, labels, loc="outside upper right", ncols=5, handletextpad=0.1, columnspacing=1.2, fontsize=6)
    style.notes(body, rows, more=style.NOTATION if any(" " in r["codec"] for r in points) else "")
    fig.draw_without_rendering()  # axes have their final size
    for ax, named in trades:
        style.name_points(ax, named)
    return fig


def _of(rows: list[Cells], place: tuple) -> list[Cells]:
    return [r for r in rows if places_of([r])[0] == place]


def _trade(ax: Axes, rows: list[Cells], column: str, label: str, title: str) -> list[tuple[float, float, str, str]]:
    """Draw a panel; its points as (x, y, name, colour)."""
    shown = [r for r in rows if math.isfinite(number(r[column])) and math.isfinite(number(r["delta_pct"]))]
    chance = [number(r[band]) for r in shown for band in ("control_band_pct", "noise_band_pct")]
    chance = [band for band in chance if math.isfinite(band)]
    if chance:
        ax.axhspan(-max(chance), max(chance), color=BAND, linewidth=0)
    ax.axhline(0, color="black", linewidth=0.6)
    named = []
    for r in shown:
        x, y, tint = number(r[column]), number(r["delta_pct"]), style.colour(r["codec"])
        ax.plot([x, x], [number(r["delta_low_pct"]), number(r["delta_high_pct"])], color=tint, linewidth=0.6)
        ax.plot(x, y, "o", color=tint, markersize=3.5, alpha=0.85)
        ax.plot(x, number(r["delta_uncompressed_pct"]), "_", color=tint, markersize=7, markeredgewidth=0.8)
        named.append((x, y, style.brief(r["codec"]), tint))
    style.percents(ax, "y")
    ax.set(xlabel=label, ylabel="Δ validation loss, %")
    ax.set_title(title, fontsize=6.5)
    ax.margins(x=0.12, y=0.1)
    style.grid(ax, "both")
    return named


def _errors(ax: Axes, rows: list[Cells], title: str) -> list[tuple[float, float, str, str]]:
    """Draw a panel; the lines' last points as (x, y, name, colour). Of policies of several codecs the table alone tells
    where there are others: their lines run along those of the parts."""
    if not rows:
        style.empty(ax, "no errors of this direction in this source")
        return []
    lines: dict[str, list[Cells]] = {}
    for r in rows:
        lines.setdefault(r["codec"], []).append(r)
    lines = {codec: line for codec, line in lines.items() if " " not in codec} or lines
    named = []
    for codec, line in lines.items():
        xs, ys, tint = [number(r["layer"]) for r in line], [number(r["error"]) for r in line], style.colour(codec)
        ax.plot(xs, [y or math.nan for y in ys], ".-", color=tint, linewidth=0.7, markersize=2.5, alpha=0.8)
        if ys[-1] > 0:
            named.append((xs[-1], ys[-1], style.brief(codec), tint))
    ends = any(number(r["layer"]) < 0 for r in rows)
    ax.set(yscale="log", xlabel="block (-1: embedding and head)" if ends else "block", ylabel="relative error")
    ax.set_title(title, fontsize=6.5)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    first, last = (pick(number(r["layer"]) for r in rows) for pick in (min, max))
    ax.set_xlim(first - 0.05 * (last - first), last + 0.25 * (last - first) + 0.1)  # the names stand at the right
    style.grid(ax, "y")
    return named
