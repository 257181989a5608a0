#include "kernels/blas_buffer.h"
#include "lib/base/alloc.h"

#include <stdatomic.h>

/* OpenBLAS 0.3: 32 << 22 bytes plus alignment. */
enum { BUFFER = 129 << 20 };

static atomic_int inside, max;

void kv_blas_enter(void)
{
    const int n = ++inside;
    int known = max;

    while (n > known && !atomic_compare_exchange_weak(&max, &known, n))
        ;
    if (n > known)
        kv_memory_probe(BUFFER, "a buffer of OpenBLAS");
}

void kv_blas_leave(void)
{
    inside--;
}
