/* Instructions of AVX-512 in inline assembler, since gcc 12 copies the sums
 * around intrinsics that accumulate.  _HERE: keeps the written order.  _AT: an
 * operand in memory, at P.
 *
 * tests/avx512_twin.h defines the same names for processors without AVX-512. */
#ifndef KV_SIMD_INSTRUCTIONS_AVX512_H
#define KV_SIMD_INSTRUCTIONS_AVX512_H

#include <immintrin.h>

/* 64 bytes at P as an operand. */
#define KV_LINE_AT(P) "m"(*(const char(*)[64])(const void *)(P))

/* X is computed here, and in one register. */
#define KV_STAYS(X) __asm__("" : "+v"(X))

/* SUM += pairs of 16-bit products of A and B. */
#define KV_DPWSSD_HERE(SUM, A, B) \
    __asm__ volatile("vpdpwssd %2, %1, %0" : "+v"(SUM) : "v"(A), "v"(B))
#define KV_DPWSSD_AT(SUM, A, P) \
    __asm__("vpdpwssd %2, %1, %0" : "+v"(SUM) : "v"(A), KV_LINE_AT(P))

/* SUM += fours of products of bytes, U unsigned, V signed; ALL4: the four bytes
 * at P, repeated. */
#define KV_DPBUSD(SUM, U, V) \
    __asm__("vpdpbusd %2, %1, %0" : "+v"(SUM) : "v"(U), "v"(V))
#define KV_DPBUSD_HERE(SUM, U, V) \
    __asm__ volatile("vpdpbusd %2, %1, %0" : "+v"(SUM) : "v"(U), "v"(V))
#define KV_DPBUSD_ALL4_HERE(SUM, U, P)              \
    __asm__ volatile("vpdpbusd %2%{1to16%}, %1, %0" \
                     : "+v"(SUM)                    \
                     : "v"(U), "m"(*(const char(*)[4])(const void *)(P)))

/* X[i] = TABLE[CODE[i] % 64], 64 bytes; WHERE: a mask of i. */
#define KV_PERMB_HERE(X, CODE, TABLE) \
    __asm__ volatile("vpermb %2, %1, %0" : "=v"(X) : "v"(CODE), "v"(TABLE))
#define KV_PERMB_WHERE_HERE(X, WHERE, CODE, TABLE) \
    __asm__ volatile("vpermb %3, %2, %0%{%1%}"     \
                     : "+v"(X)                     \
                     : "Yk"(WHERE), "v"(CODE), "v"(TABLE))
#define KV_PERMB_WHERE_AT_HERE(X, WHERE, CODE, P) \
    __asm__ volatile("vpermb %3, %2, %0%{%1%}"    \
                     : "+v"(X)                    \
                     : "Yk"(WHERE), "v"(CODE), KV_LINE_AT(P))

/* KV_PERMB for a table in two registers; X begins as the codes, and keeps them
 * outside the mask. */
#define KV_PERMI2B_WHERE_HERE(X, WHERE, FIRST, SECOND) \
    __asm__ volatile("vpermi2b %3, %2, %0%{%1%}"       \
                     : "+v"(X)                         \
                     : "Yk"(WHERE), "v"(FIRST), "v"(SECOND))

#endif
