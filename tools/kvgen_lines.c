/* kvgen's output: a line for each answer, a row for each spec. */
#include "lib/mixed.h"
#include "lib/seq/bits.h"
#include "tools/kvgen.h"

#include <math.h>
#include <stdlib.h>

struct kv_answer *kvgen_answer(const struct kvgen_run *r,
                               const struct kvgen_args *a, size_t prompt,
                               size_t spec, size_t sample)
{
    return &r->answer[(prompt * r->n_specs + spec) * a->samples + sample];
}

const struct kv_answer *kvgen_reference(const struct kvgen_run *r,
                                        const struct kvgen_args *a,
                                        size_t prompt, size_t sample)
{
    return r->reference < r->n_specs
               ? kvgen_answer(r, a, prompt, r->reference, sample)
               : NULL;
}

double kvgen_speed(const struct kv_answer *x)
{
    return x->made > 1 ? (double)(x->made - 1) / x->seconds : NAN;
}

/* ---- lines --------------------------------------------------------------- */

void kvgen_put_real(const struct kv_out *out, const char *name, double x)
{
    if (isfinite(x))
        fprintf(out->file, ", \"%s\": %.9g", name, x);
    else
        fprintf(out->file, ", \"%s\": null", name);
}

/* JSON flags: on a terminal, characters that it would act on become \u
 * escapes. */
static size_t flags_for(const struct kv_out *out)
{
    return out->terminal ? JSON_ENCODE_ANY | JSON_ENSURE_ASCII
                         : JSON_ENCODE_ANY;
}

void kvgen_put_json(const struct kv_out *out, const char *name, json_t *value)
{
    fprintf(out->file, ", \"%s\": ", name);
    json_dumpf(value, out->file, flags_for(out));
    json_decref(value);
}

/* The fields of the prompt, except its id. */
static void put_carried(const struct kv_prompt *p, const struct kv_out *out)
{
    json_t *rest = json_copy(p->fields);

    json_object_del(rest, "id");
    fputs(", ", out->file);
    json_dumpf(rest, out->file, JSON_EMBED | flags_for(out));
    json_decref(rest);
}

static void put_ids(const struct kv_out *out, const struct kv_answer *x)
{
    fputs(", \"ids\": [", out->file);
    for (size_t i = x->n_context; i < x->made; i++)
        fprintf(out->file, "%s%d", i > x->n_context ? ", " : "",
                (int)x->ids[i]);
    fputs("]", out->file);
}

/* Writes the counts of the cache, from which a later run makes its rows. */
static void put_cache(const struct kv_out *out, const struct kv_bits *b)
{
    fprintf(out->file,
            ", \"cache\": {\"bytes\": %.17g, \"values\": %.17g, "
            "\"kept_values\": %.17g, \"quantized_bytes\": %.17g, "
            "\"quantized_values\": %.17g, \"coded\": [%.17g, %.17g], "
            "\"clipped\": %.17g%s}",
            b->bytes, b->values, b->kept_values, b->quantized_bytes,
            b->quantized_values, b->coded[KV_K], b->coded[KV_V], b->clipped,
            b->declared ? ", \"declared\": true" : "");
}

int kvgen_put_line(const struct kvgen_run *r, const struct kvgen_args *a,
                   const struct kv_out *out, size_t i, bool base,
                   struct kv_err *e)
{
    const size_t prompt = i / (r->n_specs * a->samples),
                 sample = i % a->samples;
    const struct kv_prompt *p = &r->prompts.at[r->mine[prompt]];
    const struct kv_answer *x = &r->answer[i];
    json_t *id = json_object_get(p->fields, "id");
    char key[KV_HASH_CHARS];

    fputs("{\"id\": ", out->file);
    if (id)
        json_dumpf(id, out->file, flags_for(out));
    else
        fprintf(out->file, "%zu", p->line);
    kvgen_put_json(out, "spec", json_string(x->spec->text));
    fprintf(out->file, ", \"sample\": %zu", sample);
    if (r->job->put_fields(
            r, out, x, base ? kvgen_reference(r, a, prompt, sample) : NULL, e))
        return -1;
    fprintf(out->file, ", \"tokens\": %zu", x->made - x->n_context);
    put_ids(out, x);
    fprintf(out->file, ", \"prompt_tokens\": %zu", x->n_prompt + x->n_context);
    kvgen_put_real(out, "bits", 8 * x->bits.bytes / x->bits.values);
    kvgen_put_real(out, "kept", x->bits.kept_values / x->bits.values);
    put_cache(out, &x->bits);
    kvgen_put_real(out, "prompt_seconds", x->prompt_seconds);
    kvgen_put_real(out, "seconds", x->seconds);
    kvgen_put_real(out, "tokens_s", kvgen_speed(x));
    kvgen_key(r, a, x, key);
    fprintf(out->file, ", \"key\": \"%s\"", key);
    put_carried(p, out);
    fputs("}\n", out->file);
    return 0;
}

int kvgen_put_lines(struct kvgen_run *r, const struct kvgen_args *a,
                    struct kv_err *e)
{
    if (r->journal)
        kvgen_journal_keep(r->journal, r->out.file);
    for (size_t i = 0; i < r->n_answers; i++)
        if (kvgen_put_line(r, a, &r->out, i, true, e))
            return -1;
    if (kv_out_commit(&r->out, e))
        return -1;
    if (r->journal)
        kvgen_journal_end(r->journal);
    return 0;
}

/* ---- rows ---------------------------------------------------------------- */

void kvgen_mean_add(struct kv_window_mean *m, double x)
{
    if (isfinite(x))
        kv_window_mean_add(m, x);
}

/* The bits of the caches of a spec's answers. */
static struct kv_bits bits_of(const struct kvgen_run *r,
                              const struct kvgen_args *a, size_t spec)
{
    struct kv_bits bits = {0};

    for (size_t i = 0; i < r->n_mine; i++)
        for (size_t j = 0; j < a->samples; j++)
            kv_bits_add(&bits, &kvgen_answer(r, a, i, spec, j)->bits);
    kv_bits_of_spec(&bits, &r->spec[spec], &kv_model_info(r->model)->shape,
                    r->calib, KV_ALL, KV_ALL);
    return bits;
}

/* Writes the shard; leaves the cell blank if the shard is everything. */
static void put_shard(struct kv_results *t, const struct kv_shard *s)
{
    char text[64];

    if (s->n == 1)
        return;
    snprintf(text, sizeof(text), "%zu/%zu", s->i, s->n);
    kv_results_text(t, "shard", text);
}

int kvgen_put_rows(struct kvgen_run *r, const struct kvgen_args *a,
                   struct kv_results *t, struct kv_err *e)
{
    for (size_t i = 0; i < r->n_specs; i++) {
        const struct kv_spec *spec = &r->spec[i];
        const struct kv_bits bits = bits_of(r, a, i);

        kv_common_note_stored(spec, &bits);
        kv_results_conditions(t, &r->conditions, spec,
                              kv_spec_calibrated(spec) ? r->calib : NULL,
                              r->leak);
        kv_results_bits(t, &bits);
        kv_results_real(t, "kept", bits.kept_values / bits.values);
        put_shard(t, &a->shard);
        kv_results_size(t, "batch", r->batch);
        kv_results_size(t, "prompts", r->n_mine);
        r->job->put_cells(r, a, t, i);
        if (kv_results_row(t, e))
            return -1;
    }
    return 0;
}
