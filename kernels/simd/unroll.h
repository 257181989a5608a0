#include "kernels/simd/common.h"
