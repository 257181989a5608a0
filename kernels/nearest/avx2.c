#include "kernels/nearest/avx2.h"

#define NAME(f) f##_avx2
#define GROUPS(d) ((d) == 1 ? 4 : (d) <= 4 ? 2 : 1) /* of 16 registers */

#include "kernels/nearest/loops.h"
