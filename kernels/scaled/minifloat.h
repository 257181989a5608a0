/* Floats of 4 to 8 bits, as the OCP specifications OFP8 and MX v1.0 define
 * them: | sign | exponent: e bits | mantissa: m bits |, exponent bias
 * 2^(e-1) - 1, denormals.
 *
 *           bits   max     least normal   least denormal
 *   e5m2     8     57344   2^-14          2^-16
 *   e4m3     8     448     2^-6           2^-9     ("fn": no infinity)
 *   e3m2     6     28      2^-2           2^-4
 *   e2m3     6     7.5     1              2^-3
 *   e2m1     4     6       1              2^-1
 *
 * Infinities and NaNs, which e5m2 and e4m3 have above max, are never written;
 * their codes decode as if they were finite numbers. */
#ifndef KV_SCALED_MINIFLOAT_H
#define KV_SCALED_MINIFLOAT_H

#include <stddef.h>
#include <stdint.h>

struct kv_minifloat {
    unsigned e, m; /* bits of exponent and mantissa */
    float max;     /* the largest finite value */
};

extern const struct kv_minifloat kv_e5m2, kv_e4m3, kv_e3m2, kv_e2m3, kv_e2m1;

/* code [n]: x[i] / scale rounded half to even, in the low 1 + e + m bits;
 * values beyond max become max with their sign.  x: finite; scale >= 0; with
 * scale 0 every code is 0. */
void kv_minifloat_encode(const struct kv_minifloat *f, const float *x, size_t n,
                         float scale, uint16_t *code);

/* x [n]: scale times the value of code [n]. */
void kv_minifloat_decode(const struct kv_minifloat *f, const uint16_t *code,
                         size_t n, float scale, float *x);

#endif
