#include "lib/columns.h"
#include "lib/base/release.h"
#include "lib/calib.h"
#include "lib/mixed.h"
#include "lib/scheme.h"
#include "lib/seq/bits.h"

#include <math.h>
#include <stdio.h>

/* Sets a count; 0 means "does not apply" and leaves the cell blank. */
static void count(struct kv_results *r, const char *column, size_t n)
{
    if (n)
        kv_results_size(r, column, n);
}

static void put_scheme(struct kv_results *r, const struct kv_spec *s)
{
    char both[64];

    snprintf(both, sizeof(both), "K-%s/V-%s",
             kv_spec_member(s, 0)->scheme->name,
             kv_spec_member(s, kv_spec_members(s) - 1)->scheme->name);
    kv_results_text(r, "scheme",
                    s->mixed && !s->mixed->n_layers ? both : s->scheme->name);
}

void kv_results_conditions(struct kv_results *r, const struct kv_conditions *c,
                           const struct kv_spec *spec,
                           const struct kv_calib *calib, double calib_leak)
{
    kv_results_text(r, "tool", c->tool);
    kv_results_text(r, "version", kv_version());
    kv_results_text(r, "spec", spec->text);
    put_scheme(r, spec);
    kv_results_params(r, spec);
    kv_results_text(r, "model", c->model);
    kv_results_text(r, "model_hash", c->model_hash);
    kv_results_text(r, "weights", c->weights);
    kv_results_text(r, "text", c->text);
    kv_results_text(r, "text_hash", c->text_hash);
    count(r, "ctx", c->ctx);
    count(r, "windows", c->windows);
    kv_results_text(r, "protocol", c->protocol);
    kv_results_text(r, "calib_hash",
                    calib && *calib->hash ? calib->hash : NULL);
    kv_results_text(r, "calib_text", calib ? calib->text : NULL);
    kv_results_real(r, "calib_leak", calib ? calib_leak : NAN);
    kv_results_text(r, "device", c->device);
    kv_results_text(r, "level", c->level);
    count(r, "threads", c->threads);
    kv_results_size(r, "seed", c->seed);
    if (c->reading.known) {
        kv_results_size(r, "bos", c->reading.bos);
        kv_results_size(r, "special", c->reading.special);
    }
    kv_results_text(r, "gemm", c->gemm);
}

/* Bits per value; NaN, which gives a blank cell, if there are no values. */
static double bits_of(double bytes, double values)
{
    return values > 0 ? 8 * bytes / values : NAN;
}

void kv_results_bits(struct kv_results *r, const struct kv_bits *b)
{
    const double total = b->bytes + b->shared_bytes;

    kv_results_real(r, "bits_nominal", b->nominal);
    kv_results_real(r, "bits", bits_of(b->bytes, b->values));
    kv_results_real(r, "bits_quantized",
                    bits_of(b->quantized_bytes, b->quantized_values));
    kv_results_size(r, "shared_bytes", (uint64_t)b->shared_bytes);
    kv_results_real(r, "bits_total", bits_of(total, b->values));
    kv_results_size(r, "clipped", (uint64_t)b->clipped);
    kv_results_text(r, "bits_declared", b->declared ? "yes" : NULL);
}
