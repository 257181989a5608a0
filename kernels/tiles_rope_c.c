#define NAME(f) f##_c
#include "kernels/tiles_rope_loops.h"
