#include "kernels/simd/c.h"

#define SUMS 1
#define CELLS 8
#define byte_of(x, j) ((x) >> 8 * (j)&255)

static inline void dot(vi32 *s, const vi32 *part, vi32 x, vi32 w, unsigned bits,
                       int positive, unsigned e)
{
    (void)part;
    (void)bits;
    (void)e;
    *s = positive ? v_dot_i8(*s, w, x) : v_dot_i8(*s, x, w);
}

#define FINE_SUMS 1
#define fine_sum(s, low) ((void)(low), (s))

ALWAYS_INLINE void store_fine(uint8_t *p, vi32 x)
{
    const int16_t fine = (int16_t)x;

    memcpy(p, &fine, sizeof(fine));
}

ALWAYS_INLINE void dot_fine(vi32 *s, const vi32 *low, vi32 x, vi32 a, vi32 b)
{
    const vi32 both[2] = {a, b};
    int16_t w[4];

    (void)low;
    memcpy(w, both, sizeof(w));
    for (int i = 0; i < 4; i++)
        *s += byte_of(x, i) * w[i];
}

static inline void store64(uint8_t *p, const vi32 x[64], int positive,
                           vi32 codes[16])
{
    (void)positive;
    for (int i = 0; i < 64; i++) {
        codes[i % 16] += x[i];
        v_store_low_i8(p + i, x[i]);
    }
}

#include "kernels/integers/loops.h"
