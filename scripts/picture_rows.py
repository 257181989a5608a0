"""Pictures of rows: bits, layers, positions, latency."""
import matplotlib.ticker as ticker

import picture_style as style
from specs import labels, places_of, scheme

ALIKE = "model", "text", "ctx", "windows", "protocol"
LABEL = {"kl_mean": "KL divergence from the f32 cache (nats)",
         "ppl": "perplexity", "dnll": "rise of the loss (nats)",
         "same_top1": "share of tokens with the same first guess",
         "attn_rel_err": "relative error of the attention output",
         "sqnr_db": "signal over error (dB)",
         "lat_us_p50": "one step of attention (us)"}
LINEAR = {"same_top1", "sqnr_db", "dnll"}


class Wrong(Exception):
    """An error that one sentence describes."""


def number(row, column):
    try:
        return float(row.get(column) or "nan")
    except ValueError:
        raise Wrong("%s of %s is %r, expected a number" % (
            column, row["spec"], row[column])) from None


def known(row, column):
    x = number(row, column)
    return x == x and abs(x) != float("inf")


def by_condition(rows, *alike):
    """[rows]: separates rows that were measured differently."""
    groups = {}
    for r in rows:
        groups.setdefault((*map(r.get, alike), places_of(r)), []).append(r)
    if not groups:
        raise Wrong("no rows that can be drawn")
    if len(groups) > 6:
        raise Wrong("rows of %d kinds (%s): at most 6 fit in a picture" % (
            len(groups), ", ".join(alike)))
    return list(groups.values())


def measured(r):
    """The title of a panel of kvppl's or kvquant's rows."""
    return "%s on %s,%sctx %s, %s window%s%s" % (
        r.get("model"), r.get("text"), "\n" if places_of(r) else " ",
        r.get("ctx"), r.get("windows"), "" if r.get("windows") == "1" else "s",
        places_of(r))


def axis(ax, name, column, values):
    """Labels the y axis; makes it logarithmic unless the column is LINEAR."""
    if column not in LINEAR and min(values) > 0:
        ax.set_yscale("log")
        if max(values) < 50 * min(values):
            ax.yaxis.set_major_formatter("{x:g}")
            ax.yaxis.set_minor_formatter("{x:g}")
            ax.yaxis.set_minor_locator(ticker.LogLocator(
                subs=(2, 5) if max(values) > 5 * min(values) else
                (1.5, 2, 3, 4, 5, 6, 7, 8)))
    ax.set_ylabel(name)


def error(row, column, y):
    """The standard error, below and above; on a log scale no bar reaches 0."""
    se = number(row, {"kl_mean": "kl_se"}.get(column, column + "_se"))
    se = se if se == se else 0
    low = se if column in LINEAR else min(se, 0.9 * y)
    return low, se


def frontier(points):
    """The points (x, y, ..) that no other beats in both, sorted by x."""
    best, kept = float("inf"), []
    for p in sorted(points, key=lambda p: p[:2]):
        if p[1] < best:
            best = p[1]
            kept.append(p)
    return kept


# ---- against bits ---------------------------------------------------------

def bits(rows, column):
    column = column or ("kl_mean" if any(known(r, "kl_mean") for r in rows)
                        else "ppl")
    rows = [r for r in rows if known(r, column) and known(r, "bits")]
    groups = by_condition(rows, *ALIKE)
    fig, axes = style.panels(len(groups), 6.2)
    labelled = []
    for ax, group in zip(axes, groups):
        drawn = [r for r in group if number(r, "bits") < 15]
        if not drawn:
            raise Wrong("no row has less than 15 bits")
        short = labels(r["spec"] for r in drawn)
        lines, points = [], {}
        for r in drawn:
            name = scheme(r["spec"])
            plain, y = number(r, "bits"), number(r, column)
            x = number(r, "bits_total") if known(r, "bits_total") else plain
            low, high = error(r, column, y)
            ax.errorbar([x], [y], [[low], [high]], ls="", elinewidth=0.9,
                        **style.marker(name))
            ax.plot([plain, x], [y, y], lw=0.9, ls=":",
                    color=style.look(name)["color"])
            points.setdefault(name, []).append((x, y, r))
            lines += [(plain, y, x, y), (x, y - low, x, y + high)]
        for name, own in points.items():
            best = frontier(own)
            ax.plot([p[0] for p in best], [p[1] for p in best], lw=0.7,
                    alpha=0.5, color=style.look(name)["color"])
        axis(ax, LABEL.get(column, column), column,
             [number(r, column) for r in drawn])
        base = [r for r in group if scheme(r["spec"]) == "f32"]
        if column == "ppl" and base:
            ax.axhline(number(base[0], "ppl"), color="k", lw=0.8, ls="--")
            ax.text(0.01, number(base[0], "ppl"), "f32 cache", va="bottom",
                    fontsize=style.SMALL,
                    transform=ax.get_yaxis_transform())
        ax.set_xscale("log")
        ax.xaxis.set_major_locator(ticker.FixedLocator(
            [0.5, 0.75, 1, 1.5, 2, 3, 4, 6, 8, 12, 16, 24, 32]))
        ax.xaxis.set_minor_locator(ticker.NullLocator())
        ax.xaxis.set_major_formatter("{x:g}")
        ax.set_xlabel("measured bits a value, tables of the calibration "
                      "counted in (dotted: without)")
        ax.margins(x=0.08, y=0.08)
        ax.set_title("%s, protocol %s" % (measured(group[0]),
                                          group[0].get("protocol")))
        labelled.append((ax, [
            (x, y, short[r["spec"]], style.look(name)["color"])
            for name, own in points.items() for x, y, r in own], lines))
    for panel in labelled:  # labels freeze the layout of all panels
        style.label_points(*panel)
    return fig


# ---- curves ---------------------------------------------------------------

def curves(ax, drawn, fmt="-"):
    """Draws {label: (scheme, [(x, y, low, high)])}, with the labels at the
    curves' right ends."""
    ends, seen = [], {}
    for label, (name, points) in drawn.items():
        points.sort()
        x, y, low, high = zip(*points)
        i = seen[name] = seen.get(name, -1) + 1
        ax.errorbar(x, y, [low, high], ls=style.DASHES[i % 6], lw=1,
                    elinewidth=0.8, **dict(
                        style.marker(name), ms=4 if name != "klt" else 6))
        ends.append((x[-1], y[-1], label, style.look(name)["color"]))
    return ends


def places(ax, values):
    """Makes the x axis logarithmic, with a mark at each value."""
    if min(values) > 0 and max(values) >= 4 * min(values):
        ax.set_xscale("log")
    ax.xaxis.set_major_locator(ticker.FixedLocator(values))
    ax.xaxis.set_minor_locator(ticker.NullLocator())
    ax.xaxis.set_major_formatter("{x:g}")


def layers(rows, column):
    column = column or "attn_rel_err"
    rows = [r for r in rows if r["layer"] != "all" and known(r, column)
            and scheme(r["spec"]) not in ("f32", "f16", "bf16")]
    sides = list(dict.fromkeys(r["side"] for r in rows))
    if column == "attn_rel_err" and "KV" in sides:
        sides = ["KV"]
    rows = [r for r in rows if r["side"] in sides]
    groups = by_condition(rows, "model", "text", "ctx", "windows", "side")
    fig, axes = style.panels(len(groups), 5.6)
    for ax, group in zip(axes, groups):
        short = labels(r["spec"] for r in group)
        drawn = {}
        for r in group:
            drawn.setdefault(short[r["spec"]], (scheme(r["spec"]), []))[
                1].append((int(r["layer"]), number(r, column), 0, 0))
        ends = curves(ax, drawn)
        axis(ax, LABEL.get(column, column), column,
             [p[1] for _, ps in drawn.values() for p in ps])
        ax.xaxis.set_major_locator(ticker.MaxNLocator(integer=True))
        ax.set_xlabel("layer")
        ax.set_title("%s: %s" % (measured(group[0]), {
            "K": "keys", "V": "values", "KV": "keys and values stored"}[
                group[0]["side"]]))
        style.label_ends(ax, ends)
    return fig


def positions(rows, column):
    """Draws kvppl --kl-curve: a point in the middle of each bucket."""
    column = column or "kl_mean"
    rows = [r for r in rows if known(r, column)]
    groups = by_condition(rows, *ALIKE)
    fig, axes = style.panels(len(groups), 6.2)
    for ax, group in zip(axes, groups):
        short = labels(r["spec"] for r in group)
        drawn = {}
        for r in group:
            y = number(r, column)
            middle = (number(r, "first_token") + number(r, "last_token")) / 2
            drawn.setdefault(short[r["spec"]], (scheme(r["spec"]), []))[
                1].append((middle, y, *error(r, column, y)))
        ends = curves(ax, drawn)
        axis(ax, LABEL.get(column, column), column,
             [p[1] for _, ps in drawn.values() for p in ps])
        ax.set_xlabel("scored token of the window")
        ax.set_title("%s,\nprotocol %s" % (measured(group[0]),
                                           group[0].get("protocol")))
        style.label_ends(ax, ends)
    return fig


def latency(rows):
    rows = [r for r in rows if known(r, "lat_us_p50") and known(r, "ctx")
            and number(r, "ctx") > 0]
    groups = by_condition(rows, "model", "windows", "protocol", "device",
                          "threads")
    fig, axes = style.panels(len(groups), 6)
    for ax, group in zip(axes, groups):
        paths = {r.get("path", "") for r in group}
        short = labels(r["spec"] for r in group)
        drawn = {}
        for r in group:
            y = number(r, "lat_us_p50")
            low, high = (abs(number(r, c) - y) if known(r, c) else 0
                         for c in ("lat_us_p10", "lat_us_p90"))
            label = short[r["spec"]] + (
                " (%s)" % r["path"] if len(paths) > 1 else "")
            drawn.setdefault(label, (scheme(r["spec"]), []))[1].append(
                (number(r, "ctx"), y, low, high))
        ends = curves(ax, drawn)
        axis(ax, "one step (us), 10th to 90th percentile", "lat_us_p50",
             [p[1] for _, ps in drawn.values() for p in ps])
        places(ax, sorted({number(r, "ctx") for r in group}))
        ax.set_xlabel("tokens in the cache")
        r = group[0]
        ax.set_title("%s, batch %s, %s, %s, threads %s" % (
            r["model"], r["windows"], r["protocol"], r["device"],
            r["threads"]))
        style.label_ends(ax, ends)
    return fig
