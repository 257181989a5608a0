#define NAME(f) f##_avx2
#include "kernels/tiles_codebook_loops.h"
