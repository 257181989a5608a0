/* All schemes: one file in this folder, one name in this list. */
#ifndef KV_SCHEMES_H
#define KV_SCHEMES_H

#include "lib/scheme.h"

#define KV_SCHEMES(X)      \
    X(f32)                 \
    X(f16)                 \
    X(bf16)                \
    X(absmax)              \
    X(zeropoint)           \
    X(kivi)                \
    X(pq)                  \
    X(million)             \
    X(evasion)             \
    X(vecinfer)            \
    X(hack)                \
    X(quarot)              \
    X(rotatekv)            \
    X(turboquant)          \
    X(fp8)                 \
    X(fp6)                 \
    X(fp4)                 \
    X(mxfp8)               \
    X(mxfp6)               \
    X(mxfp4)               \
    X(nvfp4)               \
    X(nf4)                 \
    X(nf3)                 \
    X(nf2)                 \
    X(q8_0)                \
    X(q5_1)                \
    X(q5_0)                \
    X(q4_1)                \
    X(q4_0)                \
    X(iq4_nl)              \
    X(klt)                 \
    X(qjl)                 \
    X(cachegen)            \
    X(kvquant)             \
    X(cq)                  \
    X(zipcache)            \
    X(gear)                \
    X(kvtc)                \
    X(kvarn)               \
    X(oscar)               \
    X(int8_per_token_head) \
    X(fp8_per_token_head)  \
    X(int4_per_token_head) \
    X(int2_per_token_head) \
    X(kitty)               \
    X(aqua)                \
    X(modelopt)            \
    X(fp4_e2m1)            \
    X(exl3)                \
    X(q8_kv)               \
    X(q6_0)                \
    X(nsnquant)            \
    X(commvq)              \
    X(antkv)               \
    X(fp8_ds_mla)          \
    X(nvfp4_ds_mla)

#define KV_DECLARE_SCHEME(name) extern const struct kv_scheme kv_scheme_##name;
KV_SCHEMES(KV_DECLARE_SCHEME)
#undef KV_DECLARE_SCHEME

#endif
