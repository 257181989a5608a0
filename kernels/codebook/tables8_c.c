#define NAME(f) f##_c
#include "kernels/codebook/tables8_loops.h"
