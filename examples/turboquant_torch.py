"""A published quantizer in PyTorch as a row of kvppl: TurboQuantMSE of the
package turboquant-torch (pip install turboquant-torch scipy), which is not
part of kvtools.

    kvppl ... -s turboquant:b4,rot=hadamard \\
              -s "exec:b4,cmd=python3 examples/turboquant_torch.py"

It returns rounded values, so its bits are declared: b a coordinate, and the
norm of each head in fp16."""
import os
import sys

import torch
from turboquant.mse_quantizer import TurboQuantMSE

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "python"))
from kvtools_codec import Simulated, run # noqa: E402


class TurboQuant(Simulated):
    def open(self):
        b = int(self.param["b"])
        self.quantizer = TurboQuantMSE(self.head_dim, b, seed=self.layer)
        self.bits = b + 16 / self.head_dim

    def quantize(self, x):
        codes = self.quantizer.quantize(torch.tensor(x))
        codes = codes._replace(norms=codes.norms.half().float())
        return self.quantizer.dequantize(codes).numpy()


torch.set_num_threads(1)
run(TurboQuant)
