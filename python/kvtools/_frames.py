"""Files of the tools as tables and arrays."""
import numpy as np


def results(*paths):
    """Rows of the tools' results (csv, tsv, jsonl) as one pandas.DataFrame.

    Numbers are numbers, blanks are missing values; every column of any of the
    files is there (results/README.md says what they mean).
    """
    import pandas as pd

    frames = []
    for path in paths:
        name = str(path)
        if name.endswith(".jsonl"):
            frames.append(pd.read_json(path, lines=True))
        elif name.endswith((".csv", ".tsv")):
            frames.append(pd.read_csv(
                path, sep="\t" if name.endswith(".tsv") else ","))
        else:
            raise ValueError("%s: expected a name in .csv, .tsv or .jsonl"
                             % name)
    if not frames:
        raise ValueError("expected the path of a file of results")
    return pd.concat(frames, ignore_index=True)


def dump(path):
    """kvdump's tensors as an xarray.Dataset, read from the file when they are
    used.

    Variables q, k, v, k_pre, k_gradient and v_gradient, as far as the dump has
    them: [layer][window][token][head][channel]; heads of q are query_head.
    tokens: [window][token].  Attributes are the file's.  Channels of heads are
    in the file's order (attribute channel_order, kvtools/dump.h).
    """
    import h5py
    import xarray as xr

    with h5py.File(path, "r") as f:
        attrs = {k: v.decode() if isinstance(v, bytes) else
                 v.item() if isinstance(v, np.generic) else v
                 for k, v in f.attrs.items()}
        if attrs.get("kind") != "kvtools-dump":
            raise ValueError("%s: kind %r, expected a dump of kvdump"
                             % (path, attrs.get("kind")))
        layers = range(attrs["first_layer"], attrs["last_layer"] + 1)
        groups = [f["layer_%03d" % i] for i in layers]
        data = {}
        for name in ("q", "k", "v", "k_pre", "k_gradient", "v_gradient"):
            if name not in groups[0]:
                continue
            head = "query_head" if name == "q" else "head"
            data[name] = (("layer", "window", "token", head, "channel"),
                          np.stack([np.asarray(g[name], np.float32)
                                    for g in groups]))
        data["tokens"] = (("window", "token"), f["tokens"][:])
        return xr.Dataset(data, {"layer": list(layers)}, attrs)
