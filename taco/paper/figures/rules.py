"""Figure of the rules: which hold for our codecs and which for the authors' published semantics."""

from __future__ import annotations

import textwrap

from matplotlib.figure import Figure

from taco.paper import style
from taco.paper.table import Cells

PASS, FAIL = "#009E73", "#D55E00"


def correctness(rows: list[Cells]) -> Figure:
    """One line per rule, one column per subject and codec: a filled disc passes, a cross fails."""
    checks = [r for r in rows if r["status"] == "measured"]
    rules = list(dict.fromkeys((r["section"], r["statement"]) for r in checks))
    columns = sorted({(r["subject"], r["codec"]) for r in checks}, key=lambda c: (c[0] != "ours", c))
    fig = style.figure(1.1 + 0.22 * max(len(rules), 3))
    ax = fig.subplots()
    if not checks:
        style.empty(ax, "no log in this source")
    for r in checks:
        x, y = columns.index((r["subject"], r["codec"])), rules.index((r["section"], r["statement"]))
        passed = r["passed"] == "true"
        ax.plot(x, y, "o" if passed else "X", color=PASS if passed else FAIL, markersize=5.5)
    if checks:
        ax.set_xticks(range(len(columns)), [f"{subject}\n{codec}" if codec else subject for subject, codec in columns])
        ax.set_yticks(range(len(rules)), [textwrap.shorten(statement, 90, placeholder="...") for _, statement in rules])
        ax.xaxis.tick_top()
        ax.set_xlim(-0.6, len(columns) - 0.4)
        ax.set_ylim(len(rules) - 0.4, -0.6)
        ax.tick_params(length=0)
        for spine in ax.spines.values():
            spine.set_visible(False)
        ax.hlines([y + 0.5 for y in range(len(rules) - 1)], -0.6, len(columns) - 0.4, color=style.GRID, linewidth=0.5)
        ax.set_xlabel("disc: passes    cross: fails", fontsize=6.5)
    style.notes(fig, rows)
    return fig
