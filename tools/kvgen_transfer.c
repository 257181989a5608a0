/* kvgen --disaggregate: the fields and columns about transfers. */
#include "tools/columns_about.h"
#include "tools/kvgen.h"

#include <math.h>
#include <string.h>

/* The numbers of an answer's transfer, in the order of values_of(); a row has
 * their means over prompts. */
#define TRANSFER_NAMES                                                        \
    "jct", "queue_seconds", "wait_seconds", "communication_seconds",          \
        "join_seconds", "encode_seconds", "load_seconds", "transfer_seconds", \
        "encode_gb_s", "load_gb_s", "transfer_gb_s", "code_bytes",            \
        "wire_bytes", "layers_again", "attempts"

static const char *const names[] = {TRANSFER_NAMES, NULL};
enum { NAMES = sizeof(names) / sizeof(*names) - 1 };

static const char *const fields[] = {KVGEN_ANSWER_FIELDS, TRANSFER_NAMES, NULL};
static const char *const columns[] = {KVGEN_ANSWER_COLUMNS, "ranks",
                                      TRANSFER_NAMES, "jct_se", NULL};

void kvgen_about_transfers(void)
{
    kv_columns_about("kvgen --disaggregate", columns);
}

static double rate(double bytes, double seconds)
{
    return seconds > 0 ? bytes / seconds * 1e-9 : NAN;
}

/* Encoding and loading count the keys and values in fp16. */
static void values_of(const struct kv_transferred *x, double value[NAMES])
{
    const double halves = x->values * sizeof(uint16_t);
    const double all[NAMES] = {x->jct,
                               x->queue,
                               x->wait,
                               x->communication,
                               x->join,
                               x->encode,
                               x->load,
                               x->transfer,
                               rate(halves, x->encode),
                               rate(halves, x->load),
                               rate(x->wire_bytes, x->transfer),
                               x->code_bytes,
                               x->wire_bytes,
                               (double)x->again,
                               (double)x->attempts};

    memcpy(value, all, sizeof(all));
}

static int put_fields(const struct kvgen_run *r, const struct kv_out *out,
                      const struct kv_answer *x, const struct kv_answer *base,
                      struct kv_err *e)
{
    double value[NAMES];

    values_of(&r->transferred[x - r->answer], value);
    if (kvgen_answers.put_fields(r, out, x, base, e))
        return -1;
    for (int i = 0; i < NAMES; i++)
        kvgen_put_real(out, names[i], value[i]);
    return 0;
}

static void put_cells(const struct kvgen_run *r, const struct kvgen_args *a,
                      struct kv_results *t, size_t spec)
{
    struct kv_window_mean mean[NAMES] = {{0}};

    kvgen_answers.put_cells(r, a, t, spec);
    for (size_t i = 0; i < r->n_mine; i++) {
        struct kv_window_mean over[NAMES] = {{0}};

        for (size_t j = 0; j < a->samples; j++) {
            const struct kv_answer *x = kvgen_answer(r, a, i, spec, j);
            double value[NAMES];

            values_of(&r->transferred[x - r->answer], value);
            for (int k = 0; k < NAMES; k++)
                kvgen_mean_add(&over[k], value[k]);
        }
        for (int k = 0; k < NAMES; k++)
            kvgen_mean_add(&mean[k], kv_window_mean_value(&over[k]));
    }
    kv_results_text(t, "ranks", a->disaggregate.ranks);
    for (int k = 0; k < NAMES; k++)
        kv_results_real(t, names[k], kv_window_mean_value(&mean[k]));
    kv_results_real(t, "jct_se", kv_window_mean_se(&mean[0]));
}

const struct kvgen_job kvgen_transfers = {fields, columns, put_fields, NULL,
                                          put_cells};
