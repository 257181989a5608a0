#define LANES 16
#define NAME(f) f##_avx512
#include "kernels/trellis_loops.h"
