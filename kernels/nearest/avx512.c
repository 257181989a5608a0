#include "kernels/nearest/avx512.h"

#define NAME(f) f##_avx512
#define GROUPS(d) ((d) <= 4 ? 4 : (d) <= 8 ? 2 : 1) /* of 32 registers */

#include "kernels/nearest/loops.h"
