#define NAME(f) f##_avx2
#include "kernels/tiles_codebook_tables_loops.h"
