/* What vector code asks of the compiler. */
#ifndef KV_SIMD_UNROLL_H
#define KV_SIMD_UNROLL_H

/* A function whose arguments are constants where it is called. */
#define ALWAYS_INLINE static inline __attribute__((always_inline))

/* Before a loop whose count is a constant, at most 32: no loop is left.  Not
 * by gcc with AddressSanitizer, whose checks would be unrolled too. */
#ifdef __clang__
#define UNROLL _Pragma("clang loop unroll(full)")
#elif defined(__SANITIZE_ADDRESS__)
#define UNROLL
#else
#define UNROLL _Pragma("GCC unroll 32")
#endif

#endif
