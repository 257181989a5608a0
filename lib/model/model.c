#include "lib/model/model.h"
#include "kernels/device.h"
#include "kernels/gemm.h"
#include "lib/base/alloc.h"
#include "lib/base/file.h"
#include "lib/base/hash.h"
#include "lib/base/progress.h"
#include "lib/model/cache_scales.h"
#include "lib/model/model_files.h"
#include "lib/model/model_impl.h"
#include "lib/model/packed_header.h"
#include "lib/model/packed_tensors.h"
#include "lib/model/pool_heads.h"
#include "lib/model/tensor_gguf.h"

#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Models above this size read ahead and release pages layer by layer. */
static const size_t large_model = (size_t)1 << 30;

/* About the device memory that cuBLAS, the driver and klt's search notes
 * (kernels/device_code.h) take. */
static const size_t slack = (size_t)256 << 20;

static int hash_model(struct kv_model *m, const char *path, struct kv_err *e)
{
    struct kv_hash *h = kv_hash_new();
    const int rc =
        kv_model_files_hash(h, path, e) || kv_weights_hash(&m->files, h, e);

    kv_hash_end(h, m->info.hash);
    return rc ? -1 : 0;
}

/* Names the model after the last part of its full path. */
static void name_model(struct kv_model *m, const char *dir)
{
    char *full = realpath(dir, NULL);
    const char *path = full ? full : dir;
    const char *slash = strrchr(path, '/');

    snprintf(m->info.name, sizeof(m->info.name), "%s",
             slash && slash[1] ? slash + 1 : path);
    free(full);
}

static void fill_info(struct kv_model *m, const char *dir)
{
    const struct kv_config *c = &m->config;
    struct kv_model_info *i = &m->info;

    name_model(m, dir);
    snprintf(i->arch, sizeof(i->arch), "%s", c->arch->name);
    snprintf(i->weights, sizeof(i->weights), "%s", kv_weights_type(&m->files));
    i->n_vocab = c->n_vocab;
    i->hidden = c->hidden;
    i->n_ctx = c->n_ctx;
    i->weight_bytes = m->files.bytes;
    i->shape = c->shape;
}

/* Whether a key is a product with the weights plus a constant bias. */
static bool has_k_bias(const struct kv_model *m)
{
    const struct kv_layer_weights *layer = m->weights.layer;

    if (m->config.clip > 0)
        return false;
    for (size_t i = 0; i < kv_config_layers_of(&m->config); i++)
        if (layer[i].part[KV_P_K_BIAS] && !layer[i].part[KV_P_K_NORM])
            return true;
    return false;
}

/* Scales the rotated channels of each head, as before RoPE. */
static void scale_turning(const struct kv_shape *s, float scale, float *x)
{
    for (size_t i = 0; i < s->n_kv_heads; i++)
        for (size_t j = 0; j < 2 * s->n_rot; j++)
            x[i * s->head_dim + j] *= scale;
}

/* Fills the keys' biases, in the layout of struct kv_qkv's k_pre. */
static void fill_k_bias(struct kv_model *m)
{
    struct kv_shape *s = &m->config.shape;
    const size_t row = s->n_kv_heads * s->head_dim;

    if (!has_k_bias(m))
        return;
    if (!m->k_bias)
        m->k_bias = kv_alloc(s->n_layers * row, sizeof(*m->k_bias));
    for (size_t i = 0; i < s->n_layers; i++) {
        const struct kv_shape one = kv_shape_layer(s, i);
        const struct kv_weight *w =
            m->weights.layer[kv_shape_own(s, i)].part[KV_P_K_BIAS];
        float *bias = m->k_bias + i * row;

        if (w)
            kv_weight_dequantize(w, 0, row, bias);
        scale_turning(&one,
                      one.window ? m->config.slide_scale : m->config.rope.scale,
                      bias);
    }
    s->k_bias = m->k_bias;
    m->info.shape = *s;
}

/* Fills the heads' sink logits, if the model has any. */
static void fill_sinks(struct kv_model *m)
{
    struct kv_shape *s = &m->config.shape;

    if (!m->config.arch->sinks)
        return;
    m->sink_logit = kv_alloc(s->n_layers * s->n_heads, sizeof(*m->sink_logit));
    for (size_t i = 0; i < s->n_layers; i++)
        kv_weight_dequantize(m->weights.layer[i].part[KV_P_SINKS], 0,
                             s->n_heads, m->sink_logit + i * s->n_heads);
    s->sink_logit = m->sink_logit;
    m->info.shape = *s;
}

static int fill_cache_scales(struct kv_model *m, struct kv_err *e)
{
    if (kv_cache_scales(&m->files, &m->config, &m->cache_scale, e))
        return -1;
    m->config.shape.cache_scale = m->cache_scale;
    m->info.shape = m->config.shape;
    return 0;
}

bool kv_model_by_length(const struct kv_model *m)
{
    return m->config.rope.near > 0;
}

size_t kv_model_context(struct kv_model *m, size_t asked)
{
    const size_t n = asked ? asked : m->info.n_ctx;

    if (m->config.rope.near) {
        kv_config_set_window(&m->config, n);
        m->info.shape = m->config.shape;
        fill_k_bias(m);
    }
    if (asked > m->info.n_ctx)
        kv_note("%s was trained for windows of %zu tokens, not %zu",
                m->info.name, m->info.n_ctx, asked);
    return n;
}

/* Refuses files that would change the weights but are not applied. */
static int check_adapter(const char *dir, struct kv_err *e)
{
    char *path = kv_model_file(dir, "adapter_config.json");
    const int rc =
        kv_file_exists(path)
            ? kv_fail(e,
                      "%s: adapters are not implemented: merge this one into "
                      "the weights, or take it out of the folder",
                      path)
            : 0;

    free(path);
    return rc;
}

/* Loads the weights onto backend b, which becomes the model's backend.  memory:
 * bytes that activations may take on a device. */
static int place(struct kv_model *m, struct kv_backend *b, size_t memory,
                 struct kv_err *e)
{
    const struct kv_config *c = &m->config;
    const size_t q = c->shape.n_heads * c->shape.head_dim;
    const size_t inter = kv_config_widest(c), widest = inter > q ? inter : q;
    const size_t tile =
        b->tile * (3 * inter + widest + c->hidden) * sizeof(float);
    const size_t beside = tile + 2 * b->logit_bytes + 2 * memory + slack;

    kv_layers_free(m->layers);
    kv_backend_free(m->backend);
    m->layers = NULL;
    m->backend = b;
    return kv_layers_new(&m->layers, b, &m->weights, kv_config_layers_of(c),
                         b->device ? b->device->free : 0, beside,
                         b->device || m->files.bytes > large_model, e);
}

static int read_folder(struct kv_model *m, const char *dir, struct kv_err *e)
{
    char *config_path = kv_model_file(dir, "config.json");
    const int rc = check_adapter(dir, e) ||
                           kv_config_read(&m->config, config_path, e) ||
                           kv_weights_open(&m->files, dir, e) ||
                           kv_weights_unpack(&m->files, dir, e)
                       ? -1
                       : 0;

    free(config_path);
    return rc;
}

static int read_file(struct kv_model *m, const char *path, struct kv_err *e)
{
    if (kv_weights_open(&m->files, path, e))
        return -1;
    if (kv_config_parse(&m->config, m->files.config, path, e)) {
        kv_gguf_name_key(&m->files.gguf, path, e);
        return -1;
    }
    if (kv_tensor_gguf_splits(&m->files, &m->config))
        m->config.mix_by_head = false;
    return 0;
}

static int open_model(struct kv_model *m, const char *path, struct kv_err *e)
{
    const bool folder = kv_is_dir(path);

    if (kv_model_check_path(path, e) ||
        (folder ? read_folder(m, path, e) : read_file(m, path, e)))
        return -1;
    if (kv_tensor_map(&m->weights, &m->config, &m->files, path, e)) {
        if (!folder)
            kv_gguf_name_tensor(&m->files.gguf, m->files.config, path, e);
        return -1;
    }
    if (hash_model(m, path, e))
        return -1;
    fill_info(m, path);
    fill_k_bias(m);
    fill_sinks(m);
    if (fill_cache_scales(m, e))
        return -1;
    return place(m, kv_backend_cpu(KV_TYPE_F32), 0, e);
}

/* Gives the model with pooled heads a hash and a name of its own. */
static void rename_pooled(struct kv_model_info *i, size_t pool)
{
    struct kv_hash *h = kv_hash_new();
    char said[32];
    const int n = snprintf(said, sizeof(said), "+pool-heads=%zu", pool);
    const size_t room = sizeof(i->name) - (size_t)n - 1;

    kv_hash_add(h, i->hash, strlen(i->hash));
    kv_hash_add(h, said, (size_t)n);
    kv_hash_end(h, i->hash);
    if (strlen(i->name) > room)
        i->name[room] = 0;
    strcat(i->name, said);
}

int kv_model_pool_heads(struct kv_model *m, size_t pool, struct kv_err *e)
{
    if (kv_pool_heads(&m->weights, &m->config, pool, e))
        return kv_fail_in(e, "%s", m->info.name);
    rename_pooled(&m->info, pool);
    m->info.shape = m->config.shape;
    fill_k_bias(m);
    return place(m, kv_backend_cpu(KV_TYPE_F32), 0, e);
}

int kv_model_open(struct kv_model **m, const char *path, struct kv_err *e)
{
    struct kv_model *model = kv_alloc(1, sizeof(*model));

    if (open_model(model, path, e)) {
        kv_model_free(model);
        return -1;
    }
    *m = model;
    return 0;
}

static int config_of_gguf(struct kv_config *c, const char *path,
                          struct kv_err *e)
{
    struct kv_gguf_model m;
    json_t *json;
    int rc = -1;

    if (kv_gguf_model_open(&m, path, e))
        return -1;
    json = kv_gguf_config(&m, e);
    if (json)
        rc = kv_config_parse(c, json, path, e);
    json_decref(json);
    kv_gguf_model_clear(&m);
    return rc;
}

int kv_model_config(struct kv_config *c, const char *path, struct kv_err *e)
{
    char *file;
    int rc;

    if (kv_gguf_is(path))
        return config_of_gguf(c, path, e);
    file =
        kv_is_dir(path) ? kv_model_file(path, "config.json") : kv_strdup(path);
    rc = kv_config_read(c, file, e);
    free(file);
    return rc;
}

void kv_model_free(struct kv_model *m)
{
    if (!m)
        return;
    kv_layers_free(m->layers);
    for (enum kv_work r = 0; r < KV_WORKSPACES && m->backend; r++)
        kv_workspace_clear(m->backend, &m->workspace[r]);
    kv_backend_free(m->backend);
    kv_weights_clear(&m->files);
    kv_tensor_unmap(&m->weights);
    free(m->k_bias);
    free(m->sink_logit);
    free(m->cache_scale);
    free(m);
}

int kv_model_to_device(struct kv_model *m, const struct kv_device *d,
                       size_t memory, struct kv_err *e)
{
    if (kv_config_on_device(&m->config, e))
        return kv_fail_in(e, "%s", m->info.name);
    return place(m,
                 kv_backend_cuda(
                     d, kv_layers_type(&m->weights,
                                       kv_config_layers_of(&m->config))),
                 memory, e)
               ? kv_fail_in(e, "%s", m->info.name)
               : 0;
}

int kv_model_to_bf16(struct kv_model *m, struct kv_err *e)
{
    if (!kv_gemm_has_bf16())
        return kv_fail(e,
                       "--gemm bf16: this processor, or %s, has no products in "
                       "bf16",
                       kv_gemm_library());
    return place(m, kv_backend_cpu(KV_TYPE_BF16), 0, e);
}

bool kv_model_suits_bf16(const struct kv_model *m)
{
    return kv_gemm_has_bf16() &&
           kv_layers_coarse(&m->weights, kv_config_layers_of(&m->config));
}

void kv_model_few_in_f32(struct kv_model *m)
{
    m->backend->stored_type = KV_TYPE_F32;
}

const char *kv_model_gemm(const struct kv_model *m)
{
    switch (m->backend->weight_type) {
    case KV_TYPE_BF16:
        return "bf16";
    case KV_TYPE_F16:
        return "f16";
    case KV_TYPE_F32:
        break;
    }
    return "f32";
}

int kv_model_random(struct kv_model **out, const struct kv_config *c,
                    const struct kv_device *d, uint64_t seed, struct kv_err *e)
{
    struct kv_model *m;

    if (kv_config_is_llama(c, "CUDA", false, e))
        return -1;
    m = kv_alloc(1, sizeof(*m));
    m->config = *c;
    kv_tensor_map_random(&m->weights, &m->config, seed);
    if (place(m, kv_backend_cuda(d, KV_TYPE_F16), 0, e)) {
        kv_model_free(m);
        return -1;
    }
    *out = m;
    return 0;
}

const struct kv_backend *kv_model_backend(const struct kv_model *m)
{
    return m->backend;
}

const struct kv_model_info *kv_model_info(const struct kv_model *m)
{
    return &m->info;
}

size_t kv_model_windows(const struct kv_model *m, size_t n, bool decodes,
                        size_t memory)
{
    const struct kv_shape *s = &m->config.shape;
    const size_t q = kv_shape_q_most(s), kv = kv_shape_kv_most(s);
    const size_t mix = m->config.mixer.in + m->config.mixer.out;
    const size_t experts =
        m->config.n_experts ? 2 * m->config.hidden + m->config.n_experts : 0;
    const size_t streams = (m->config.layer_embed ? 2 : 1) +
                           (m->config.n_streams ? m->config.n_streams + 1 : 0);
    const size_t kinds = s->n_shared ? 2 : 1;
    /* hidden; q and out; k, k_pre and v; inputs and outputs of a mixer and of
     * experts */
    const size_t token =
        (streams * m->config.hidden + 2 * q + 3 * kinds * kv + mix + experts) *
        sizeof(float);

    /* each thread fills one window's cache: tokens to encode, and codes */
    const size_t busy = decodes ? 3 * kv * sizeof(float) : 0;

    const size_t state = s->state_floats * sizeof(float); /* bytes of a layer */

    return kv_memory_fit_threads(
        memory, (token + (decodes ? token / 2 : 0)) * n + state, 1, busy * n,
        (size_t)omp_get_max_threads(), SIZE_MAX, "a window");
}

int kv_model_wo_gram(struct kv_model *m, size_t layer, float *gram,
                     struct kv_err *e)
{
    const struct kv_shape *s = &m->config.shape;
    const size_t hidden = m->config.hidden, d = kv_shape_dim(s, layer);
    const size_t q_dim = s->n_heads * d;
    const size_t group = s->n_heads / kv_shape_kv_heads(s, layer);
    const struct kv_weight *wo;
    float *w, *transposed;

    if (layer >= s->n_layers)
        return kv_fail(e, "layer %zu: the model has %zu", layer, s->n_layers);
    if (s->latent)
        return kv_fail(e, "%s: Wo^T Wo of a latent is not implemented",
                       m->info.name);
    wo = m->weights.layer[kv_shape_own(s, layer)].part[KV_P_O];
    w = kv_alloc(wo->n, sizeof(*w));
    transposed = kv_alloc(wo->n, sizeof(*transposed));
    kv_weight_dequantize(wo, 0, wo->n, w);
    for (size_t i = 0; i < hidden; i++)
        for (size_t j = 0; j < q_dim; j++)
            transposed[j * hidden + i] = w[i * q_dim + j];
    for (size_t h = 0; h < s->n_heads; h++) {
        const float *head = transposed + h * d * hidden; /* [d][hidden] */

        kv_gemm(true, d, d, hidden, 1, head, hidden, head, hidden,
                h % group ? 1 : 0, gram + h / group * d * d, d);
    }
    kv_weight_release(wo);
    free(transposed);
    free(w);
    return 0;
}
