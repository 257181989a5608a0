/* kvppl's settings: a model, a text, windows, a protocol and their specs. */
#include "eval/calib_check.h"
#include "eval/loop.h"
#include "eval/sweep.h"
#include "lib/base/alloc.h"
#include "lib/mixed.h"
#include "tools/kvppl.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Chooses the calibration for this model from -C's. */
static int choose_calibration(struct kvppl_run *r, const struct kvppl_args *a,
                              const struct kv_sketch *sketch, struct kv_err *e)
{
    const struct kv_model_info *info = kv_model_info(r->model);
    const struct kv_evaluated evaluated = {info->hash, &info->shape, sketch};

    for (size_t i = 0; i < a->calibs.n; i++)
        if (!kv_calibration_load(&r->calib, &r->leak, a->calibs.item[i],
                                 &evaluated, a->allow_leakage, e))
            return 0;
    return a->calibs.n == 1
               ? -1
               : kv_fail_in(e, "no calibration of -C goes with %s", info->name);
}

/* Drawn windows do not follow each other in the text. */
static void add_text(struct kv_sketch *s, const struct kv_windows *w)
{
    const size_t run = w->random ? 1 : w->n;

    for (size_t i = 0; i < w->n; i += run)
        kv_sketch_add_windows(s, w->tokens + i * w->ctx, run * w->ctx, w->ctx,
                              w->reading.bos);
}

static int load_calibration(struct kvppl_run *r, const struct kvppl_args *a,
                            struct kv_err *e)
{
    struct kv_sketch sketch = {0};
    int rc;

    if (!a->calibs.n)
        return 0;
    add_text(&sketch, &r->text);
    kv_sketch_sort(&sketch);
    rc = choose_calibration(r, a, &sketch, e);
    kv_sketch_clear(&sketch);
    return rc ? -1 : kv_calib_adopt(r->calib, r->spec, r->n_specs, e);
}

/* --gemm, with auto resolved: bf16 if no matrix is stored in more bits, and if
 * there is a base line, so that the f16 row can show how far bf16 products
 * alone move rows. */
static const char *gemm_of(const struct kvppl_args *a, const struct kv_model *m)
{
    if (!a->gemm || strcmp(a->gemm, "auto"))
        return a->gemm;
    return !a->no_base && kv_model_suits_bf16(m) ? "bf16" : "f32";
}

/* Opens the model unless another setting has opened it. */
static int load_model(const struct kvppl_args *a, struct kvppl_model *m,
                      struct kv_ranks *ranks, struct kv_err *e)
{
    if (m->model)
        return 0;
    return kv_model_open(&m->model, m->path, e) ||
                   (a->pool_heads &&
                    kv_model_pool_heads(m->model, a->pool_heads, e)) ||
                   kv_tokenizer_open(&m->tokenizer, m->path, e) ||
                   kv_common_place(&a->common, m->model, gemm_of(a, m->model),
                                   e) ||
                   (kvppl_by_layers(a) && ranks->n > 1 &&
                    kv_ranks_by_layers(ranks, m->model, e))
               ? -1
               : 0;
}

static void begin_conditions(struct kvppl_run *r, const struct kvppl_args *a)
{
    const struct kv_model_info *info = kv_model_info(r->model);

    r->conditions = (struct kv_conditions){.tool = "kvppl",
                                           .model = info->name,
                                           .model_hash = info->hash,
                                           .weights = info->weights,
                                           .gemm = kv_model_gemm(r->model)};
    kv_common_conditions(&a->common, &r->conditions);
    r->floor = a->gemm && !strcmp(a->gemm, "auto") &&
               !strcmp(r->conditions.gemm, "bf16");
}

static int load_text(struct kvppl_run *r, const struct kvppl_args *a,
                     struct kv_err *e)
{
    const struct kv_model_info *info = kv_model_info(r->model);
    size_t ctx;

    if (kvppl_own_context(r, a, &ctx, e))
        return -1;
    if (ctx + a->own < 2)
        return kv_fail(e, "-c %zu: expected at least 2 tokens", ctx);
    if (a->bos && r->protocol.kind == KV_LLAMA_CPP)
        return kv_fail(e, "--bos does not go with --protocol llama.cpp, which "
                          "puts a BOS at each window in its own way, of "
                          "tokenizers that add one");
    if (kv_windows_read(
            &r->text, r->tokenizer, r->of.text,
            &(struct kv_windows_wanted){.ctx = ctx,
                                        .n = r->of.windows,
                                        .special = a->parse_special,
                                        .bos = a->bos,
                                        .random = kvppl_random_places(a),
                                        .seed = a->common.seed},
            info->n_vocab, e))
        return -1;
    if (r->protocol.kind != KV_LLAMA_CPP)
        kv_windows_note_bos(&r->text);
    r->conditions.text = r->text.text;
    r->conditions.text_hash = r->text.text_hash;
    r->conditions.reading = r->text.reading;
    r->n_tokens = ctx + a->own;
    r->conditions.ctx = ctx;
    r->conditions.windows = r->text.n;
    r->places = r->text.random ? "random" : "first";
    r->conditions.protocol = r->protocol.text;
    return 0;
}

static int list_specs(struct kvppl_run *r, const struct kvppl_args *a,
                      struct kv_err *e)
{
    struct kv_sweep sweep = {.base = a->no_base ? NULL : "f32",
                             .floor = r->floor ? "f16" : NULL,
                             .specs = &a->specs,
                             .shape = &kv_model_info(r->model)->shape,
                             .protocol = &r->protocol,
                             .shard = a->shard};

    if (kv_sweep_list(&sweep, &r->spec, &r->n_specs, &r->n_all, e))
        return -1;
    kv_common_hadamard(r->spec, r->n_specs, sweep.shape);
    if (a->common.on_gpu && kv_policy_on_device(r->spec, r->n_specs, e))
        return -1;
    return 0;
}

static int try_specs(const struct kvppl_run *r, struct kv_err *e)
{
    const struct kv_shape *shape = &kv_model_info(r->model)->shape;

    for (size_t i = 0; i < r->n_specs; i++) {
        struct kv_loop *loop;

        if (kv_loop_new(&loop, &r->spec[i], shape, r->calib, &r->protocol, 0,
                        NULL, e))
            return -1;

        const int rc = kv_loop_takes(loop, r->n_tokens, e);

        kv_loop_free(loop);
        if (rc)
            return -1;
    }
    return 0;
}

int kvppl_load_setting(struct kvppl_run *r, const struct kvppl_args *a,
                       struct kvppl_model *m, struct kv_err *e)
{
    if (kv_protocol_parse(&r->protocol, r->of.protocol, a->keep_window, e) ||
        load_model(a, m, &r->study->ranks, e))
        return -1;
    r->model = m->model;
    r->tokenizer = m->tokenizer;
    begin_conditions(r, a);
    return load_text(r, a, e) || list_specs(r, a, e) ||
                   load_calibration(r, a, e) || try_specs(r, e)
               ? -1
               : 0;
}

/* ---- all settings -------------------------------------------------------- */

/* Computes the i-th combination by counting through the lists; an empty list
 * has one value. */
static const char *word(const struct kv_strings *s, size_t *i, const char *none)
{
    const size_t n = s->n ? s->n : 1, at = *i % n;

    *i /= n;
    return s->n ? s->item[at] : none;
}

static size_t size(const struct kv_sizes *s, size_t *i)
{
    const size_t n = s->n ? s->n : 1, at = *i % n;

    *i /= n;
    return s->n ? s->item[at] : 0;
}

static size_t at_least_one(size_t n)
{
    return n ? n : 1;
}

int kvppl_list_settings(struct kvppl_study *s, const struct kvppl_args *a,
                        struct kv_err *e)
{
    if (!a->models.n)
        return kv_fail(e, "a model is needed: -m MODEL");
    if (!a->texts.n)
        return kv_fail(e, "a text is needed: -f FILE");
    s->n_models = a->models.n;
    s->model = kv_alloc(s->n_models, sizeof(*s->model));
    for (size_t i = 0; i < s->n_models; i++)
        s->model[i].path = a->models.item[i];
    s->n = a->models.n * a->texts.n * at_least_one(a->ctxs.n) *
           at_least_one(a->windows.n) * at_least_one(a->protocols.n);
    s->run = kv_alloc(s->n, sizeof(*s->run));
    for (size_t i = 0; i < s->n; i++) {
        size_t at = i;
        struct kvppl_wanted *of = &s->run[i].of;

        s->run[i].study = s;
        s->run[i].leak = NAN;
        of->protocol = word(&a->protocols, &at, "all");
        of->windows = size(&a->windows, &at);
        of->ctx = size(&a->ctxs, &at);
        of->text = word(&a->texts, &at, NULL);
    }
    return 0;
}

static void clear_run(struct kvppl_run *r)
{
    kv_ppl_free(r->ppl);
    kv_klbase_close(r->from_file);
    kv_klbase_close(r->to_file);
    kv_calib_free(r->calib);
    kv_windows_clear(&r->text);
    free(r->extent.window);
    free(r->there);
    free(r->spec);
}

void kvppl_study_clear(struct kvppl_study *s)
{
    kvppl_discard_tables(s);
    kv_h5_close(s->base_from);
    kv_h5_close(s->base_to);
    for (size_t i = 0; i < s->n; i++)
        clear_run(&s->run[i]);
    for (size_t i = 0; i < s->n_models; i++) {
        kv_tokenizer_free(s->model[i].tokenizer);
        kv_model_free(s->model[i].model);
    }
    free(s->run);
    free(s->model);
}
