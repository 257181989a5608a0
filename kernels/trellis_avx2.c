#define LANES 8
#define NAME(f) f##_avx2
#include "kernels/trellis_loops.h"
