#include "kernels/simd/avx2.h"

#include "kernels/vecops/loops.h"
