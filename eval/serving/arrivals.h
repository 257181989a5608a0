/* Requests: their arrival times and numbers of tokens, from distributions
 * (Poisson arrivals, Beta lengths) or from a trace file. */
#ifndef KV_SERVING_ARRIVALS_H
#define KV_SERVING_ARRIVALS_H

#include "lib/base/err.h"

#include <stddef.h>
#include <stdint.h>

struct kv_arrival {
    double time; /* s */
    uint32_t in, out;
};

/* A Beta distribution between least and most.  concentration: the sum a + b of
 * its parameters, at least .1, since with smaller values a draw may be 0 / 0.
 * least = most: always that length. */
struct kv_length_law {
    double mean, least, most, concentration;
};

struct kv_arrivals {
    struct kv_length_law in, out;
    uint32_t longest;               /* most tokens in + out; longer inputs are
                                     * cut */
    const struct kv_arrival *trace; /* replaces the distributions; or NULL */
    size_t n_trace;
    double rate; /* requests/s; a trace's times are scaled to this rate */
};

/* a: [n].  Each request depends only on seed and its index, so all schemes and
 * rates share the lengths.  With a trace n is at most n_trace. */
void kv_arrivals_fill(const struct kv_arrivals *from, uint64_t seed,
                      struct kv_arrival *a, size_t n);

/* Uniform in (0, 1). */
double kv_uniform(uint64_t key, uint64_t counter);

/* Reads a trace file; the caller frees *a.  Mooncake's: JSON lines with
 * timestamp (ms), input_length and output_length.  Azure's: CSV with TIMESTAMP
 * (YYYY-MM-DD HH:MM:SS.F), ContextTokens and GeneratedTokens.  The first
 * arrives at 0.  Fails on times that do not exist or go backward, on lengths
 * that are not positive whole numbers, and on requests of more than longest
 * tokens. */
int kv_trace_read(const char *path, uint32_t longest, struct kv_arrival **a,
                  size_t *n, struct kv_err *e);

#endif
