#define NAME(f) f##_avx2
#include "kernels/tiles_rope_loops.h"
