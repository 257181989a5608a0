#include "kernels/simd/c.h"

#include "kernels/weights/loops.h"
