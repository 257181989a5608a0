#include "lib/model/model.h"
#include "kernels/gemm.h"
#include "lib/base/alloc.h"
#include "lib/base/file.h"
#include "lib/base/hash.h"
#include "lib/model/model_gpu.h"

#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Heads up to this many bytes of f32 are kept widened. */
static const size_t head_limit = (size_t)256 << 20;

void kv_model_dequantize(const struct kv_weight *w, size_t first, size_t n,
                         float *out)
{
    const size_t piece = 1 << 16;

#pragma omp parallel for schedule(static) if (n > piece)
    for (size_t i = 0; i < n; i += piece)
        kv_weight_dequantize(w, first + i, n - i < piece ? n - i : piece,
                             out + i);
}

bool kv_model_holds(const char *name)
{
    static const char *const patterns[] = {
        "*.json",     "*.safetensors", /* the only ones that are read here */
        "*.bin",      "*.gguf",        "*.pt",      "*.pth",   "*.model",
        "*.tiktoken", "merges.txt",    "vocab.txt", "*.jinja",
    };

    for (size_t i = 0; i < sizeof(patterns) / sizeof(*patterns); i++)
        if (!fnmatch(patterns[i], name, 0))
            return true;
    return false;
}

/* Adds the file to the hash, when it is there. */
static int hash_file(struct kv_hash *h, const char *dir, const char *name,
                     struct kv_err *e)
{
    char *path = kv_path_join(dir, name);
    struct kv_map map = {0};
    const int rc = kv_file_exists(path) ? kv_map_open(&map, path, e) : 0;

    kv_hash_add(h, map.data, map.bytes);
    kv_map_close(&map);
    free(path);
    return rc;
}

static int hash_model(struct kv_model *m, const char *dir, struct kv_err *e)
{
    struct kv_hash *h = kv_hash_new();
    const int rc = hash_file(h, dir, "config.json", e) ||
                           hash_file(h, dir, "tokenizer.json", e)
                       ? -1
                       : 0;

    kv_weights_hash(&m->files, h);
    kv_hash_end(h, m->info.hash);
    return rc;
}

/* The last part of the folder's name; of its full name when that is "." */
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

/* What would change the weights and is not applied. */
static int check_adapter(const char *dir, struct kv_err *e)
{
    char *path = kv_path_join(dir, "adapter_config.json");
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

static int open_model(struct kv_model *m, const char *dir,
                      const char *config_path, struct kv_err *e)
{
    const struct kv_config *c = &m->config;

    if (!kv_is_dir(dir))
        return kv_fail(e, "%s is not a model folder", dir);
    if (check_adapter(dir, e) || kv_config_read(&m->config, config_path, e) ||
        kv_weights_open(&m->files, dir, e) ||
        kv_tensor_map(&m->weights, c, &m->files, dir, e) ||
        hash_model(m, dir, e))
        return -1;
    fill_info(m, dir);
    m->norm = kv_alloc(c->hidden, sizeof(*m->norm));
    kv_model_dequantize(m->weights.norm, 0, c->hidden, m->norm);
    if (m->weights.head->n <= head_limit / sizeof(*m->head)) {
        m->head = kv_alloc(m->weights.head->n, sizeof(*m->head));
        kv_model_dequantize(m->weights.head, 0, m->weights.head->n, m->head);
    }
    return 0;
}

int kv_model_open(struct kv_model **m, const char *dir, struct kv_err *e)
{
    struct kv_model *model = kv_alloc(1, sizeof(*model));
    char *config_path = kv_path_join(dir, "config.json");
    const int rc = open_model(model, dir, config_path, e);

    free(config_path);
    if (rc) {
        kv_model_free(model);
        return -1;
    }
    *m = model;
    return 0;
}

void kv_model_free(struct kv_model *m)
{
    if (!m)
        return;
    kv_model_gpu_free(m->gpu);
    kv_weights_clear(&m->files);
    kv_tensor_unmap(&m->weights);
    free(m->norm);
    free(m->head);
    free(m);
}

int kv_model_to_device(struct kv_model *m, const struct kv_device *d,
                       size_t memory, struct kv_err *e)
{
    return kv_model_gpu_new(&m->gpu, m, d, memory, e);
}

const struct kv_device *kv_model_device(const struct kv_model *m)
{
    return m->gpu ? kv_model_gpu_device(m->gpu) : NULL;
}

int kv_model_losses(struct kv_model *m, const float *hidden, const float *base,
                    size_t n, const int32_t *target, struct kv_gpu_loss *loss,
                    struct kv_err *e)
{
    return kv_model_gpu_losses(m->gpu, hidden, base, n, target, loss, e);
}

const struct kv_model_info *kv_model_info(const struct kv_model *m)
{
    return &m->info;
}

size_t kv_model_windows(const struct kv_model *m, size_t n, size_t memory)
{
    const struct kv_shape *s = &m->config.shape;
    const size_t q = s->n_heads * s->head_dim;
    const size_t kv = s->n_kv_heads * s->head_dim;
    /* hidden; q and out; k, k_pre and v */
    const size_t token = (m->config.hidden + 2 * q + 3 * kv) * sizeof(float);

    return kv_memory_fit(memory, token * n, SIZE_MAX, "a window");
}

int kv_model_wo_gram(struct kv_model *m, size_t layer, float *gram,
                     struct kv_err *e)
{
    const struct kv_shape *s = &m->config.shape;
    const size_t hidden = m->config.hidden, d = s->head_dim;
    const size_t q_dim = s->n_heads * d, group = s->n_heads / s->n_kv_heads;
    const struct kv_weight *wo;
    float *w, *turned;

    if (layer >= s->n_layers)
        return kv_fail(e, "layer %zu: the model has %zu", layer, s->n_layers);
    wo = m->weights.layer[layer].part[KV_P_O];
    w = kv_alloc(wo->n, sizeof(*w));
    turned = kv_alloc(wo->n, sizeof(*turned));
    kv_model_dequantize(wo, 0, wo->n, w);
    for (size_t i = 0; i < hidden; i++)
        for (size_t j = 0; j < q_dim; j++)
            turned[j * hidden + i] = w[i * q_dim + j];
    for (size_t h = 0; h < s->n_heads; h++) {
        const float *head = turned + h * d * hidden; /* [d][hidden] */

        kv_gemm(true, d, d, hidden, 1, head, hidden, head, hidden,
                h % group ? 1 : 0, gram + h / group * d * d, d);
    }
    free(turned);
    free(w);
    return 0;
}
