#define NAME(f) f##_avx2
#include "kernels/tiles/rope_loops.h"
