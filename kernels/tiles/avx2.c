#include "kernels/simd/avx2.h"

#include "kernels/tiles/loops.h"
