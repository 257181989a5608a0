#include "kernels/simd/c.h"

#include "kernels/tiles/loops.h"
