#include "tools/kvquant_inspect.h"
#include "eval/inspect.h"
#include "lib/results.h"
#include "tools/columns_about.h"

static const char *const channel_columns[] = {KV_CONDITION_COLUMNS,
                                              "side",
                                              "layer",
                                              "head",
                                              "channel",
                                              "absmax",
                                              "mean",
                                              "std",
                                              "skewness",
                                              "kurtosis",
                                              "singular",
                                              NULL};
static const char *const book_columns[] = {
    KV_CONDITION_COLUMNS, "side", "layer",     "book",
    "centroids",          "used", "index_ppl", NULL};

void kvquant_about_inspect(void)
{
    kv_columns_about("kvquant --channels", channel_columns);
    kv_columns_about("kvquant --codebooks", book_columns);
}

static void put_place(struct kv_results *t, const struct kvquant_inspect *a,
                      const struct kv_spec *spec, const struct kv_codec *c)
{
    const char side[] = {kv_side_name(c->side), '\0'};

    kv_results_conditions(t, a->conditions, spec,
                          kv_spec_calibrated(spec) ? a->calib : NULL, a->leak);
    kv_results_text(t, "side", side);
    kv_results_size(t, "layer", c->layer);
}

static int put_channels(struct kv_results *t, const struct kvquant_inspect *a,
                        const struct kv_spec *spec, const struct kv_codec *c,
                        const struct kv_inspected *i, struct kv_err *e)
{
    for (size_t j = 0; j < i->n_heads * i->dim; j++) {
        put_place(t, a, spec, c);
        kv_results_size(t, "head", j / i->dim);
        kv_results_size(t, "channel", j % i->dim);
        kv_results_real(t, "absmax", i->channel[j].max);
        kv_results_real(t, "mean", kv_channel_mean(&i->channel[j]));
        kv_results_real(t, "std", kv_channel_std(&i->channel[j]));
        kv_results_real(t, "skewness", kv_channel_skewness(&i->channel[j]));
        kv_results_real(t, "kurtosis", kv_channel_kurtosis(&i->channel[j]));
        kv_results_real(t, "singular", i->singular[j]);
        if (kv_results_row(t, e))
            return -1;
    }
    return 0;
}

static int put_books(struct kv_results *t, const struct kvquant_inspect *a,
                     const struct kv_spec *spec, const struct kv_codec *c,
                     const struct kv_inspected *i, struct kv_err *e)
{
    for (size_t b = 0; b < i->n_books; b++) {
        put_place(t, a, spec, c);
        kv_results_size(t, "book", b);
        kv_results_size(t, "centroids", i->book[b].k);
        kv_results_real(t, "used", kv_book_used(&i->book[b]));
        kv_results_real(t, "index_ppl", kv_book_perplexity(&i->book[b]));
        if (kv_results_row(t, e))
            return -1;
    }
    return 0;
}

static int inspect_layer(struct kv_results *t, const struct kvquant_inspect *a,
                         const struct kv_spec *spec, size_t layer,
                         double *clipped, struct kv_err *e)
{
    struct kv_codecs *codecs = NULL;
    struct kv_inspected i = {0};
    int rc = kv_codecs_new(&codecs, spec, &kv_dump_info(a->dump)->shape, layer,
                           1, a->calib, e);

    for (int side = 0;
         side < kv_shape_sides(&kv_dump_info(a->dump)->shape) && !rc; side++) {
        const struct kv_codec *c = kv_codecs_at(codecs, layer)[side];

        rc = kv_inspect(&i, a->dump, c, e) ||
             (a->codebooks ? put_books : put_channels)(t, a, spec, c, &i, e);
        *clipped += (double)i.clipped;
        kv_inspected_clear(&i);
    }
    kv_codecs_free(codecs);
    return rc;
}

int kvquant_inspect(const struct kvquant_inspect *a, struct kv_err *e)
{
    const struct kv_dump_info *info = kv_dump_info(a->dump);
    struct kv_results *t;

    if (kv_common_table(&t, a->common, a->common->output,
                        a->codebooks ? book_columns : channel_columns, a->spec,
                        a->n_all, e))
        return -1;
    for (size_t s = 0; s < a->n_specs; s++) {
        double clipped = 0;

        for (size_t l = info->first_layer; l <= info->last_layer; l++)
            if (inspect_layer(t, a, &a->spec[s], l, &clipped, e)) {
                kv_results_discard(t);
                return -1;
            }
        kv_common_note_clipped(&a->spec[s], clipped);
    }
    return kv_results_close(t, e);
}
