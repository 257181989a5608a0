#define NAME(f) f##_c
#include "kernels/codebook/tables_loops.h"
