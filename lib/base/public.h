/* These macros enclose the declarations of an installed header: C++ sees C
 * functions, and libkvtools.so exports these functions and no others. */
#ifndef KV_BASE_PUBLIC_H
#define KV_BASE_PUBLIC_H

#ifdef __cplusplus
#define KV_PUBLIC_BEGIN                                \
    _Pragma("GCC visibility push(default)") extern "C" \
    {
#define KV_PUBLIC_END \
    }                 \
    _Pragma("GCC visibility pop")
#else
#define KV_PUBLIC_BEGIN _Pragma("GCC visibility push(default)")
#define KV_PUBLIC_END _Pragma("GCC visibility pop")
#endif

#endif
