"""Figure of the ablation: SQNR by one changed field per panel, and what the change does to training."""

from __future__ import annotations

import math

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from taco.paper import style
from taco.paper.table import Cells, number

WORDS = {"adaptive_scale": "second scale (alpha)", "group": "group size", "payload": "payload", "rotation": "rotation",
         "rounding": "rounding", "scale": "format of the scale", "clip": "clip (share of the absmax)"}  # fmt: skip


def _unique(values) -> list:
    return list(dict.fromkeys(values))


def ablation(rows: list[Cells]) -> Figure:
    """Panels: one per changed field, SQNR of each data set and role. Below: change of the validation loss per arm."""
    quality = [r for r in rows if r["part"] == "sqnr" and r["status"] == "measured"]
    arms = [r for r in rows if r["part"] == "training" and r["base"] != "none"]
    axes_names = sorted(
        _unique(r["axis"] for r in quality), key=lambda a: (list(WORDS).index(a) if a in WORDS else 99, a)
    )
    panel_rows = math.ceil(len(axes_names) / 3) or 1
    fig = style.figure(1.75 * panel_rows + 0.17 * len(arms) + 1.0)
    top, bottom = fig.subfigures(2, 1, height_ratios=(1.75 * panel_rows, 0.17 * len(arms) + 0.7))
    panels = list(top.subplots(panel_rows, 3, squeeze=False, sharey=True).flat)
    for ax, name in zip(panels, axes_names, strict=False):
        _panel(ax, name, [r for r in quality if r["axis"] == name])
    for ax in panels[len(axes_names) :]:
        ax.set_axis_off()
    if not axes_names:
        style.empty(panels[0], "no log in this source")
    for mark, label in (("o", "captured, forward"), ("v", "captured, backward"), ("x", "synthetic")):
        panels[0].plot([], [], mark, color=style.FAINT, markersize=3, label=label)
    top.legend(loc="outside upper right", ncols=3, handletextpad=0.1, columnspacing=1.2, fontsize=6.5)
    _training(bottom.subplots(), arms)
    style.notes(bottom, rows)
    return fig


def _panel(ax: Axes, name: str, rows: list[Cells]) -> None:
    values = _unique(r["value"] for r in rows)
    for base, dataset, role in _unique((r["base"], r["dataset"], r["role"]) for r in rows):
        mine = [r for r in rows if (r["base"], r["dataset"], r["role"]) == (base, dataset, role)]
        xs = [values.index(r["value"]) for r in mine]
        mark = {"tp_forward": "o", "tp_backward": "v"}.get(role, "x")
        ys = [number(r["sqnr_db"]) for r in mine]
        ax.plot(xs, ys, f"{mark}-", color=style.colour(base), markersize=3, linewidth=0.6, alpha=0.8)
    top = {base: max(number(r["sqnr_db"]) for r in rows if r["base"] == base and r["value"] == values[-1])
           for base in _unique(r["base"] for r in rows if r["value"] == values[-1])}  # fmt: skip
    for base, y in zip(top, style.spread(list(top.values()), 3.0), strict=True):
        ax.annotate(
            f" {base}", (len(values) - 1, y), (3, 0), textcoords="offset points", color=style.colour(base), fontsize=6.5
        )
    ax.set_xticks(range(len(values)), [{"true": "with", "false": "without"}.get(v, v) for v in values], fontsize=6.5)
    ax.margins(x=0.2)
    ax.set_title(WORDS.get(name, name))
    ax.set_ylabel("SQNR, dB" if ax.get_subplotspec().is_first_col() else "")
    style.grid(ax, "y")


def _training(ax: Axes, arms: list[Cells]) -> None:
    if not arms:
        style.empty(ax, "no training arm in this source")
        return
    bands = [number(r["noise_band_pct"]) for r in arms if not math.isnan(number(r["noise_band_pct"]))]
    if bands:
        ax.axvspan(-bands[0], bands[0], color="#E8E8E8", linewidth=0)
        ax.text(bands[0], len(arms) - 0.5, "noise of the seed ", color=style.FAINT, fontsize=6, ha="right", va="bottom")
    ax.axvline(0, color="black", linewidth=0.6)
    for y, r in enumerate(arms):
        ax.plot(number(r["delta_pct"]), y, "o", color=style.colour(r["base"]))
        if math.isnan(number(r["delta_pct"])):
            ax.text(0, y, " not measured", va="center", fontsize=5.5, color=style.FAINT)
    ax.set_yticks(range(len(arms)), [f"{r['base']}: {_arm(r)}" for r in arms])
    for tick, r in zip(ax.get_yticklabels(), arms, strict=True):
        tick.set_color(style.colour(r["base"]))
    ax.set_ylim(len(arms) - 0.4, -0.6)
    ax.set(xlabel="validation loss, change to the uncompressed run in %")
    style.grid(ax, "x")


def _arm(row: Cells) -> str:
    if row["axis"] == "direction":
        return {"both": "as it is", "forward": "forward only", "backward": "backward only"}[row["value"]]
    if row["axis"] == "adaptive_scale":
        return "with alpha" if row["value"] == "true" else "without alpha"
    return f"{WORDS.get(row['axis'], row['axis'])} {row['value']}"
