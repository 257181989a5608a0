"""Changes of an HDF5 file by the library itself, so that its checksums hold:
attributes, datasets, links, types, shapes, filters, values."""
import h5py
import numpy as np

import tree


def objects(f):
    found = [f]
    f.visititems(lambda name, o: found.append(o))
    return found


def number(x):
    """x of tree.NUMBERS as something that an attribute can hold."""
    if isinstance(x, bytes):
        return {b"NaN": np.nan, b"Infinity": np.inf}.get(x, -np.inf)
    return x if isinstance(x, float) else np.int64(x) if abs(
        x) < 2**63 else np.uint64(x % 2**64)


def odd(rng, old):
    """Another value of an attribute."""
    how = rng.randrange(9)
    if how < 3:
        try:
            return number(tree.odd_number(rng, old.item()))
        except (AttributeError, TypeError, ValueError, OverflowError):
            return number(rng.choice(tree.NUMBERS))
    return [rng.choice(["", "a", "A" * 60000, "\x1b[2J", "../x", "%s%n", "=1"]),
            np.array([old] * 3) if not isinstance(old, str) else [old] * 3,
            h5py.Empty("f"), np.zeros((2, 2)), np.bytes_(b"\xff\xfe\0a"),
            np.complex64(1)][how - 3]


def change_attr(rng, f):
    held = [o for o in objects(f) if len(o.attrs)]
    if not held:
        return
    o = rng.choice(held)
    name = rng.choice(list(o.attrs))
    old, how = o.attrs[name], rng.randrange(8)
    if how == 0:
        del o.attrs[name]
    elif how == 1:
        o.attrs.create(name + "x", old)
    elif how == 2 and not isinstance(old, (str, bytes, h5py.Empty)):
        o.attrs.create(name, old, dtype=rng.choice(
            ["i1", ">i2", "u4", "f2", ">f4", "f8"]))
    else:
        o.attrs[name] = odd(rng, old)


def retyped(rng, x):
    kind = rng.choice(["f2", "f4", ">f4", "f8", "i1", "i4", ">i8", "u1", "u2",
                       "S3", [("a", "f4"), ("b", "i4")]])
    return np.zeros(x.shape, kind) if isinstance(kind, list) else x.astype(kind)


def reshaped(rng, x):
    """Another shape of the same values, or of some of them."""
    return [x.ravel(), x[None], x[:-1] if x.ndim and len(x) else x,
            np.concatenate([x, x]) if x.ndim else x[None],
            x.T, np.zeros(()), np.zeros((0,) + x.shape[1:], x.dtype)
            ][rng.randrange(7)]


def hole(rng, f, name, like):
    """A dataset that claims more than the file has."""
    f.create_dataset(name, shape=(rng.choice([2**20, 2**33, 2**40]),) +
                     like.shape[1:], dtype=like.dtype, chunks=(1,) +
                     (tuple(max(1, n) for n in like.shape[1:])))


def spoil(rng, x):
    if not x.size:
        return x
    flat = x.ravel()
    if x.dtype.kind == "f":
        flat[rng.randrange(x.size)] = rng.choice([np.nan, np.inf, -np.inf, 3e38,
                                                  -1, 0, 1e-45])
    elif x.dtype.kind in "iu":
        info = np.iinfo(x.dtype)
        flat[rng.randrange(x.size)] = rng.choice([info.min, info.max, 0])
    return flat.reshape(x.shape)


def change_dataset(rng, f):
    held = [o for o in objects(f) if isinstance(o, h5py.Dataset)]
    if not held:
        return
    o = rng.choice(held)
    name, attrs = o.name, dict(o.attrs)
    try:
        x = o[()]
    except OSError:  # a hole that was compressed
        return
    how = rng.randrange(6)
    if not isinstance(x, np.ndarray) or how == 0:
        x = np.zeros(3, "f4")
    del f[name]
    if how == 1 and x.ndim:
        hole(rng, f, name, x)
    else:
        y = [x, x, spoil, spoil, retyped, reshaped][how]
        y = y(rng, x) if callable(y) else y
        more = {"compression": "gzip", "shuffle": rng.random() < .5} \
            if y.ndim and y.size and rng.random() < .3 else {}
        f.create_dataset(name, data=y, **more)
    for k, v in attrs.items():
        f[name].attrs[k] = v


def change_link(rng, f):
    name = rng.choice([o.name for o in objects(f)[1:]])
    other = rng.choice([o.name for o in objects(f)])
    how = rng.randrange(7)
    if how == 0:
        f[name + "x"] = f[other]  # once more, or a loop
        return
    if how == 1 and name != other:
        f.move(name, name + "y")
        return
    del f[name]
    if how == 2:
        f[name] = h5py.SoftLink(rng.choice([name, other, "/none"]))
    elif how == 3:
        f[name] = h5py.ExternalLink(rng.choice(["/dev/zero", "x.h5",
                                                f.filename]), "/")
    elif how == 4:
        f.create_group(name)
    elif how == 5 and other in f:
        f[name] = f[other]


def mutate(rng, path):
    """The file itself; what h5py refuses is left."""
    with h5py.File(path, "r+") as f, np.errstate(all="ignore"):
        while True:
            try:
                rng.choice([change_attr, change_attr, change_dataset,
                            change_dataset, change_link])(rng, f)
            except (ValueError, TypeError, KeyError, IndexError, OSError,
                    RuntimeError, OverflowError, UnicodeError):
                pass
            if rng.random() < .6:
                return


def set_text(path, name, value):
    with h5py.File(path, "r+") as f:
        f.attrs[name] = value
