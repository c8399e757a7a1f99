"""Charts as inline SVG: no background, the page's own text colour, so that they suit light and dark pages alike."""
from __future__ import annotations

import io
from collections.abc import Callable

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

# Told apart on light and on dark.
COLOURS = ("#2a78b8", "#d1731f", "#3d9a63", "#a35cc0", "#b84a5a", "#7d7f2a", "#2f9da8", "#8a6a4f")
_INK = "#808081"  # stands for the text's colour, which the page sets


def svg(draw: Callable[[Axes], None], width: float = 4.2, height: float = 2.4) -> str:
    """What `draw` puts on the axes; inches."""
    ink = dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), _INK)
    style = {"svg.fonttype": "none", "svg.hashsalt": "tokenrouter", "font.family": "sans-serif", "font.size": 9,
             "axes.spines.top": False, "axes.spines.right": False, **ink}
    with mpl.rc_context(style):
        figure = Figure(figsize=(width, height), layout="constrained")
        draw(figure.subplots())
        text = io.StringIO()
        figure.savefig(text, format="svg", transparent=True, metadata={"Date": None})
    drawn = text.getvalue()
    return drawn[drawn.index("<svg"):].replace(_INK, "currentColor")
