#include "eval/generate_gpu.h"
#include "lib/base/alloc.h"
#include "lib/base/progress.h"
#include "lib/seq/cache.h"
#include "lib/seq/tile_cache.h"

#include <stdlib.h>
#include <string.h>

struct layer {
    struct kv_gpu_attend *attend; /* NULL: not opened yet, or on_cpu */
    bool on_cpu;                  /* the device has no kernel, or no room */
};

struct kv_gpu_layers {
    const char *name;
    const struct kv_device *device;
    size_t n_layers;
    struct layer *layer; /* [n_layers] */
    bool noted;
};

struct kv_gpu_layers *kv_gpu_layers_new(const char *name, size_t n_layers,
                                        const struct kv_device *device)
{
    struct kv_gpu_layers *g = kv_alloc(1, sizeof(*g));

    *g = (struct kv_gpu_layers){.name = name,
                                .device = device,
                                .n_layers = n_layers,
                                .layer = kv_alloc(n_layers, sizeof(*g->layer))};
    return g;
}

void kv_gpu_layers_free(struct kv_gpu_layers *g)
{
    if (!g)
        return;
    for (size_t i = 0; i < g->n_layers; i++)
        kv_gpu_attend_free(g->layer[i].attend);
    free(g->layer);
    free(g);
}

void kv_gpu_layers_drop(struct kv_gpu_layers *g, uint64_t id)
{
    for (size_t i = 0; g && i < g->n_layers; i++)
        if (g->layer[i].attend)
            kv_gpu_attend_drop(g->layer[i].attend, id);
}

bool kv_gpu_layers_has(const struct kv_gpu_layers *g, size_t layer)
{
    return !g->layer[layer].on_cpu;
}

static void leave_to_cpu(struct kv_gpu_layers *g, size_t layer, const char *why)
{
    g->layer[layer].on_cpu = true;
    if (!g->noted)
        kv_note("%s: the CPU attends in layer %zu and others like it: %s",
                g->name, layer, why);
    g->noted = true;
}

/* Opens the layer on the device, or leaves it to the CPU.  A scheme with
 * attention of its own has that attention on the device, too. */
static void open_layer(struct kv_gpu_layers *g, size_t layer,
                       const struct kv_gpu_query *query)
{
    const struct kv_cache *c = kv_seq_cache(query->seq, layer);
    const enum kv_path path = kv_codec_attends(kv_cache_reader(c, KV_K).codec)
                                  ? KV_PATH_INT8
                                  : KV_PATH_EXACT;
    struct kv_tiles_job job;
    struct kv_err why;

    if (!query->tiles) {
        leave_to_cpu(g, layer, "its codes do not go into tiles");
        return;
    }
    job = kv_tile_cache_job(query->tiles, 1);
    if (kv_gpu_attend_new(&g->layer[layer].attend, g->device, &job, 0, path,
                          &why))
        leave_to_cpu(g, layer, why.msg);
}

/* Brings the layer up to the queries' caches and leaves it to the CPU if that
 * fails; the caches on the host have all tokens. */
static void bring(struct kv_gpu_layers *g, size_t layer,
                  const struct kv_gpu_query *query, size_t n)
{
    struct layer *l = &g->layer[layer];
    struct kv_tiles_job *jobs = kv_alloc(n, sizeof(*jobs));
    uint64_t *id = kv_alloc(n, sizeof(*id));
    struct kv_err why;

    for (size_t i = 0; i < n; i++) {
        jobs[i] = kv_tile_cache_job(query[i].tiles, 1);
        id[i] = query[i].id;
    }
    if (kv_gpu_attend_update(l->attend, jobs, id, n, &why)) {
        kv_gpu_attend_free(l->attend);
        l->attend = NULL;
        leave_to_cpu(g, layer, why.msg);
    }
    free(id);
    free(jobs);
}

static int attend(struct kv_gpu_attend *a, const struct kv_gpu_query *query,
                  size_t n, size_t row, struct kv_err *e)
{
    float *q = kv_alloc(2 * n, row * sizeof(*q)), *out = q + n * row;
    int rc;

    for (size_t i = 0; i < n; i++)
        memcpy(q + i * row, query[i].q, row * sizeof(*q));
    rc = kv_gpu_attend_ask(a, q, e) || kv_gpu_attend_launch(a, e) ||
         kv_gpu_attend_answer(a, out, e);
    for (size_t i = 0; i < n && !rc; i++)
        memcpy(query[i].out, out + i * row, row * sizeof(*out));
    free(q);
    return rc ? -1 : 0;
}

int kv_gpu_layers_attend(struct kv_gpu_layers *g, size_t layer,
                         const struct kv_gpu_query *query, size_t n, size_t row,
                         struct kv_err *e)
{
    struct layer *l = &g->layer[layer];

    if (!n)
        return 0;
    if (!l->attend)
        open_layer(g, layer, query);
    if (l->attend)
        bring(g, layer, query, n);
    if (l->attend)
        return attend(l->attend, query, n, row, e);
    for (size_t i = 0; i < n; i++)
        kv_seq_attend(query[i].seq, layer, 1, query[i].q, query[i].out);
    return 0;
}
