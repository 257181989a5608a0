#define NAME(f) f##_c
#include "kernels/tiles_codebook_tables_loops.h"
