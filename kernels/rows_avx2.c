#define NAME(f) f##_avx2
#define LANES 8
#include "kernels/rows_loops.h"
