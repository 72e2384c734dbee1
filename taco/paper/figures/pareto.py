"""Figure of pareto: change of the loss against bytes and against SQNR, with what chance alone does; errors by block."""

from __future__ import annotations

import math
from itertools import cycle

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from taco.paper import style
from taco.paper.figures.training import BAND, budget_words, nothing, places_of
from taco.paper.table import Cells, number

MARKS = "osD^vP"
"""One for each model, corpus and budget, in the order of the table."""

SIDES = ((-4, -1.5, "right"), (0, 4, "center"), (0, -7.5, "center"), (4, -1.5, "left"))
"""Where a point's name stands: points to the right and up, and its alignment."""

BELOW = {"depth": "error by depth", "sensitivity": "bits in one block alone"}
"""Part of the table -> words of its panels."""

MOST_NAMES = 30
"""Points that can be named in a panel; of more, those of the first place have names."""


def pareto(rows: list[Cells]) -> Figure:
    """Top: mean change of the validation loss of each policy. Below: errors behind each block, a line per policy, and
    of the gradient with a codec in one block alone; each of the first model, corpus and budget that has them."""
    points = [r for r in rows if r["part"] == "policy" and r["status"] == "measured"]
    if not points:
        return nothing(rows)
    places = places_of(points)
    below = [(words, found) for part, words in BELOW.items() if (found := [r for r in rows if r["part"] == part])]
    fig = style.figure(3.2 + 2.4 * len(below))
    body = fig.subfigures()  # the legend stands outside of it, below the title
    axes = body.subplots(1 + len(below), 2, squeeze=False)
    top = axes[0]
    _trade(top[0], points, places, "wire_ratio", "times fewer bytes than uncompressed", "a  bytes")
    _trade(top[1], points, places, "sqnr_forward_db", "SQNR of forward messages, dB", "b  SQNR")
    letters = iter("cdef")
    for line, (words, found) in zip(axes[1:], below, strict=True):
        where = f"{found[0]['model']}, TP {found[0]['tp']}"
        for ax, role in zip(line, style.ROLE_WORDS, strict=True):
            mine = [r for r in found if r["role"] == role and places_of([r]) == places_of(found[:1])]
            _errors(ax, mine, f"{next(letters)}  {style.ROLE_WORDS[role]} {words}, {where}")
    style.families(top[0])
    for place, mark in zip(places, MARKS * len(places), strict=False):
        top[0].plot([], [], mark, color=style.FAINT, markersize=3.5, label=budget_words(place))
    top[0].plot([], [], "s", color=BAND, label="chance")
    body.legend(loc="outside upper right", ncols=3, handletextpad=0.1, columnspacing=1.2, fontsize=6)
    style.notes(body, rows)
    return fig


def _trade(ax: Axes, rows: list[Cells], places: list[tuple], column: str, label: str, title: str) -> None:
    shown = [r for r in rows if math.isfinite(number(r[column])) and math.isfinite(number(r["delta_pct"]))]
    if not shown:
        style.empty(ax, f"no run of this source says its {label}")
        return
    chance = [number(r[band]) for r in shown for band in ("control_band_pct", "noise_band_pct")]
    chance = [band for band in chance if math.isfinite(band)]
    named = shown if len(shown) <= MOST_NAMES else [r for r in shown if places_of([r])[0] == places[0]]
    if chance:
        ax.axhspan(-max(chance), max(chance), color=BAND, linewidth=0)
    ax.axhline(0, color="black", linewidth=0.6)
    # neighbours have their names on other sides
    for r, (right, up, ha) in zip(sorted(shown, key=lambda r: number(r[column])), cycle(SIDES), strict=False):
        x, y, tint = number(r[column]), number(r["delta_pct"]), style.colour(r["codec"])
        mark = MARKS[places.index(places_of([r])[0]) % len(MARKS)]
        low, high = number(r["delta_low_pct"]), number(r["delta_high_pct"])
        ax.plot([x, x], [low, high], color=tint, linewidth=0.6)
        ax.plot(x, y, mark, color=tint, markersize=3.5, alpha=0.85)
        if r in named:
            ax.annotate(r["codec"], (x, y), (right, up), textcoords="offset points", color=tint, fontsize=4.5, ha=ha)
    style.percents(ax, "y")
    ax.set(xlabel=label, ylabel="Δ validation loss, %", title=title)
    ax.margins(x=0.12)
    style.grid(ax, "both")


def _errors(ax: Axes, rows: list[Cells], title: str) -> None:
    if not rows:
        style.empty(ax, "no errors of this direction in this source")
        return
    lines: dict[str, list[Cells]] = {}
    for r in rows:
        lines.setdefault(r["codec"], []).append(r)
    ends = []
    for codec, line in lines.items():
        xs, ys, tint = [number(r["layer"]) for r in line], [number(r["error"]) for r in line], style.colour(codec)
        ax.plot(xs, [y or math.nan for y in ys], ".-", color=tint, linewidth=0.7, markersize=2.5, alpha=0.8)
        if ys[-1] > 0:
            ends.append((xs[-1], ys[-1], codec, tint))
    for x, y, codec, tint in ends:
        ax.annotate(codec, (x, y), (3, 0), textcoords="offset points", color=tint, fontsize=4.5, va="center")
    ends = any(number(r["layer"]) < 0 for r in rows)
    ax.set(yscale="log", xlabel="block (-1: embedding and head)" if ends else "block", ylabel="relative error")
    ax.set_title(title, fontsize=6.5)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.margins(x=0.15)
    style.grid(ax, "y")
