"""What scripts/gpu-check measures: specs, sizes, bounds."""
FIRST = ["kivi:b{2,4}g128r0", "hack:b2p64r0", "hack:b2p64r0,nearest",
         "vecinfer:d{4,8}b8r0,iters=2", "million:d2b8r0,iters=2"]
SPECS = {
    "exact": ["bf16", "kivi:b{8,4,2}g128r0", "kivi:b2g32r0", "absmax:b4r0",
              "nf4:g64r0", "turboquant:b{4,2}r0", "fp8:e4m3r0",
              "kvquant:b{4,3,2}r0",
              "vecinfer:d{2,4,8}b8r0,iters=2", "vecinfer:d2b4r0,iters=2",
              "million:d{2,4}b8r0,iters=2"],
    "int8": ["kivi:b8g128r0", "kivi:b8g32r0", "absmax:b8r0", "q8_0",
             "hack:b2p{32,128}r0", "hack:b4p64r0,nearest",
             "vecinfer:d{4,8}b12r0,iters=1"],
    "generic": ["bf16", "kivi:b{2,3}g128r0", "fp8:e4m3r0",
                "vecinfer:d4b6r0,iters=2", "kvquant:r0", "kivi:b2g256r0",
                "hack:b3p64r0", "rotatekv:r0"],
    "unfused,dequant": ["kivi:b{4,2}g128r0", "vecinfer:d{4,8}b8r0,iters=2"],
}
# Numbers of sequences and tokens; a batch is copies of one sequence.
SIZES = [(1, 8192), (1, 131072), (32, 131072), (1, 32768), (32, 8192),
         (32, 32768)]
# A longer cache repeats this many tokens (kvattn --repeat), except for specs
# that keep a token in fp16, and for baselines that read the tokens themselves.
MADE = 8192
WHOLE = "kvquant", "rotatekv"
SMALL = "2,8,2,128,300,2", "2,8,2,128,300"  # unfused takes one query
MODEL_SPECS = ["kivi:b{4,2}g32r32", "hack:b4p64", "klt:b2,metric=attention"]
# data/model in bf16: how far the GPU's numbers may be from the CPU's, relative
# to the CPU's.  hack rounds stochastically: with 2 bits, codes that differ
# would move perplexity by more.
MODEL_BOUNDS = {"ppl": 5e-3, "kl_mean": 0.1, "rel_err": 1e-2, "bits": 0}
# The whole decoding step: tokens, specs.
STEPS = 8192, 65536, 196608
STEP_SPECS = ["kivi:b{4,2}g128", "hack:b2p64", "vecinfer:d{4,8}b8,iters=2"]
# Shapes of the papers' figures: what, paths, batch, query heads, KV heads, head
# dimension, tokens and queries, specs.
PAPERS = [
    ("HACK's artifact", "int8", "1,64,8,128,131072",
     ["hack:b2p64r0", "hack:b2p64r0,nearest"]),
    *(("VecInfer's figure 5", "dequant,unfused,int8", "1,32,8,128,%d" % n,
       ["vecinfer:d{4,8}b8r0,iters=2"]) for n in (8192, 32768)),
    *(("VecInfer's figure 9", "int8", "%d,32,8,%d,%d" % (batch, d, n),
       ["vecinfer:d{2,4,8}b8r0,iters=2"])
      for d in (128, 64) for n in (98304, 131072, 163840, 196608)
      for batch in (1, 8, 32)),
    ("prefill", "int8", "1,32,8,128,8192,2048", ["hack:b2p{32,64,128}r0"]),
    ("prefill", "exact", "1,32,8,128,8192,2048",
     ["kivi:b{2,4}g32r0", "vecinfer:d{4,8}b8r0,iters=2"]),
]
