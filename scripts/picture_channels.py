"""The channels of keys and values in a dump: where outliers are."""
import h5py
import numpy as np

import picture_style as style
from picture_rows import Wrong


def text(attribute):
    return attribute if isinstance(attribute, str) else attribute.decode()


def hadamard(d):
    h = np.ones((1, 1))
    while len(h) < (d & -d):
        h = np.block([[h, h], [h, -h]])
    return np.kron(np.eye(d // len(h)), h / np.sqrt(len(h)))


def peak(x):
    """The largest channel's RMS over the median channel's.  x: [..][d]."""
    power = (x * x).mean(0)
    return np.sqrt(power.max(-1) / np.maximum(np.median(power, -1), 1e-30))


def most_extreme(f, name):
    """(peak, layer, head, [tokens][d]) of the layer and KV head where one
    channel stands out most."""
    best = None
    for layer in range(int(f.attrs["n_layers"])):
        at = "layer_%03d/%s" % (layer, name)
        if at not in f:
            continue
        x = f[at][0].astype(np.float64)  # the first window
        by_head = peak(x)
        head = int(by_head.argmax())
        if best is None or by_head[head] > best[0]:
            best = by_head[head], layer, head, x[:, head]
    return best


def opened(path):
    try:
        return h5py.File(path)
    except OSError as e:
        raise Wrong("%s: %s" % (path, e)) from None


def trained_smooth(path, layer, head):
    """VecInfer's smoothing factors of this head, and the text that they were
    trained on."""
    if path:
        with opened(path) as f:
            if any(name.startswith("layer_") for name in f):
                raise Wrong("%s is a dump: expected a calibration" % path)
            for group in f.values():
                table = "smooth_K_l%03d" % layer
                if (text(group.attrs.get("key", "")).startswith("vecinfer")
                        and table in group):
                    return (group[table][head].astype(np.float64),
                            "trained on " + text(f.attrs["text"]))


def own_smooth(x):
    smooth = np.sqrt(np.abs(x).max(0))
    smooth[smooth == 0] = 1
    return smooth, "of the same window"


def one(ax, title, x):
    ax.use_sticky_edges = False  # room below the lowest bars
    ax.grid(False)
    edges = np.arange(x.shape[1] + 1) - 0.5
    for low, high, grey in ((0, 100, "0.8"), (1, 99, "0.55"), (25, 75, "0")):
        ax.stairs(np.percentile(x, high, 0), edges, fill=True,
                  baseline=np.percentile(x, low, 0), color=grey, lw=0)
    ax.axhline(0, color="0.5", lw=0.4)
    ax.margins(x=0.01)
    ax.set_title("%s\nlargest channel %.1f x the median" % (title, peak(x)),
                 fontsize=8.5)
    ax.set_xlabel("channel")


def channels(dump, calib):
    with opened(dump) as f:
        keys, values = (most_extreme(f, name) for name in ("k", "v"))
        if not keys or not values:
            raise Wrong("%s has no %s: kvdump --what q,k,v writes both" % (
                dump, "values" if keys else "keys"))
        source = "%s on %s" % (text(f.attrs["model"]), text(f.attrs["text"]))
    _, layer, head, k = keys
    smooth, origin = trained_smooth(calib, layer, head) or own_smooth(k)
    h = hadamard(k.shape[1])
    fig = style.plt.figure(figsize=(8.8, 6), layout="constrained")
    top, below = fig.subfigures(2, 1)
    a, b = top.subplots(1, 2)
    one(a, "keys, layer %d, KV head %d" % (layer, head), k)
    one(b, "values, layer %d, KV head %d" % values[1:3], values[3])
    a.set_ylabel("value over one window's tokens")
    for ax, (title, x) in zip(below.subplots(1, 3), (
            ("these keys smoothed (S)", k / smooth),
            ("after a Hadamard transform (H)", k @ h),
            ("S, then H", k / smooth @ h))):
        one(ax, title, x)
    fig.suptitle("%s: the layer and head where one channel stands out most, "
                 "of keys and of values\nlight: all tokens of a window, grey: "
                 "1 to 99 %% of them, black: 25 to 75 %%; S: factors %s" % (
                     source, origin), fontsize=9)
    return fig
