#define NAME(f) f##_avx512
#include "kernels/tiles/rope_loops.h"
