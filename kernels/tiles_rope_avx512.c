#define NAME(f) f##_avx512
#include "kernels/tiles_rope_loops.h"
