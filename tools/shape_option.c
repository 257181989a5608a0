#include "tools/shape_option.h"
#include "lib/base/opt.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>

int kv_shape_option(const char *text, struct kv_attn_inputs *in, size_t *batch,
                    struct kv_err *e)
{
    size_t x[] = {0, 0, 0, 0, 0, 1}, n = 0;
    const char *at = text;

    errno = 0;
    while (n < 6 && isdigit((unsigned char)*at)) {
        char *end;

        x[n++] = strtoull(at, &end, 10);
        at = end;
        if (*at == ',' && isdigit((unsigned char)at[1]))
            at++;
    }
    if (n < 5 || *at || errno)
        return kv_fail(e, "--shape %s: expected B,HQ,HKV,D,N[,NQ]", text);
    for (size_t i = 0; i < n; i++)
        if (x[i] > KV_OPT_MAX)
            return kv_fail(e, "--shape %s: %zu is more than %llu", text, x[i],
                           KV_OPT_MAX);
    if (!x[0] || !x[1] || !x[2] || x[1] % x[2])
        return kv_fail(e,
                       "--shape %s: B, HQ and HKV must be positive, and HQ a "
                       "multiple of HKV",
                       text);
    if (x[3] < 2 || x[3] % 2 || x[3] > KV_MAX_HEAD_DIM)
        return kv_fail(e, "--shape %s: D must be even, 2 to %d", text,
                       KV_MAX_HEAD_DIM);
    if (!x[5] || x[4] < x[5])
        return kv_fail(e,
                       "--shape %s: a step of NQ = %zu queries needs at least "
                       "as many tokens, N = %zu",
                       text, x[5], x[4]);
    *batch = x[0];
    in->n = x[4];
    in->nq = x[5];
    in->shape = (struct kv_shape){.n_layers = 1,
                                  .n_heads = x[1],
                                  .n_kv_heads = x[2],
                                  .head_dim = x[3],
                                  .attn_scale = 1 / sqrtf((float)x[3]),
                                  .n_rot = x[3] / 2};
    for (size_t i = 0; i < in->shape.n_rot; i++)
        in->shape.inv_freq[i] =
            (float)pow(10000, -2 * (double)i / (double)x[3]);
    return 0;
}
