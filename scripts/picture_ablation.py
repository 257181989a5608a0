"""Pictures of kvppl's rows against settings of their specs."""
import sys

import matplotlib.ticker as ticker

import picture_style as style
from picture_rows import (ALIKE, LABEL, LINEAR, Wrong, axis, by_condition,
                          error, known, measured, number, places)


def setting(row, name):
    """A setting of a row's spec ("g", "K.g", "policy.b") or a column; None if
    the row has none.  K.g is g if both sides share it."""
    shared = name[2:] if name[:2] in ("K.", "V.") else name
    for column in ("params." + name, "params." + shared, name):
        if row.get(column):
            return row[column]
    return None


def as_number(text):
    try:
        return float(text)
    except ValueError:
        return None


def shown(text):
    x = as_number(text)
    return text if x is None else "%g" % x


def have(rows, names, column):
    """The rows that have every setting; notes how many lack one."""
    rows = [r for r in rows if known(r, column)]
    kept = [r for r in rows if all(setting(r, n) for n in names)]
    left = [r for r in rows if r not in kept]
    if not kept:
        raise Wrong("no row has %s: expected a letter or word of the specs, or "
                    "a column" % " and ".join(names))
    if left:
        print("plot: %d of %d rows are not drawn, having no %s: %s%s" % (
            len(left), len(rows), " or no ".join(names), left[0]["spec"],
            ", .." if left[1:] else ""), file=sys.stderr)
    return kept


def is_said(rows, column):
    """Whether a side's column repeats the column of both sides, as in a table
    where some specs have a scheme for each side."""
    side, name = column[:9], column[9:]
    return side in ("params.K.", "params.V.") and all(
        r[column] in ("", r.get("params." + name)) for r in rows)


def rest_of(rows, names):
    """A label for each row: the scheme, then the settings that differ, except
    the settings in names."""
    hidden = {"params." + n[2 * (n[:2] in ("K.", "V.")):] for n in names}
    hidden |= {"params." + n for n in names} | set(names)
    columns = [c for c in rows[0] if c in ("scheme", "protocol", *ALIKE) or
               c.startswith("params.")]
    columns = [c for c in columns if c not in hidden and c not in ALIKE and
               len({r[c] for r in rows}) > 1 and not is_said(rows, c)]
    out = []
    for r in rows:
        words = []
        for c in columns:
            name = c.removeprefix("params.")
            if r[c] and c in ("scheme", "protocol"):
                words.append(r[c])
            elif r[c]:
                words.append(name + ("" if len(name) == 1 else "=") +
                             shown(r[c]))
        out.append(" ".join(words))
    return out


def grouped(rows, panel):
    """Separates rows that were measured differently, and panel's values."""
    for r in rows:
        r["panel"] = setting(r, panel) if panel else ""
    return by_condition(rows, *ALIKE, "panel")


def title(ax, group, panel):
    words = "%s, protocol %s" % (measured(group[0]), group[0].get("protocol"))
    if panel:
        words += "\n%s = %s" % (panel, shown(group[0]["panel"]))
    ax.set_title(words)


def default(rows, column):
    return column or ("kl_mean" if any(known(r, "kl_mean") for r in rows)
                      else "ppl")


def against(rows, column, x, hue, panel, legend):
    """Curves against x, a colour for each value of hue, a dash and marker for
    each curve."""
    column = default(rows, column)
    rows = have(rows, [n for n in (x, hue, panel) if n], column)
    groups = grouped(rows, panel)
    fig, axes = style.panels(len(groups), 5)
    hues = sorted({setting(r, hue) for r in rows} if hue else {""},
                  key=lambda t: (as_number(t) is None, as_number(t) or 0, t))
    for ax, group in zip(axes, groups):
        curves = {}
        for r, rest in zip(group, rest_of(group, [x, hue or x, panel or x])):
            curves.setdefault((setting(r, hue) if hue else "", rest),
                              []).append(r)
        words = sorted({setting(r, x) for r in group})
        at = {w: as_number(w) for w in words}
        if None in at.values():
            at = {w: i for i, w in enumerate(words)}
        ends = draw_curves(ax, curves, column, hues, hue,
                           lambda r, at=at: at[setting(r, x)])
        axis(ax, LABEL.get(column, column), column,
             [number(r, column) for r in group])
        places(ax, sorted(at.values()))
        if any(as_number(w) is None for w in words):
            ax.set_xticks(list(at.values()), words)
        ax.set_xlabel("%s of the spec" % x)
        title(ax, group, panel)
        if legend:
            ax.legend(fontsize=style.SMALL)
        else:
            style.label_ends(ax, ends)
    return fig


def draw_curves(ax, curves, column, hues, hue, place):
    ends = []
    for i, ((value, rest), rows) in enumerate(curves.items()):
        points = sorted((place(r), number(r, column), r["spec"]) +
                        error(r, column, number(r, column)) for r in rows)
        for a, b in zip(points, points[1:]):
            if a[0] == b[0]:
                raise Wrong("%s and %s are at one place of one curve: choose "
                            "rows, or another --x, --hue or --panel" % (
                                a[2], b[2]))
        xs, ys, _, low, high = zip(*points)
        colour = style.COLOURS[(hues.index(value) if hue else i) %
                               len(style.COLOURS)]
        label = " ".join(filter(None, (
            "%s=%s" % (hue, shown(value)) if hue else "", rest)))
        ax.errorbar(xs, ys, [low, high], lw=1, elinewidth=0.8, ms=5,
                    fillstyle="none", color=colour, label=label or "all",
                    ls=style.DASHES[i % len(style.DASHES)],
                    marker=style.MARKERS[i % len(style.MARKERS)])
        ends.append((xs[-1], ys[-1], label, colour))
    return ends


def heat(rows, column, x, y, panel):
    """A heat map: a cell for each pair of values of x and y, with its
    figure."""
    column = default(rows, column)
    rows = have(rows, [n for n in (x, y, panel) if n], column)
    groups = grouped(rows, panel)
    fig, axes = style.panels(len(groups), 4.6)
    order = lambda t: (as_number(t) is None, as_number(t) or 0, t)  # noqa: E731
    for ax, group in zip(axes, groups):
        across, up = (sorted({setting(r, n) for r in group}, key=order)
                      for n in (x, y))
        cells = [[float("nan")] * len(across) for _ in up]
        for r in group:
            i, j = up.index(setting(r, y)), across.index(setting(r, x))
            if cells[i][j] == cells[i][j]:
                raise Wrong("two rows are in the cell %s=%s, %s=%s (%s): "
                            "choose rows, or a --panel" % (
                                x, across[j], y, up[i], r["spec"]))
            cells[i][j] = number(r, column)
        log = column not in LINEAR and min(
            number(r, column) for r in group) > 0
        shade = ax.pcolormesh(cells, cmap="cividis_r",
                              norm="log" if log else "linear")
        middle = shade.norm.inverse(0.6)
        for i, line in enumerate(cells):
            for j, value in enumerate(line):
                if value == value:
                    ax.text(j + 0.5, i + 0.5, "%.3g" % value, ha="center",
                            va="center", fontsize=style.SMALL,
                            color="w" if value > middle else "k")
        ax.set_xticks([j + 0.5 for j in range(len(across))],
                      [shown(t) for t in across])
        ax.set_yticks([i + 0.5 for i in range(len(up))],
                      [shown(t) for t in up])
        ax.grid(False)
        ax.xaxis.set_minor_locator(ticker.NullLocator())
        ax.set_xlabel(x + " of the spec")
        ax.set_ylabel(y + " of the spec")
        ax.figure.colorbar(shade, ax=ax, label=LABEL.get(column, column))
        title(ax, group, panel)
    return fig
