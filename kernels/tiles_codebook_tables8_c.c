#define NAME(f) f##_c
#include "kernels/tiles_codebook_tables8_loops.h"
