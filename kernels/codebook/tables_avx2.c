#define NAME(f) f##_avx2
#include "kernels/codebook/tables_loops.h"
