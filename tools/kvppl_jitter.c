/* kvppl --jitter: repeats rows with slightly perturbed keys and values. */
#include "tools/kvppl.h"

#include <math.h>

int kvppl_check_jitter(const struct kvppl_args *a, struct kv_err *e)
{
    if (a->jitter >= KV_PPL_TOGETHER)
        return kv_fail(e, "--jitter %zu: expected 1 to %d repeats", a->jitter,
                       KV_PPL_TOGETHER - 1);
    if (a->kl_read || !a->kl)
        return kv_fail(e, "--jitter goes with --kl, whose spread it measures%s",
                       a->kl_read ? ", not with --kl-divergence" : "");
    if (a->common.on_gpu)
        return kv_fail(e,
                       "--jitter runs on the CPU alone, not with --device "
                       "%s",
                       a->common.device);
    return 0;
}

double kvppl_kl_jitter(const struct kv_ppl_row *row, size_t n)
{
    double mean = 0, squares = 0;

    for (size_t i = 0; i <= n; i++)
        mean += row[i].score.kl_mean / (double)(n + 1);
    for (size_t i = 0; i <= n; i++)
        squares += pow(row[i].score.kl_mean - mean, 2);
    return n ? sqrt(squares / (double)n) : NAN;
}
