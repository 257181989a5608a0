#define NAME(f) f##_c
#include "kernels/tiles/rope_loops.h"
