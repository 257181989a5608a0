/* The inputs of both kvsim commands: parameters, measured rows, schemes. */
#include "lib/base/alloc.h"
#include "tools/kvsim.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void kvsim_setting_clear(struct kvsim_setting *s)
{
    json_decref(s->params);
    kv_measured_clear(&s->measured);
}

static int read_params(struct kvsim_setting *r,
                       const struct kvsim_setting_args *a, struct kv_err *e)
{
    struct kv_serving *s = &r->serving;
    char *text;

    r->params = kv_serving_read(a->params, a->changes.item, a->changes.n, e);
    if (!r->params)
        return -1;
    text = json_dumps(r->params, JSON_SORT_KEYS | JSON_REAL_PRECISION(12));
    kv_hash_bytes(text, strlen(text), r->params_hash);
    free(text);
    kv_serving_settings(r->params, &s->set);
    if (kv_serving_model(r->params, a->model, &s->model, e) ||
        kv_serving_gpu(r->params, a->gpu, &s->prefill, e) ||
        kv_serving_gpu(r->params, a->decode_gpu, &s->decode, e) ||
        kv_serving_parallel(r->params, a->gpu, a->model, &s->prefill_at, e) ||
        kv_serving_parallel(r->params, a->decode_gpu, a->model, &s->decode_at,
                            e))
        return kv_fail_in(e, "%s", a->params);
    return 0;
}

int kvsim_setting_read(struct kvsim_setting *s,
                       const struct kvsim_setting_args *a, struct kv_err *e)
{
    if (strcmp(a->missing, "refuse") != 0 && strcmp(a->missing, "law") != 0)
        return kv_fail(e, "--missing %s: expected refuse or law", a->missing);
    if (a->unpack && !a->rows[KV_MEASURED_ATTN])
        return kv_fail(e, "--unpack goes with --attn, which has times of "
                          "decoding");
    if (read_params(s, a, e))
        return -1;
    return kv_measured_open(&s->measured, a->rows, e);
}

/* ---- a spec, measured ----------------------------------------------------
 */

/* Selects rows that were measured for one GPU of a replica. */
static struct kv_measured_place place(const struct kvsim_setting *r,
                                      const struct kvsim_setting_args *a,
                                      bool decode)
{
    const struct kv_serving_model *m = &r->serving.model;
    const double tp =
        decode ? r->serving.decode_at.tp : r->serving.prefill_at.tp;

    return (struct kv_measured_place){
        .heads = (size_t)fmax(1, m->heads / tp),
        .kv_heads = (size_t)fmax(1, m->kv_heads / tp),
        .head_dim = (size_t)m->head_dim,
        .model = a->model,
        .device = decode ? a->decode_gpu : a->gpu};
}

/* Handles a time that no row has: fails, or returns 0 if the file's formula
 * replaces it. */
static int miss(const struct kvsim_setting_args *a, const char *spec,
                const char *what, const struct kv_measured_place *at,
                enum kv_measured_table table, struct kv_err *e)
{
    static const char *const option[] = {"--quant", "--attn", "--step"};
    const char *path = a->rows[table];

    if (!strcmp(a->missing, "law"))
        return 0;
    return kv_fail(e,
                   "%s: %s has no row of %s, %zu heads on %zu KV heads of %zu "
                   "channels (or of %s), on %s: kvattn measures it, --missing "
                   "law goes without",
                   spec, path ? path : option[table], what, at->heads,
                   at->kv_heads, at->head_dim, at->model, at->device);
}

static int find_times(const struct kvsim_setting *r,
                      const struct kvsim_setting_args *a,
                      const struct kv_spec *spec, struct kvsim_scheme *s,
                      struct kv_err *e)
{
    const struct kv_measured_place up = place(r, a, false);
    const struct kv_measured_place down = place(r, a, true);
    struct kv_measured_scheme sent, kept, f16;
    struct kv_serving_times *t = &s->times;
    struct kv_spec full;

    kv_measured_find(&r->measured, spec, &up, &sent);
    kv_measured_find(&r->measured, spec, &down, &kept);
    if (isnan(kept.bits) || !(kept.bits > 0))
        return kv_fail(e,
                       "%s: no row has its bits: side KV, layer all of "
                       "kvquant (--quant), or a row of kvattn (--attn)",
                       spec->text);
    if (kv_spec_parse(&full, "f16:r0", e))
        return -1;
    kv_measured_find(&r->measured, &full, &down, &f16);

    const bool coded = kept.bits < 16;

    *t =
        (struct kv_serving_times){.step = a->unpack ? f16.step : kept.step,
                                  .rest = kv_measured_rest(&r->measured, &down),
                                  .unpacked = a->unpack && coded};
    if (coded) {
        t->encode = sent.encode;
        t->decode = kept.decode;
    }
    s->is = (struct kv_serving_scheme){.bits = kept.bits, .times = t};
    s->bits_quant = kept.bits_quant;
    if ((!t->step.rows && miss(a, a->unpack ? full.text : spec->text,
                               "attention", &down, KV_MEASURED_ATTN, e)) ||
        (isnan(t->rest) && miss(a, spec->text, "a whole step (kvattn -m)",
                                &down, KV_MEASURED_STEP, e)) ||
        (coded && !t->encode.rows &&
         miss(a, spec->text, "encoding", &up, KV_MEASURED_ATTN, e)) ||
        (t->unpacked && !t->decode.rows &&
         miss(a, spec->text, "decoding", &down, KV_MEASURED_ATTN, e)))
        return -1;
    return 0;
}

static int read_spec(const struct kvsim_setting *r,
                     const struct kvsim_setting_args *a, const char *text,
                     struct kvsim_scheme *s, struct kv_err *e)
{
    const struct kv_serving_model *m = &r->serving.model;
    const struct kv_shape shape = {.n_layers = (size_t)m->layers,
                                   .n_heads = (size_t)m->heads,
                                   .n_kv_heads = (size_t)m->kv_heads,
                                   .head_dim = (size_t)m->head_dim};
    struct kv_spec spec;

    if (kv_spec_parse(&spec, text, e) || kv_spec_fit(&spec, &shape, e))
        return kv_fail_in(e, "--scheme %s", text);
    snprintf(s->text, sizeof(s->text), "%s", spec.text);
    s->name = s->text;
    s->spec = true;
    if (find_times(r, a, &spec, s, e))
        return -1;
    return kv_serving_cluster(&r->serving, &s->is, &s->cluster, e);
}

/* ---- a scheme of the file ------------------------------------------------
 */

static int read_bits(const char *text, const char *bits, struct kvsim_scheme *s,
                     struct kv_err *e)
{
    char *end;

    s->is.bits = strtod(bits, &end);
    if (end == bits || *end || !(s->is.bits > 0 && s->is.bits <= 64))
        return kv_fail(e,
                       "--scheme %s: expected bits of a value, more than 0 "
                       "and at most 64",
                       text);
    return 0;
}

int kvsim_scheme_read(const struct kvsim_setting *r,
                      const struct kvsim_setting_args *a, const char *text,
                      struct kvsim_scheme *s, struct kv_err *e)
{
    const bool rows = r->measured.path[KV_MEASURED_QUANT] ||
                      r->measured.path[KV_MEASURED_ATTN];
    char *equals;

    *s = (struct kvsim_scheme){.name = s->text};
    if (snprintf(s->text, sizeof(s->text), "%s", text) >= (int)sizeof(s->text))
        return kv_fail(e, "--scheme %s: too long", text);
    equals = strchr(s->text, '=');
    if (equals)
        *equals++ = 0;
    if (kv_serving_scheme(r->params, s->name, &s->is, e))
        return rows ? read_spec(r, a, text, s, e)
                    : kv_fail_in(e, "%s", a->params);
    if (equals && read_bits(text, equals, s, e))
        return -1;
    if (s->is.bits == 0 && s->is.partition == 0)
        return kv_fail(e,
                       "--scheme %s: the file gives neither bits nor a "
                       "partition",
                       text);
    return kv_serving_cluster(&r->serving, &s->is, &s->cluster, e);
}

const char *kvsim_scheme_measured(const struct kvsim_scheme *s, char text[64])
{
    const struct kv_serving_times *t = &s->times;

    *text = 0;
    if (!s->spec)
        return text;
    snprintf(text, 64, "%s%s%s%s", t->step.rows ? " attention" : "",
             isnan(t->rest) ? "" : " rest", t->encode.rows ? " encode" : "",
             t->decode.rows ? " decode" : "");
    return *text ? text + 1 : text;
}

char *kvsim_changes(const struct kv_strings *changes)
{
    size_t n = 1;
    char *all, *at;

    for (size_t i = 0; i < changes->n; i++)
        n += strlen(changes->item[i]) + 1;
    all = at = kv_alloc(n, 1);
    for (size_t i = 0; i < changes->n; i++)
        at += sprintf(at, "%s%s", i ? " " : "", changes->item[i]);
    return all;
}
