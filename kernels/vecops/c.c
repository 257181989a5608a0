#define V_WIDTH 8 /* lanes of the compiler's vectors */
#include "kernels/simd/c.h"

#include "kernels/vecops/loops.h"
