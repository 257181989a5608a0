#include "eval/serving/serving_report.h"
#include "lib/base/alloc.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define F(name) f->at[KV_SERVING_##name]

void kv_serving_request(const struct kv_request *r,
                        struct kv_serving_figures *f)
{
    const double jct = r->end - r->is.time;

    *f = (struct kv_serving_figures){{0}};
    F(jct) = jct;
    F(queue) = r->prefilled - r->is.time - r->service;
    F(prefill) = r->service - r->quantize;
    F(quantize) = r->quantize;
    F(wait) = r->sent - r->prefilled;
    F(communication) = r->landed - r->sent;
    F(unpack) = r->unpacked - r->landed;
    F(join) = r->joined - r->unpacked;
    F(step) = r->part[KV_STEP_FIXED];
    F(read) = r->part[KV_STEP_READ];
    F(products) = r->part[KV_STEP_PRODUCTS];
    F(vector) = r->part[KV_STEP_VECTOR];
    F(ttft) = r->prefilled - r->quantize - r->is.time;
    F(tpot) = (jct - F(ttft)) / (r->is.out > 1 ? r->is.out - 1. : 1.);
    F(share_prefill) = 100 * F(ttft) / jct;
    F(share_quantize) = 100 * F(quantize) / jct;
    F(share_communication) = 100 * (r->landed - r->prefilled) / jct;
    F(share_decode) = 100 * (r->end - r->unpacked - F(vector)) / jct;
    F(share_read) = 100 * F(read) / jct;
    F(share_vector) = 100 * F(vector) / jct;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* The least value of sorted x[n] that at least this share of the values does
 * not exceed. */
static double percentile(const double *x, size_t n, double share)
{
    const double at = ceil(share * (double)n) - 1;

    return x[at > 0 ? (size_t)at : 0];
}

/* Writes the requests' times of this kind to x [end - first], sorted. */
static void sort(const struct kv_request *r, size_t first, size_t end,
                 enum kv_serving_time kind, double *x)
{
    struct kv_serving_figures one;

    for (size_t i = first; i < end; i++) {
        kv_serving_request(&r[i], &one);
        x[i - first] = one.at[kind];
    }
    qsort(x, end - first, sizeof(*x), by_value);
}

void kv_serving_report(const struct kv_request *r, size_t first, size_t end,
                       const struct kv_cluster_use *use, double memory,
                       double bytes, struct kv_serving_figures *f)
{
    const size_t n = end - first;
    double *x = kv_alloc(n, sizeof(*x));
    struct kv_serving_figures one;

    memset(f, 0, sizeof(*f));
    for (size_t i = first; i < end; i++) {
        kv_serving_request(&r[i], &one);
        for (size_t k = 0; k < KV_SERVING_FIGURES; k++)
            f->at[k] += one.at[k] / (double)n;
    }
    sort(r, first, end, KV_SERVING_jct, x);
    F(jct_p50) = percentile(x, n, .5);
    F(jct_p90) = percentile(x, n, .9);
    F(jct_p99) = percentile(x, n, .99);
    sort(r, first, end, KV_SERVING_ttft, x);
    F(ttft_p99) = percentile(x, n, .99);
    sort(r, first, end, KV_SERVING_tpot, x);
    F(tpot_p99) = percentile(x, n, .99);
    free(x);
    F(busy_prefill) = 100 * use->prefill;
    F(busy_network) = 100 * use->network;
    F(busy_decode) = 100 * use->decode;
    F(batch) = use->batch;
    F(peak_memory) = 100 * (memory + use->peak / bytes);
    F(waiting) = use->waiting;
}

double kv_serving_mean(const double *x, size_t stride, size_t n, double *se)
{
    double mean = 0, squares = 0;

    for (size_t i = 0; i < n; i++)
        mean += x[i * stride] / (double)n;
    for (size_t i = 0; i < n; i++)
        squares += pow(x[i * stride] - mean, 2);
    *se = n > 1 ? sqrt(squares / (double)(n - 1) / (double)n) : NAN;
    return mean;
}
