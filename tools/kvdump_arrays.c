#include "tools/kvdump_arrays.h"
#include "lib/base/alloc.h"
#include "lib/base/progress.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- names --------------------------------------------------------------- */

/* What the words of a name say. */
struct said {
    int tensor; /* enum kv_tensor; -1: nothing */
    size_t n_tensors, n_numbers, layer;
    bool pre, strange;
};

static bool among(const char *word, const char *list)
{
    const size_t n = strlen(word);

    for (const char *at = list; (at = strstr(at, word)); at += n)
        if ((at == list || at[-1] == ' ') && (at[n] == ' ' || !at[n]))
            return true;
    return false;
}

static void take_word(struct said *s, const char *word)
{
    static const char *const tensors[] = {
        [KV_T_Q] = "q query queries",
        [KV_T_K] = "k key keys",
        [KV_T_V] = "v value values",
    };
    static const char filler[] =
        "layer layers block blocks h cache states state self attn attention "
        "past present model transformer decoder post rope kv";

    if (!strcmp(word, "pre")) {
        s->pre = true;
        return;
    }
    for (int t = KV_T_Q; t <= KV_T_V; t++)
        if (among(word, tensors[t])) {
            s->tensor = t;
            s->n_tensors++;
            return;
        }
    s->strange = s->strange || !among(word, filler);
}

static struct said read_name(const char *name)
{
    static const char past[] = "past_key_values";
    struct said s = {.tensor = -1};
    char word[KV_ARRAY_NAME];

    if (!strncmp(name, past, sizeof(past) - 1))
        name += sizeof(past) - 1;
    while (*name) {
        size_t n = 0;

        if (isdigit((unsigned char)*name)) {
            s.layer = strtoull(name, (char **)&name, 10);
            s.n_numbers++;
            continue;
        }
        for (; isalpha((unsigned char)*name); name++)
            word[n++] = (char)tolower((unsigned char)*name);
        word[n] = 0;
        if (n)
            take_word(&s, word);
        else if (!strchr("._-/ ", *name++))
            s.strange = true;
    }
    return s;
}

/* ---- the arrays of layers ------------------------------------------------ */

static const char *name_of(enum kv_tensor t)
{
    static const char *const names[] = {"queries", "keys", "values",
                                        "keys before RoPE"};

    return names[t];
}

static int take_array(struct kvdump_arrays *a, size_t i, const struct said *s,
                      struct kv_err *e)
{
    const enum kv_tensor t = s->pre ? KV_T_K_PRE : (enum kv_tensor)s->tensor;
    struct kvdump_layers *l = &a->of[t];
    const char *path = kv_arrays_path(a->file);
    const size_t layer = s->n_numbers ? s->layer : 0;

    if (layer >= KV_MAX_LAYERS)
        return kv_fail(e, "%s: %s: expected a layer below %d", path,
                       a->list[i].name, KV_MAX_LAYERS);
    if (l->array[layer] || (l->have && l->stacked != !s->n_numbers))
        return kv_fail(e, "%s: %s: there are other %s of the same layers", path,
                       a->list[i].name, name_of(t));
    l->array[layer] = i + 1;
    l->stacked = !s->n_numbers;
    l->first = !l->have || layer < l->first ? layer : l->first;
    l->last = layer > l->last ? layer : l->last;
    l->have = true;
    return 0;
}

/* Layers that are missing amid others. */
static int check_gaps(const struct kvdump_arrays *a, struct kv_err *e)
{
    for (enum kv_tensor t = 0; t <= KV_T_K_PRE; t++) {
        const struct kvdump_layers *l = &a->of[t];

        for (size_t i = l->first; l->have && i <= l->last; i++)
            if (!l->array[i])
                return kv_fail(e, "%s: no %s of layer %zu, between %zu and %zu",
                               kv_arrays_path(a->file), name_of(t), i, l->first,
                               l->last);
    }
    return 0;
}

int kvdump_arrays_open(struct kvdump_arrays *a, const char *path,
                       struct kv_err *e)
{
    size_t others = 0, other = 0;

    *a = (struct kvdump_arrays){.file = NULL};
    if (kv_arrays_open(&a->file, path, e))
        return -1;
    a->n = kv_arrays_list(a->file, &a->list);
    for (size_t i = 0; i < a->n; i++) {
        const struct said s = read_name(a->list[i].name);

        if (s.n_tensors == 1 && s.n_numbers <= 1 && !s.strange &&
            (!s.pre || s.tensor == KV_T_K)) {
            if (take_array(a, i, &s, e))
                return -1;
        } else if (!others++) {
            other = i;
        }
    }
    if (others)
        kv_note("%s: not read, as their names are of no keys, values or "
                "queries: %s%s",
                path, a->list[other].name, others > 1 ? ", ..." : "");
    return check_gaps(a, e);
}

void kvdump_arrays_clear(struct kvdump_arrays *a)
{
    kv_arrays_close(a->file);
    *a = (struct kvdump_arrays){.file = NULL};
}

/* ---- shapes -------------------------------------------------------------- */

static const struct kv_array *first_of(const struct kvdump_arrays *a,
                                       enum kv_tensor t)
{
    return &a->list[a->of[t].array[a->of[t].first] - 1];
}

static void print_shape(const struct kv_array *x, char text[128])
{
    size_t w = 0;

    text[0] = 0;
    for (size_t i = 0; i < x->n_dims; i++)
        w += (size_t)snprintf(text + w, 128 - w, "[%zu]", x->dims[i]);
}

void kvdump_arrays_shape(const struct kvdump_arrays *a, enum kv_tensor t,
                         char text[128])
{
    print_shape(first_of(a, t), text);
}

/* All arrays of a tensor are as its first. */
static int check_alike(const struct kvdump_arrays *a, enum kv_tensor t,
                       struct kv_err *e)
{
    const struct kvdump_layers *l = &a->of[t];
    const struct kv_array *one = first_of(a, t);
    const size_t least = 3 + l->stacked;
    char is[128], want[128];

    print_shape(one, want);
    if (one->n_dims < least || one->n_dims > least + 1 || !one->n)
        return kv_fail(e,
                       "%s: %s is %s: expected %s[windows, if several] of "
                       "heads, tokens and channels",
                       kv_arrays_path(a->file), one->name, want,
                       l->stacked ? "[layers]" : "");
    for (size_t i = l->first; i <= l->last && !l->stacked; i++) {
        const struct kv_array *x = &a->list[l->array[i] - 1];

        print_shape(x, is);
        if (strcmp(is, want) != 0)
            return kv_fail(e, "%s: %s is %s, and %s is %s",
                           kv_arrays_path(a->file), x->name, is, one->name,
                           want);
    }
    return one->floats ? 0
                       : kv_fail(e,
                                 "%s: %s is of type %s: expected floats of 16, "
                                 "32 or 64 bits",
                                 kv_arrays_path(a->file), one->name, one->type);
}

/* The layers of a tensor: all of a stack. */
static size_t last_layer(const struct kvdump_arrays *a, enum kv_tensor t)
{
    return a->of[t].stacked ? first_of(a, t)->dims[0] - 1 : a->of[t].last;
}

static int check_layers(struct kvdump_arrays *a, enum kv_tensor t,
                        enum kv_tensor with, struct kv_err *e)
{
    if (a->of[t].first == a->of[with].first &&
        last_layer(a, t) == last_layer(a, with))
        return 0;
    return kv_fail(e, "%s: %s of layers %zu to %zu, and %s of %zu to %zu",
                   kv_arrays_path(a->file), name_of(with), a->of[with].first,
                   last_layer(a, with), name_of(t), a->of[t].first,
                   last_layer(a, t));
}

/* The dimensions of a tensor's array from heads and tokens on. */
static const size_t *inner(const struct kvdump_arrays *a, enum kv_tensor t)
{
    const struct kv_array *x = first_of(a, t);

    return x->dims + x->n_dims - 3;
}

/* Whether heads come first; 1 where nothing tells. */
static int find_order(struct kvdump_arrays *a, enum kv_tensor k,
                      const char *layout, size_t n_kv_heads)
{
    const size_t *dims = inner(a, k);
    const struct kvdump_layers *l = &a->of[k];

    a->has_windows = first_of(a, k)->n_dims == 4 + (size_t)l->stacked;
    if (layout)
        a->heads_first = !strcmp(layout, "htd");
    else if (n_kv_heads && (dims[0] == n_kv_heads) != (dims[1] == n_kv_heads))
        a->heads_first = dims[0] == n_kv_heads;
    else if (a->has_windows)
        a->heads_first = true; /* as transformers */
    else
        return 1;
    return 0;
}

/* Sizes of a tensor, against the keys'. */
static int take_sizes(struct kvdump_arrays *a, enum kv_tensor t,
                      enum kv_tensor k, struct kv_err *e)
{
    const struct kv_array *x = first_of(a, t);
    const size_t *dims = inner(a, t);
    const size_t windows = a->has_windows ? dims[-1] : 1;
    char is[128], want[128];

    a->of[t].heads = dims[!a->heads_first];
    if (t == k) {
        a->n_windows = windows;
        a->ctx = dims[a->heads_first];
        a->dim = dims[2];
    }
    if (x->n_dims - a->of[t].stacked ==
            first_of(a, k)->n_dims - a->of[k].stacked &&
        windows == a->n_windows && dims[a->heads_first] == a->ctx &&
        dims[2] == a->dim && (t == KV_T_Q || a->of[t].heads == a->of[k].heads))
        return 0;
    print_shape(x, is);
    print_shape(first_of(a, k), want);
    return kv_fail(e, "%s: %s is %s, which does not go with %s of %s",
                   kv_arrays_path(a->file), x->name, is, first_of(a, k)->name,
                   want);
}

int kvdump_arrays_fit(struct kvdump_arrays *a, const char *layout,
                      size_t n_kv_heads, struct kv_err *e)
{
    const enum kv_tensor k = a->of[KV_T_K].have ? KV_T_K : KV_T_K_PRE;

    for (enum kv_tensor t = 0; t <= KV_T_K_PRE; t++)
        if (a->of[t].have && check_alike(a, t, e))
            return -1;
    for (enum kv_tensor t = 0; t <= KV_T_K_PRE; t++)
        if (a->of[t].have && check_layers(a, t, k, e))
            return -1;
    a->first_layer = a->of[k].first;
    a->last_layer = last_layer(a, k);
    if (find_order(a, k, layout, n_kv_heads))
        return 1;
    if (take_sizes(a, k, k, e))
        return -1;
    for (enum kv_tensor t = 0; t <= KV_T_K_PRE; t++)
        if (a->of[t].have && take_sizes(a, t, k, e))
            return -1;
    return 0;
}

/* ---- values -------------------------------------------------------------- */

int kvdump_arrays_read(struct kvdump_arrays *a, enum kv_tensor t, size_t layer,
                       size_t window, float *x, struct kv_err *e)
{
    const struct kvdump_layers *l = &a->of[t];
    const size_t heads = l->heads, n = a->ctx, dim = a->dim;
    const size_t values = n * heads * dim;
    const size_t array = l->array[l->stacked ? 0 : layer] - 1;
    const size_t row = l->stacked ? layer * a->n_windows + window : window;
    float *y;

    if (!a->heads_first)
        return kv_arrays_read(a->file, array, row * values, values, x, e);
    y = kv_alloc(values, sizeof(*y));
    if (kv_arrays_read(a->file, array, row * values, values, y, e)) {
        free(y);
        return -1;
    }
    for (size_t h = 0; h < heads; h++)
        for (size_t i = 0; i < n; i++)
            memcpy(x + (i * heads + h) * dim, y + (h * n + i) * dim,
                   dim * sizeof(*x));
    free(y);
    return 0;
}
