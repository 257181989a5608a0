#define NAME(f) f##_c
#include "kernels/tiles_codebook_loops.h"
