"""Figures of training runs: accuracy, threed, scaling."""

from __future__ import annotations

import math
from collections import Counter

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from taco.paper import style
from taco.paper.table import Cells, number

BAND, CHANCE = "#E8E8E8", "#CFCFCF"
MOST_PANELS = 5


# how a shape's label names the transport of its recipe
LINKS = {"auto": "", "host": " host memory", "tcp": " TCP"}


def _unique(values) -> list:
    return list(dict.fromkeys(values))


def places_of(rows: list[Cells]) -> list[tuple[str, ...]]:
    """The model, TP size, corpus, tokens of training and those before the policy of the rows, each once."""
    return _unique(tuple(r[k] for k in ("model", "tp", "corpus", "planned_tokens", "shared_tokens")) for r in rows)


def budget_words(place: tuple[str, ...], between: str = ", ") -> str:
    """How a figure calls one of `places_of`."""
    model, ways, corpus, tokens, shared = place
    span = f"{number(tokens) / 1e6:.3g} M tokens"
    if number(shared) > 0:
        span = f"{number(shared) / 1e6:.3g} to {span}"
    return f"{model}, TP {ways}{between}{span}{between}{corpus}"


def accuracy(rows: list[Cells]) -> Figure:
    """Top: change of the validation loss by codec, a panel per model, TP size, corpus and budget. Bottom: training loss
    by step. A panel needs a compressed run, unless no run has a log; `MOST_PANELS` with the most tokens are shown."""
    final = [r for r in rows if r["part"] == "final" and r["kind"] == "measured"]
    curves = [r for r in rows if r["part"] == "curve"]
    places, others = _panels([r for r in final if r["status"] == "measured" and r["codec"] != "none"] or final)
    codecs = _unique(r["codec"] for r in final if r["codec"] != "none" and places_of([r])[0] in places)
    if not places:
        return nothing(rows)
    names = [style.brief(codec) for codec in codecs]
    height = max(0.17, 0.07 * max((name.count("\n") + 1 for name in names), default=1)) * len(codecs)
    fig = style.figure(3.0 + height)
    fig.get_layout_engine().set(rect=(0.02, 0, 0.98, 1))  # inside a subfigure labels get a little less room than theirs
    ratios = (0.5 + height, 1.4)
    body = fig.subfigures()  # the legend stands outside of it, below the title
    axes = body.subplots(2, len(places), sharey="row", squeeze=False, height_ratios=ratios)
    published = {r["codec"]: number(r["delta_pct"]) for r in rows if r["kind"] == "paper"}
    for top, bottom, place in zip(axes[0], axes[1], places, strict=True):
        _deltas(top, [r for r in final if places_of([r])[0] == place], codecs, published)
        top.set_yticks(range(len(codecs)), names, linespacing=0.9, fontsize=6)
        top.set_title(budget_words(place, "\n"), fontsize=7)
        _curves(bottom, [r for r in curves if places_of([r])[0] == place])
    for tick, codec in zip(axes[0][0].get_yticklabels(), codecs, strict=True):
        tick.set_color(style.colour(codec))
    axes[0][0].set_ylim(len(codecs) - 0.5, -0.5)
    axes[1][0].set_ylabel("Δ training loss, %")
    style.families(axes[0][0])
    axes[0][0].plot([], [], "s", color=BAND, label="noise of the seed")
    axes[0][0].plot([], [], "s", color=CHANCE, label="of rounding alone")
    axes[0][0].plot(
        [], [], "D", color=style.PAPER, markerfacecolor="white", markersize=3.5, label="published, another model"
    )
    body.legend(loc="outside upper right", ncols=6, handletextpad=0.1, columnspacing=1.2, fontsize=6.5)
    words = [style.NOTATION] if any(" " in codec for codec in codecs) else []
    if others:
        words.append(f"In the table alone: {'; '.join(map(budget_words, others))}.")
    style.notes(body, rows, more=" ".join(words))
    return fig


def _panels(rows: list[Cells]) -> tuple[list[tuple[str, ...]], list[tuple[str, ...]]]:
    """The places of the rows that have a panel, those with the most tokens over all runs, and the others."""
    tokens: Counter[tuple[str, ...]] = Counter()
    for r in rows:
        tokens[places_of([r])[0]] += int(number(r["planned_tokens"]))
    shown = [place for place, _ in tokens.most_common(MOST_PANELS)]
    return [p for p in tokens if p in shown], [p for p in tokens if p not in shown]


def nothing(rows: list[Cells]) -> Figure:
    fig = style.figure(1.2)
    style.empty(fig.subplots(), "no log in this source")
    style.notes(fig, rows)
    return fig


def _deltas(ax: Axes, rows: list[Cells], codecs: list[str], published: dict[str, float]) -> None:
    bands = [number(r["noise_band_pct"]) for r in rows if not math.isnan(number(r["noise_band_pct"]))]
    if bands:
        ax.axvspan(-bands[0], bands[0], color=BAND, linewidth=0)
    controls = [number(r["control_band_pct"]) for r in rows if not math.isnan(number(r["control_band_pct"]))]
    if controls:
        ax.axvspan(-max(controls), max(controls), color=CHANCE, linewidth=0)
    ax.axvline(0, color="black", linewidth=0.6)
    measured = {r["codec"] for r in rows if not math.isnan(number(r["delta_pct"]))}
    for r in rows:
        if r["codec"] not in codecs:
            continue
        y, delta = codecs.index(r["codec"]), number(r["delta_pct"])
        if r["codec"] not in measured:
            ax.text(0.5, y, "not measured", transform=ax.get_yaxis_transform(), ha="center", va="center", fontsize=5.5,
                    color=style.FAINT)  # fmt: skip
        ax.plot(delta, y, "o", color=style.colour(r["codec"]))
    for codec, delta in published.items():
        if codec in codecs:
            ax.plot(delta, codecs.index(codec), "D", color=style.PAPER, markerfacecolor="white", markersize=3.5)
    style.percents(ax, "x")
    ax.set_xlim(-max(1.0, 2 * max(bands, default=0)), max(20.0, *(2 * number(r["delta_pct"]) for r in rows)))
    ax.set_xlabel("Δ validation loss, %", fontsize=6.5)
    style.grid(ax, "x")


def _curves(ax: Axes, rows: list[Cells]) -> None:
    ax.axhline(0, color="black", linewidth=0.6)
    for log in _unique(r["log"] for r in rows):
        mine = [r for r in rows if r["log"] == log]
        codec = mine[0]["codec"]
        xs, ys = [number(r["step"]) for r in mine], [number(r["delta_pct"]) for r in mine]
        if codec == "none":
            ax.fill_between(xs, [-abs(y) for y in ys], [abs(y) for y in ys], color=BAND, linewidth=0)
        else:
            ax.plot(xs, ys, color=style.colour(codec), linewidth=0.8, alpha=0.8)
    style.percents(ax, "y")
    ax.set_xlabel("step")
    style.grid(ax, "y")


def threed(rows: list[Cells]) -> Figure:
    """Per arm: MiB one rank sends in a step by axis of the grid, change of the validation loss, speed ratio."""
    arms = [r for r in rows if r["kind"] == "measured"]
    if not arms:
        return nothing(rows)
    fig = style.figure(1.4 + 0.24 * len(arms))
    wire, loss, speed = fig.subplots(1, 3, sharey=True, width_ratios=(1.9, 1, 1))
    for y, r in enumerate(arms):
        left = 0.0
        for axis, roles in (
            ("tp", ("forward", "backward")),
            ("dp", ("gradient", "weight")),
            ("pp", ("forward", "backward")),
        ):
            for role in roles:
                width = number(r[f"wire_mib_{axis}_{role}"])
                if not math.isnan(width):
                    wire.barh(y, width, left=left, height=0.68, color=style.AXIS_COLOURS[axis], linewidth=0)
                    left += width
        ratio = number(r["wire_ratio"])
        text = " not measured" if r["status"] == "missing" else f" {ratio:.2f}x" if not math.isnan(ratio) else ""
        wire.text(left, y, text, va="center", fontsize=6.5)
        loss.plot(number(r["delta_pct"]), y, "o", color=style.PLAIN)
        speed.plot(number(r["speedup"]), y, "o", color=style.PLAIN)
    names = [r["compressed"].upper().replace("+", " + ") if r["compressed"] != "none" else "nothing" for r in arms]
    wire.set_yticks(range(len(arms)), names)
    wire.set_ylim(len(arms) - 0.5, -0.5)
    wire.set(xlabel="MiB one rank sends in a step", title="a  bytes by axis, and fewer-bytes ratio")
    wire.margins(x=0.12)
    for axis, tint in style.AXIS_COLOURS.items():
        wire.plot([], [], "s", color=tint, label=axis.upper())
    wire.legend(loc="lower right", handletextpad=0.1, borderpad=0)
    loss.axvline(0, color="black", linewidth=0.6)
    loss.set(xlabel="validation loss, change in %", title="b  loss")
    speed.axvline(1, color="black", linewidth=0.6)
    speed.set(xlabel="tokens/s over uncompressed", title="c  speed ratio")
    for ax in (wire, loss, speed):
        style.grid(ax, "x")
    style.notes(fig, rows, speed=True)
    return fig


def scaling(rows: list[Cells]) -> Figure:
    """Per shape and codec: MiB one rank sends in a step, communication fraction, speed ratio with its Amdahl bound."""
    runs = [r for r in rows if r["kind"] == "measured"]
    if not runs:
        return nothing(rows)
    shapes = _unique(_shape(r) for r in runs)
    codecs = _unique(r["codec"] for r in runs)
    fig = style.figure(1.5 + 0.28 * len(shapes))
    wire, share, speed = fig.subplots(1, 3, sharey=True, width_ratios=(1.2, 1, 1.2))
    for r in runs:
        place = shapes.index(_shape(r))
        y, tint = place + 0.22 * (codecs.index(r["codec"]) - (len(codecs) - 1) / 2), style.colour(r["codec"])
        sent = number(r["wire_mib_per_step"]) or math.nan
        wire.plot(sent, y, "o", color=tint)
        if number(r["wire_ratio"]) > 1:
            wire.annotate(f"{number(r['wire_ratio']):.2f}x", (sent, y), (4, 0), textcoords="offset points", va="center",
                          fontsize=5.5, color=tint)  # fmt: skip
        share.plot(number(r["comm_fraction"]), y, "o", color=tint)
        if r["codec"] != "none":
            speed.plot(number(r["speedup"]), y, "o", color=tint)
            speed.plot(number(r["amdahl_bound"]), y, "|", color=tint, markersize=7)
    _label_shapes(wire, shapes)
    for codec in codecs:
        wire.plot([], [], "o", color=style.colour(codec), label=codec)
    wire.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=len(codecs), handletextpad=0.1, borderpad=0)
    wire.margins(x=0.18)
    wire.set_xlim(0, None)
    wire.set(xlabel="MiB one rank sends in a step", title="a  bytes, and fewer-bytes ratio")
    share.set(xlabel="share of the step", title="b  communication f", xlim=(0, 1))
    speed.axvline(1, color="black", linewidth=0.6)
    _published_speedup(speed, rows, len(shapes))
    speed.set(xlabel="tokens/s over uncompressed", title="c  speed ratio; bar: 1/(1 - f + f/k)")
    for ax in (wire, share, speed):
        style.grid(ax, "x")
    style.notes(fig, rows, speed=True)
    return fig


def _shape(row: Cells) -> tuple:
    return tuple(row[k] for k in ("model", "world_size", "tp", "pp", "dp", "link"))


def _label_shapes(ax: Axes, shapes: list[tuple]) -> None:
    many_models = len({s[0] for s in shapes}) > 1
    names = []
    for model, world, tp, pp, dp, link in shapes:
        parts = [f"{axis}{size}" for axis, size in (("TP", tp), ("PP", pp), ("DP", dp)) if size != "1"]
        names.append(
            (f"{model}  " if many_models else "") + (" ".join(parts) or "one process") + LINKS[link] + f"  ({world})"
        )
    ax.set_yticks(range(len(shapes)), names)
    ax.set_ylim(len(shapes) - 0.4, -0.6)


def _published_speedup(ax: Axes, rows: list[Cells], height: int) -> None:
    for r in rows:
        if r["kind"] == "paper":
            value = number(r["speedup"])
            ax.axvline(value, color=style.PAPER, linestyle=":", linewidth=0.9)
            ax.text(
                value,
                height - 0.55,
                f"published:\nup to {value:g}x ",
                color=style.PAPER,
                fontsize=5.5,
                ha="right",
                va="bottom",
            )
