#!/usr/bin/env python3
"""The tables of llama.cpp's IQ types, of the `gguf` package from PyPI (0.19.0), as codes
of levels.  Run by hand:

    tests/make_weights_grids.py > kernels/weights/grids.c
"""
import gguf
import numpy as np

GRIDS = {"iq2_xxs": ("IQ2_XXS", 2), "iq2_xs": ("IQ2_XS", 2),
         "iq2_s": ("IQ2_S", 2), "iq1": ("IQ1_S", 2), "iq3_xxs": ("IQ3_XXS", 3),
         "iq3_s": ("IQ3_S", 3)}

print("""/* Made by tests/make_weights_grids.py. */
#include "kernels/weights/grids.h\"""")
for name, (of, bits) in GRIDS.items():
    of = getattr(gguf.quants, of)
    of.init_grid()
    levels = list(of.grid_map)
    codes = [[levels.index(x) for x in row]
             for row in of.grid.reshape(of.grid_shape)]
    words = ["0x%04x" % sum(c << bits * i for i, c in enumerate(row))
             for row in codes]
    print("\nconst uint16_t kv_grid_%s[%d] = {" % (name, len(words)))
    for i in range(0, len(words), 9):
        print("    " + " ".join(w + "," for w in words[i:i + 9]))
    print("};")
