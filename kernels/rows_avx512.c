#define NAME(f) f##_avx512
#define LANES 16
#include "kernels/rows_loops.h"
