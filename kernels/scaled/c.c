#include "lib/base/half.h"

#include <stddef.h>
#include <string.h>

#define NAME(f) f##_c
#define HALVES(rows) 1u
#define PLAIN

enum { LANES = 16 };

typedef struct {
    uint32_t lane[LANES];
} vd;
typedef struct {
    uint16_t lane[LANES];
} vw;
typedef struct {
    float lane[LANES];
} vf;
typedef vf table;

#define EACH for (size_t i = 0; i < LANES; i++)
#define LOAD(TYPE, NAME, FROM)      \
    static inline TYPE NAME(FROM p) \
    {                               \
        TYPE x;                     \
                                    \
        memcpy(&x, p, sizeof(x));   \
        return x;                   \
    }
#define BY_NUMBER(TYPE, LANE, NAME, OP)          \
    static inline TYPE NAME(TYPE x, unsigned n)  \
    {                                            \
        EACH x.lane[i] = (LANE)(x.lane[i] OP n); \
        return x;                                \
    }
#define BY_VECTOR(TYPE, LANE, NAME, OP)                  \
    static inline TYPE NAME(TYPE x, TYPE y)              \
    {                                                    \
        EACH x.lane[i] = (LANE)(x.lane[i] OP y.lane[i]); \
        return x;                                        \
    }

LOAD(vd, d_load, const uint8_t *)
BY_NUMBER(vd, uint32_t, d_shr, >>)
BY_NUMBER(vd, uint32_t, d_shl, <<)
LOAD(vw, w_load, const uint8_t *)
BY_NUMBER(vw, uint16_t, w_shr, >>)
BY_NUMBER(vw, uint16_t, w_shl, <<)
BY_NUMBER(vw, uint16_t, w_and, &)
LOAD(vf, f_load, const float *)
BY_VECTOR(vf, float, f_add, +)
BY_VECTOR(vf, float, f_mul, *)
BY_VECTOR(vf, float, f_div, /)

static inline vd d_pick(unsigned bits, vd x, vd y)
{
    EACH x.lane[i] = (x.lane[i] & bits) | (y.lane[i] & ~bits);
    return x;
}

static inline vw w_pick(unsigned bits, vw x, vw y)
{
    EACH x.lane[i] = (uint16_t)((x.lane[i] & bits) | (y.lane[i] & ~bits));
    return x;
}

static inline vw w_sar(vw x, unsigned n)
{
    EACH x.lane[i] = (uint16_t)((int16_t)x.lane[i] >> n);
    return x;
}

static inline vw w_bytes(const uint8_t *p)
{
    vw x;

    EACH x.lane[i] = p[i];
    return x;
}

static inline vf f_all(float a)
{
    vf x;

    EACH x.lane[i] = a;
    return x;
}

static inline vf f_fma(vf a, vf b, vf c) /* two roundings */
{
    return f_add(f_mul(a, b), c);
}

static inline void f_store(float *p, vf x)
{
    memcpy(p, &x, sizeof(x));
}

static inline void f_store_some(float *p, vf x, size_t n)
{
    EACH p[i] = i < n ? x.lane[i] : 0;
}

static inline vf f_half(vw w)
{
    vf x;

    EACH x.lane[i] = kv_f16_to_f32(w.lane[i]);
    return x;
}

static inline vf f_e8m0(vw w)
{
    vf x;

    EACH x.lane[i] =
        kv_bits_f32(w.lane[i] ? (uint32_t)w.lane[i] << 23 : 1u << 22);
    return x;
}

#define t_load f_load

static inline vf t_look(vf t, vd d)
{
    vf x;

    EACH x.lane[i] = t.lane[d.lane[i] % LANES];
    return x;
}

#include "kernels/scaled/loops.h"
