/* kvdump: runs a model on a text and writes its K, V and Q tensors, and the
 * gradients of its loss. */
#include "lib/base/alloc.h"
#include "lib/base/file.h"
#include "lib/base/progress.h"
#include "lib/dump.h"
#include "lib/model/backward.h"
#include "lib/model/model.h"
#include "lib/model/model_files.h"
#include "lib/tokenizer/tokenizer.h"
#include "lib/windows.h"
#include "tools/common.h"
#include "tools/kvdump_about.h"
#include "tools/kvdump_args.h"
#include "tools/kvdump_files.h"
#include "tools/kvdump_from.h"
#include "tools/kvdump_ranks.h"
#include "tools/kvdump_words.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What runs between a layer's projections and its attention */

struct capture {
    struct kv_dump_writer *writer;
    const struct kv_dump_info *info;
    size_t first_window, end_window; /* windows of one model call */
    struct kv_ranks *ranks;
    struct kv_progress bar;
    bool fisher; /* the pass also computes the loss and its gradients */
    bool done;   /* the last requested layer is in the file */
};

/* Writes the layer's tensors, then attends.  After the last requested layer it
 * does not attend, and with the call's last window it stops the forward pass by
 * failing, unless the loss is needed. */
static int capture_layer(void *arg, const struct kv_qkv *x, struct kv_err *e)
{
    struct capture *c = arg;
    const struct kv_dump_info *info = c->info;
    const size_t window = c->first_window + x->first_window;
    const bool end =
        !c->fisher && x->layer == info->last_layer &&
        (!c->ranks->by_layers || c->ranks->self + 1 == c->ranks->n);
    struct kv_qkv h;

    if (x->shared)
        return kv_ranks_check(c->ranks, e) ? -1 : kv_attend_exact(NULL, x, e);
    if (kv_ranks_check(c->ranks, e) || kv_qkv_to_host(x, &h, e))
        return -1;

    const float *tensor[KV_TENSORS] = {
        [KV_T_Q] = h.q, [KV_T_K] = h.k, [KV_T_V] = h.v, [KV_T_K_PRE] = h.k_pre};

    for (enum kv_tensor t = 0; t < KV_TENSORS; t++)
        if (info->have[t] && tensor[t] && x->layer >= info->first_layer &&
            x->layer <= info->last_layer &&
            kv_dump_put(c->writer, x->layer, t, window, x->n_windows, tensor[t],
                        e))
            return -1;
    kv_progress_step(&c->bar, x->n_windows);
    c->done = end && window + x->n_windows == c->end_window;
    return c->done ? -1 : end ? 0 : kv_attend_exact(NULL, x, e);
}

static int capture_gradient(void *arg, const struct kv_gradient *g,
                            struct kv_err *e)
{
    struct capture *c = arg;
    const float *gradient[KV_TENSORS] = {
        [KV_T_K_GRADIENT] = g->k_pre, [KV_T_V_GRADIENT] = g->v};
    int rc = 0;

    for (enum kv_tensor t = KV_T_K_GRADIENT; t <= KV_T_V_GRADIENT && !rc; t++)
        if (c->info->have[t] && g->layer <= c->info->last_layer)
            rc = kv_dump_put(c->writer, g->layer, t, c->first_window,
                             g->n_windows, gradient[t], e);
    kv_progress_step(&c->bar, g->n_windows);
    return rc || kv_ranks_check(c->ranks, e) ? -1 : 0;
}

static int run_windows(struct kv_model *m, const int32_t *tokens, size_t n,
                       size_t ctx, float *hidden, struct capture *c,
                       struct kv_err *e)
{
    const struct kv_attention attention = {.run = capture_layer, .arg = c};
    const struct kv_gradient_sink sink = {capture_gradient, c};

    if (c->fisher)
        return kv_model_backward(m, tokens, n, ctx, c->info->first_layer,
                                 &attention, &sink, e);
    if (kv_model_forward(m, tokens, n, ctx, 0, &attention, hidden, e))
        return c->done ? 0 : -1;
    return 0;
}

/* Dumps all windows without gradients; `group` windows are in memory at a
 * time. */
static int dump_by_file(struct kv_model *m, const struct kv_windows *w,
                        size_t group, struct capture *c, struct kv_err *e)
{
    const struct kv_attention attention = {.run = capture_layer, .arg = c};
    FILE *states = kv_scratch_open(e);
    int rc;

    if (!states)
        return -1;
    c->end_window = w->n;
    rc = kv_dump_put_tokens(c->writer, 0, w->n, w->tokens, e) ||
         (kv_model_forward_file(m, w->tokens, w->n, w->ctx, group, &attention,
                                states, e) &&
          !c->done);
    fclose(states);
    return rc ? -1 : 0;
}

/* Dumps all windows, `group` at a time. */
static int dump_windows(struct kv_model *m, const struct kv_windows *w,
                        size_t group, struct capture *c, struct kv_err *e)
{
    const size_t max = group < w->n ? group : w->n;
    const size_t row = c->fisher ? 0 : kv_model_info(m)->hidden;
    float *hidden = kv_alloc(max * w->ctx, row * sizeof(*hidden));
    int rc = -1;

    for (size_t i = 0; i < w->n; i += max) {
        const size_t n = w->n - i < max ? w->n - i : max;
        const int32_t *tokens = w->tokens + i * w->ctx;

        c->first_window = i;
        c->end_window = i + n;
        c->done = false;
        if (kv_dump_put_tokens(c->writer, i, n, tokens, e) ||
            run_windows(m, tokens, n, w->ctx, hidden, c, e))
            goto out;
    }
    rc = 0;
out:
    free(hidden);
    return rc;
}

static int dump_grams(struct kv_model *m, struct kv_dump_writer *writer,
                      const struct kv_dump_info *info, struct kv_err *e)
{
    const struct kv_shape *s = &info->shape;
    float *gram = kv_alloc(kv_shape_kv_most(s),
                           kv_shape_q_most(s) / s->n_heads * sizeof(*gram));
    int rc = 0;

    for (size_t l = info->first_layer; l <= info->last_layer && !rc; l++)
        rc = kv_model_wo_gram(m, l, gram, e) ||
             kv_dump_put_gram(writer, l, gram, e);
    free(gram);
    return rc;
}

static struct kv_dump_info describe(const struct kvdump_args *a,
                                    const struct kv_model_info *model,
                                    const char *gemm,
                                    const struct kv_windows *w)
{
    struct kv_dump_info info = {.shape = model->shape,
                                .n_windows = w->n,
                                .ctx = w->ctx,
                                .dtype = a->type};

    snprintf(info.model, sizeof(info.model), "%s", model->name);
    snprintf(info.arch, sizeof(info.arch), "%s", model->arch);
    snprintf(info.weights, sizeof(info.weights), "%s", model->weights);
    snprintf(info.model_hash, sizeof(info.model_hash), "%s", model->hash);
    snprintf(info.text, sizeof(info.text), "%s", w->text);
    snprintf(info.text_hash, sizeof(info.text_hash), "%s", w->text_hash);
    info.reading = w->reading;
    snprintf(info.device, sizeof(info.device), "%s",
             a->common.on_gpu ? a->common.gpu.name : "cpu");
    snprintf(info.gemm, sizeof(info.gemm), "%s", gemm);
    memcpy(info.have, a->have, sizeof(info.have));
    if (info.shape.latent) /* values are a part of the keys */
        info.have[KV_T_V] = false;
    kvdump_layers(a->layers, model->shape.n_layers, model->shape.n_states,
                  &info.first_layer, &info.last_layer);
    return info;
}

/* The number of layers that a window passes, forward and backward. */
static size_t n_steps(const struct kvdump_args *a,
                      const struct kv_dump_info *info)
{
    const size_t n_layers = info->shape.n_layers;

    return a->fisher ? 2 * n_layers - info->first_layer : info->last_layer + 1;
}

static int read_windows(const struct kvdump_args *a, struct kv_model *m,
                        const struct kv_tokenizer *t, struct kv_windows *w,
                        struct kv_err *e)
{
    const size_t ctx = kv_model_context(m, a->ctx);

    if (a->fisher && ctx < 2)
        return kv_fail(e,
                       "--fisher: a window of %zu token has no next token "
                       "to predict; --ctx 2 or more is expected",
                       ctx);
    if (kv_windows_read(w, t, a->text,
                        &(struct kv_windows_wanted){.ctx = ctx,
                                                    .n = a->windows,
                                                    .special = a->parse_special,
                                                    .bos = a->bos},
                        kv_model_info(m)->n_vocab, e))
        return -1;
    kv_windows_note_bos(w);
    return 0;
}

/* Dumps the rank's windows, and on the first rank the model's Gram matrices. */
static int dump_tensors(const struct kvdump_args *a, struct kv_model *m,
                        const struct kvdump_out *o, struct kv_err *e)
{
    const struct kv_windows *w = &o->windows;
    const struct kv_dump_info *info = &o->info;
    struct capture c = {.writer = o->writer,
                        .info = info,
                        .fisher = a->fisher,
                        .ranks = o->ranks};
    const size_t group =
        a->fisher ? kv_backward_windows(m, w->ctx, info->first_layer,
                                        a->common.memory)
                  : kv_model_windows(m, w->ctx, false, a->common.memory);
    int rc;

    kv_progress_init(&c.bar, "windows x layers", w->n * n_steps(a, info));
    rc = (group < w->n && !a->fisher && kv_model_backend(m)->on_host
              ? dump_by_file(m, w, group, &c, e)
              : dump_windows(m, w, group, &c, e)) ||
         (!info->shape.latent && !o->ranks->self &&
          dump_grams(m, kvdump_out_whole(o), &o->whole, e));
    kv_progress_clear(&c.bar);
    return rc ? -1 : 0;
}

static int dump(const struct kvdump_args *a, struct kv_model *m,
                const struct kv_tokenizer *t, struct kv_ranks *r,
                struct kv_err *e)
{
    struct kvdump_out o;
    struct kv_windows w;
    int rc;

    if (read_windows(a, m, t, &w, e))
        return -1;

    const struct kv_dump_info info =
        describe(a, kv_model_info(m), kv_model_gemm(m), &w);

    rc = kvdump_out_open(&o, r, m, a->common.output, &info, &w, e) ||
         dump_tensors(a, m, &o, e);
    if (rc)
        kvdump_out_discard(&o);
    else
        rc = kvdump_out_commit(&o, &w, e);
    if (!rc)
        kv_note("%s: %zu window%s of %zu tokens, layers %zu to %zu, %s",
                a->common.output, w.n, w.n == 1 ? "" : "s", w.ctx,
                info.first_layer, info.last_layer, a->dtype);
    kv_windows_clear(&w);
    return rc ? -1 : 0;
}

/* Prints one token id per line, to -o or stdout. */
static int print_tokens(const struct kvdump_args *a,
                        const struct kv_tokenizer *t, struct kv_err *e)
{
    struct kv_out out = {0};
    int32_t *ids;
    size_t n;

    if (kv_text_tokens(t, a->text, a->parse_special, INT32_MAX, &ids, &n, NULL,
                       e))
        return -1;
    if (a->common.output && kv_out_open(&out, a->common.output, true, e)) {
        free(ids);
        return -1;
    }
    for (size_t i = 0; i < n; i++)
        fprintf(out.file ? out.file : stdout, "%d\n", (int)ids[i]);
    free(ids);
    return kv_out_commit(&out, e);
}

static int operations(const struct kvdump_args *a, struct kv_err *e)
{
    const char *path = a->shape ? a->shape : a->model;
    char name[128];
    struct kv_config c;

    kvdump_model_name(path, name, sizeof(name));
    if (kv_model_config(&c, path, e))
        return -1;
    if (c.shape.latent)
        return kv_fail(e,
                       "--operations: those of latent attention, which a %s "
                       "has, are not implemented",
                       c.arch->name);
    return kv_operations_print(&c, name, a->ctx ? a->ctx : c.n_ctx, a->batch,
                               &a->common, e);
}

/* Prints a row for one sequence and a row for the batch. */
static int about_model(const struct kvdump_args *a, struct kv_model *m,
                       struct kv_err *e)
{
    const size_t ctx = kv_model_context(m, a->ctx);
    const struct kv_footprint f[] = {
        {.info = *kv_model_info(m), .ctx = ctx, .batch = 1},
        {.info = *kv_model_info(m), .ctx = ctx, .batch = a->batch}};

    return kv_footprint_print(f, a->batch > 1 ? 2 : 1, &a->common, e);
}

/* Prints the tokens, which need only a tokenizer. */
static int tokens(const struct kvdump_args *a, struct kv_err *e)
{
    struct kv_tokenizer *t = NULL;
    int rc;

    if (kv_model_check_path(a->model, e) || kv_tokenizer_open(&t, a->model, e))
        return -1;
    rc = print_tokens(a, t, e);
    kv_tokenizer_free(t);
    return rc;
}

static int from(const struct kvdump_args *a, struct kv_err *e)
{
    struct kvdump_from f = {.path = a->from,
                            .output = a->common.output,
                            .config = a->config,
                            .layout = a->layout,
                            .name = a->name,
                            .theta = isnan(a->theta) ? NULL : &a->theta,
                            .type = a->type};

    memcpy(f.have, a->have, sizeof(f.have));
    return kvdump_from(&f, e);
}

static int run(const struct kvdump_args *a, struct kv_ranks *r,
               struct kv_err *e)
{
    struct kv_tokenizer *t = NULL;
    struct kv_model *m = NULL;
    int rc;

    if (a->ranks && kv_ranks_start(r, e))
        return -1;
    if (r->self)
        kv_verbosity_set(0);
    if (a->from)
        return from(a, e);
    if (a->operations)
        return operations(a, e);
    if (a->shape)
        return kv_footprint_of_shape(a->shape, a->ctx, a->batch, &a->common, e);
    if (a->tokens)
        return tokens(a, e);
    rc = kv_model_open(&m, a->model, e);
    if (!rc && a->pool_heads)
        rc = kv_model_pool_heads(m, a->pool_heads, e);
    if (!rc && a->about)
        rc = about_model(a, m, e);
    else if (!rc)
        rc = kv_tokenizer_open(&t, a->model, e) ||
             kv_common_place(&a->common, m, a->gemm, e) ||
             (kvdump_by_layers(a) && r->n > 1 && kv_ranks_by_layers(r, m, e));
    if (!rc && !a->about)
        rc = dump(a, m, t, r, e);
    kv_tokenizer_free(t);
    kv_model_free(m);
    return rc;
}

static void about_columns(void)
{
    kv_footprint_about();
    kv_operations_about();
}

int main(int argc, char **argv)
{
    struct kvdump_args a = {.common = KV_COMMON_DEFAULT,
                            .what = "q,k,v",
                            .rope = "pre,post",
                            .dtype = "f32",
                            .batch = KVDUMP_BATCH,
                            .theta = NAN};
    const struct kv_opt opts[] = {
        KV_IN_FOLDER('m', "model", &a.model, kv_model_holds, "MODEL",
                     "folder with config.json, *.safetensors,\n"
                     "tokenizer.json, or a GGUF file"),
        KV_IN('f', "file", &a.text, "TEXT", "text, verbatim, <= 1 GiB"),
        KV_FLAG(0, "parse-special", &a.parse_special,
                "names of special tokens in the text are tokens"),
        KV_FLAG(0, "bos", &a.bos,
                "a BOS at each window, not only before the text"),
        KV_SIZE('c', "ctx", &a.ctx, "N",
                "tokens in a window (0: the model's context)"),
        KV_SIZE('n', "windows", &a.windows, "N", "windows (0: all whole ones)"),
        KV_STR(0, "what", &a.what, "LIST", "tensors (q,k,v)"),
        KV_STR(0, "rope", &a.rope, "LIST",
               "keys before and after rotation (pre,post)"),
        KV_STR(0, "layers", &a.layers, "A-B", "layers (all)"),
        KV_STR(0, "dtype", &a.dtype, "T", "f32, f16 or bf16 (f32)"),
        KV_STR(0, "gemm", &a.gemm, "T",
               "products with weights in f32, or in bf16, to which\n"
               "both are rounded, where the processor has it (f32)"),
        KV_POOL_HEADS(&a.pool_heads),
        KV_FLAG(0, "fisher", &a.fisher,
                "also the gradients of the loss by k (before RoPE)\n"
                "and v, in f32"),
        KV_FLAG(0, "ranks", &a.ranks,
                "windows by the ranks that mpirun has started, each\n"
                "in a file beside -o, which is read as one dump"),
        KV_STR(0, "split", &a.split, "WHAT",
               "--ranks: windows, or layers, of a model larger\n"
               "than one machine's memory (windows)"),
        KV_IN_FOLDER(0, "from", &a.from, kvdump_files_holds, "FILE",
                     "no model: K, V, Q of this .npz, .safetensors or\n"
                     ".h5, or of a folder of them, named layers.0.keys,\n"
                     "layers.0.values (below)"),
        KV_IN(0, "config", &a.config, "FILE",
              "--from: the model's config.json, for its shape and\n"
              "RoPE"),
        KV_REAL(0, "rope-theta", &a.theta, "BASE",
                "--from, in place of --config: RoPE over whole\n"
                "heads (0: none); logits are q.k / sqrt(channels)"),
        KV_STR(0, "layout", &a.layout, "ORDER",
               "--from: htd or thd, of heads, tokens, channels\n"
               "(by --config's KV heads; with windows: htd)"),
        KV_STR(0, "name", &a.name, "NAME",
               "--from: the model's name, by which dumps and\n"
               "calibrations go together (--config's, or FILE's)"),
        KV_FLAG(0, "tokens", &a.tokens, "print the token ids, nothing else"),
        KV_FLAG(0, "about", &a.about, "print what model and cache weigh"),
        KV_FLAG(0, "operations", &a.operations,
                "print what each operation of a layer computes and\n"
                "reads, at -c tokens"),
        KV_SIZE(0, "batch", &a.batch, "N",
                "sequences, for --about, --operations (1)"),
        KV_APPEND(a.common),
        KV_COMMON_OPTS(a.common),
        KV_OPT_DONE,
    };
    const struct kv_opt_about about = {
        .usage = "-m MODEL -f TEXT -o dump.h5 [options]\n"
                 "       kvdump --from FILE [--config config.json] -o dump.h5\n"
                 "       kvdump --about | --operations (-m MODEL | "
                 "config.json) [options]",
        .brief = "Runs a model on a text and writes the queries, keys and "
                 "values of every\nlayer; with --fisher also how much the loss "
                 "depends on each.",
        .more = "Examples:\n"
                "  kvdump -m model -f wiki.txt -c 1024 -n 64 -o dump.h5\n"
                "  kvdump -m model -f wiki.txt -c 1024 -n 16 --fisher -o "
                "calib-dump.h5\n"
                "  kvdump -m model -f wiki.txt --tokens | wc -l\n"
                "  kvdump -m model -f wiki.txt -c 4096 --device cuda --memory "
                "8G -o dump.h5\n"
                "  kvdump -m model --about -c 4096 --batch 8 --format md\n"
                "  kvdump --from cache.npz --config config.json -o dump.h5\n"
                "  kvdump --operations config.json -c 4096\n\n"
                "--from: an array is a layer, [heads, tokens, channels] or "
                "[tokens, heads,\n"
                "channels], with [windows, ...] before where there are "
                "several, as a batch of\n"
                "transformers' cache; floats of 16, 32 or 64 bits.  Names: "
                "layers.0.keys,\n"
                "layer_000/k, key_cache.0, past_key_values.0.value, q.0, "
                "k_pre.0 (before RoPE);\n"
                "without a number all layers, [layers, ...].  kv.0 is both, "
                "[2, ...] or [tokens,\n"
                "2, ...]; [tokens, channels of all heads] wants --config; "
                "layer_0_chunk_3_k is a\n"
                "part of the tokens.  tokens, input_ids: ids, [windows, "
                "tokens].  Of a folder,\n"
                "names of files come first: vLLM's "
                "model.layers.0.self_attn.attn.safetensors with\n"
                "kv_cache.  Numbers count layers with attention alone.  Keys "
                "are after RoPE from\n"
                "position 0 on, with the model's order of channels; keys "
                "before it are computed.\n"
                "--dtype, --what and --rope count.\n"
                "\n"
                "A config.json alone has no weights: as halves, they would "
                "weigh so much; rows\nfor as many KV heads as it says, as "
                "query heads, and one.  even_ctx: in longer\ncontexts one "
                "sequence's cache is more than the matrices.  n_states, "
                "state_bytes:\nlayers without attention and what they hold of "
                "the sequences, in f32; kv_bytes\nhas none of it.  An "
                "operation of one layer multiplies and adds (two "
                "operations)\nvalues of two bytes, each read or written once; "
                "intensity: operations per byte.",
        .list = kv_common_list,
        .columns = about_columns,
        .operand = "config.json",
    };
    const int first = kv_opt_parse(argc, argv, &about, opts);
    struct kv_ranks ranks = {.n = 1};
    struct kv_err e = {""};

    kvdump_parse_shape(&a, argv + first, argc - first);
    kvdump_check_args(&a);
    kvdump_parse_tensors(&a, a.have);
    a.type = kvdump_dtype(a.dtype);
    a.common.can_gpu =
        !a.fisher && !kvdump_instead(&a) && !kvdump_by_layers(&a);
    kv_common_start(&a.common);

    const int rc = run(&a, &ranks, &e);

    kv_ranks_stop(&ranks, rc ? e.msg : NULL);
    if (rc && ranks.told)
        return KV_EXIT_CANNOT;
    if (rc)
        kv_die("%s", e.msg);
    kv_close_stdout();
    return KV_EXIT_OK;
}
