"""The style of pictures: a marker and a colour for each scheme, and labels that
do not overlap."""
import math

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402

# This order gives a scheme the same look in every picture.  In print, markers
# alone distinguish neighbours; with 13 of them and 10 colours no two of the
# first 130 look the same.
SCHEMES = """klt kivi hack vecinfer million evasion cq kvquant cachegen quarot
turboquant absmax zeropoint pq rotatekv qjl gear zipcache kvtc q8_0 q5_1 q5_0
q4_1 q4_0 iq4_nl fp8 fp6 fp4 mxfp8 mxfp6 mxfp4 nvfp4 nf4 mixed f16 bf16 f32
nf3 nf2 kvarn oscar int8_per_token_head fp8_per_token_head int4_per_token_head
int2_per_token_head modelopt fp4_e2m1 exl3 q8_kv q6_0 aqua
kitty fp8_ds_mla nvfp4_ds_mla nsnquant commvq antkv""".split()
MARKERS = "*^vXPosDdhp<>"
COLOURS = ["#1a1a1a", "#0072b2", "#d55e00", "#009e73", "#aa4499", "#8a6d00",
           "#117799", "#882255", "#555555", "#5b3fb0"]
DASHES = ["-", "--", ":", "-.", (0, (6, 4)), (0, (3, 1, 1, 1, 1, 1))]

plt.rcParams.update({
    "font.size": 9, "axes.titlesize": 9, "axes.labelsize": 9,
    "xtick.labelsize": 8, "ytick.labelsize": 8, "axes.axisbelow": True,
    "grid.color": "0.9", "grid.linewidth": 0.6, "axes.edgecolor": "0.4",
    "svg.hashsalt": "kvtools"})
SMALL = 7.5
SIZE = None  # of a figure, in inches


def set_font(points):
    """Scales all texts to this size, from the default of 9 points."""
    global SMALL
    for name in ("font.size", "axes.titlesize", "axes.labelsize",
                 "xtick.labelsize", "ytick.labelsize"):
        plt.rcParams[name] *= points / 9
    SMALL *= points / 9


def set_size(width, height):
    global SIZE
    SIZE = width, height


def look(name):
    """The marker and the colour of a scheme."""
    if name not in SCHEMES:
        SCHEMES.append(name)
    i = SCHEMES.index(name)
    return {"marker": MARKERS[i % len(MARKERS)],
            "color": COLOURS[i % len(COLOURS)]}


def marker(name):
    return dict(look(name), ms=9 if name == "klt" else 6, mew=1.2,
                fillstyle="full" if name == "klt" else "none")


def panels(n, height, width=8.8):
    """Makes a figure of n panels, two per row if there are several."""
    columns = min(n, 2)
    rows = -(-n // columns)
    fig, axes = plt.subplots(rows, columns, squeeze=False,
                             figsize=SIZE or (width * (1 if n == 1 else 1.5),
                                              height * rows),
                             layout="constrained")
    for ax in axes.flat[n:]:
        ax.axis("off")
    for ax in axes.flat[:n]:
        ax.grid(which="both")
    return fig, list(axes.flat[:n])


def save(fig, path, dpi=160):
    """Saves without a date, so that the bytes are the same each time."""
    kind = path.rsplit(".", 1)[-1].lower()
    fig.savefig(path, dpi=dpi, metadata={
        "png": {"Software": None}, "pdf": {"CreationDate": None},
        "svg": {"Date": None}}[kind])
    plt.close(fig)


# ---- labels beside points -------------------------------------------------

def overlap(a, b):
    """Area that two boxes (x0, y0, x1, y1) share."""
    return (max(0, min(a[2], b[2]) - max(a[0], b[0])) *
            max(0, min(a[3], b[3]) - max(a[1], b[1])))


def candidates(x, y, w, h):
    """Yields places for a label of w x h around (x, y), the nearest first:
    distance and box."""
    for far in (5, 9, 14, 20, 28, 38, 50, 64, 80):
        for step in range(24):
            angle = 2 * math.pi * step / 24
            cx = x + (far + w / 2) * math.cos(angle)
            cy = y + (far + h / 2) * math.sin(angle)
            yield far, (cx - w / 2, cy - h / 2, cx + w / 2, cy + h / 2)


def label_points(ax, points, obstacles=()):
    """Labels the points (x, y, text, colour), in data coordinates.  obstacles:
    segments (x0, y0, x1, y1) of lines that a label should not lie on."""
    fig = ax.figure
    fig.canvas.draw()  # places are known only now
    fig.set_layout_engine("none")
    renderer = fig.canvas.get_renderer()
    scale = fig.dpi / 72
    to_pixels = ax.transData.transform
    marks = [to_pixels(p[:2]) for p in points]
    half = 4.5 * scale
    taken = [(x - half, y - half, x + half, y + half) for x, y in marks]
    for x0, y0, x1, y1 in obstacles:
        (a, b), (c, d) = to_pixels((x0, y0)), to_pixels((x1, y1))
        taken.append((min(a, c) - 1, min(b, d) - 1, max(a, c) + 1,
                      max(b, d) + 1))
    frame = ax.get_window_extent(renderer)
    sizes = []
    for _, _, text, _ in points:
        t = ax.text(0, 0, text, fontsize=SMALL)
        box = t.get_window_extent(renderer)
        sizes.append((box.width + 2 * scale, box.height + scale))
        t.remove()

    def crowd(i):
        return sum(abs(marks[i][0] - x) < 60 * scale and
                   abs(marks[i][1] - y) < 30 * scale for x, y in marks)

    for i in sorted(range(len(points)), key=crowd):
        x, y = marks[i]
        w, h = sizes[i]
        best = None
        for far, box in candidates(x, y, w, h * 1.05):
            outside = w * h - overlap(box, (frame.x0, frame.y0, frame.x1,
                                            frame.y1))
            cost = (far * scale + 8 * sum(overlap(box, t) for t in taken) /
                    (w * h) * 40 * scale + 100 * max(0, outside))
            if best is None or cost < best[0]:
                best = cost, far, box
        _, far, box = best
        taken.append(box)
        cx, cy = (box[0] + box[2]) / 2, (box[1] + box[3]) / 2
        inverse = ax.transData.inverted().transform
        ax.annotate(points[i][2], points[i][:2], inverse((cx, cy)),
                    fontsize=SMALL, ha="center", va="center",
                    color=points[i][3], annotation_clip=False,
                    arrowprops=dict(arrowstyle="-", lw=0.5, color="0.55",
                                    shrinkA=0, shrinkB=3, relpos=(0.5, 0.5))
                    if far > 9 else None)


# ---- labels at the right ends of curves -----------------------------------

def spread(wanted, step):
    """Returns positions at least step apart, as near as possible to wanted
    (ascending).  Positions that would touch form a group around its mean."""
    groups = []  # [sum of the first position that each member wants, members]
    for y in wanted:
        groups.append([y, 1])
        while len(groups) > 1 and (
                groups[-2][0] / groups[-2][1] + groups[-2][1] * step >
                groups[-1][0] / groups[-1][1]):
            total, n = groups.pop()
            groups[-1][0] += total - n * groups[-1][1] * step
            groups[-1][1] += n
    return [total / n + i * step for total, n in groups for i in range(n)]


def label_ends(ax, curves):
    """Labels curves at their right ends (x, y, text, colour).  The texts stand
    right of the axes, each on a line of its own."""
    fig = ax.figure
    fig.canvas.draw()  # places are known only now
    inverse = ax.transAxes.inverted().transform
    ends = sorted(((tuple(inverse(ax.transData.transform((x, y)))), text,
                    colour) for x, y, text, colour in curves),
                  key=lambda end: end[0][1])
    step = SMALL * 1.25 * fig.dpi / 72 / ax.get_window_extent().height
    places = spread([y for (_, y), _, _ in ends],
                    min(step, 1.05 / max(1, len(ends))))
    for (at, text, colour), y in zip(ends, places):
        ax.annotate(text, at, (1.05, y), xycoords="axes fraction",
                    textcoords="axes fraction", fontsize=SMALL, va="center",
                    color=colour, annotation_clip=False,
                    arrowprops=dict(arrowstyle="-", lw=0.5, color="0.6",
                                    shrinkA=0, shrinkB=0, relpos=(0, 0.5)))
