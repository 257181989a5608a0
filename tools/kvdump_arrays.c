#include "tools/kvdump_arrays.h"
#include "lib/base/alloc.h"
#include "lib/base/progress.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- names --------------------------------------------------------------- */

/* What the words of an array's name say. */
struct said {
    size_t tensor, n_tensors, n_layers, n_chunks, layer, chunk;
    bool pre, both, ids, strange;
    bool outer; /* kvcache: [2][layers] if it has all layers */
};

static bool among(const char *word, const char *list)
{
    const size_t n = strlen(word);

    for (const char *at = list; (at = strstr(at, word)); at += n)
        if ((at == list || at[-1] == ' ') && (at[n] == ' ' || !at[n]))
            return true;
    return false;
}

static const char chunks[] = "chunk chunks page pages part parts segment "
                             "segments";

static void take_word(struct said *s, const char *word)
{
    static const char *const tensors[] = {
        [KV_T_Q] = "q query queries",
        [KV_T_K] = "k key keys",
        [KV_T_V] = "v value values",
    };
    static const char filler[] =
        "layer layers block blocks h cache states state self attn attention "
        "past present model transformer decoder post rope token input";

    for (size_t t = KV_T_Q; t <= KV_T_V; t++)
        if (among(word, tensors[t])) {
            s->tensor = t;
            s->n_tensors++;
            return;
        }
    if (!strcmp(word, "pre"))
        s->pre = true;
    else if (!strcmp(word, "kvcache"))
        s->both = s->outer = true;
    else if (!strcmp(word, "kv"))
        s->both = true;
    else if (among(word, "tokens ids"))
        s->ids = true;
    else if (!among(word, filler) && !among(word, chunks))
        s->strange = true;
}

static void take_number(struct said *s, const char *word, size_t number)
{
    if (*word && among(word, chunks)) {
        s->chunk = number;
        s->n_chunks++;
    } else {
        s->layer = number;
        s->n_layers++;
    }
}

static struct said read_name(const char *name)
{
    static const char past[] = "past_key_values";
    struct said s = {0};
    char word[KV_ARRAY_NAME] = "";

    if (!strncmp(name, past, sizeof(past) - 1)) {
        name += sizeof(past) - 1;
        s.both = true;
    }
    while (*name) {
        size_t n = 0;

        if (isdigit((unsigned char)*name)) {
            take_number(&s, word, strtoull(name, (char **)&name, 10));
            continue;
        }
        for (; isalpha((unsigned char)*name); name++)
            word[n++] = (char)tolower((unsigned char)*name);
        if (n) {
            word[n] = 0;
            take_word(&s, word);
        } else if (!strchr("._-/ ", *name++)) {
            s.strange = true;
        }
    }
    return s;
}

/* Whether the name is one of keys, values, queries or ids. */
static bool is_ours(const struct said *s)
{
    if (s->strange || s->n_layers > 1 || s->n_chunks > 1)
        return false;
    if (s->n_tensors)
        return s->n_tensors == 1 && !s->ids && (!s->pre || s->tensor == KV_T_K);
    return !s->pre && (s->ids ? !s->n_layers : s->both);
}

/* ---- the arrays of layers ------------------------------------------------ */

const char *kvdump_arrays_name(size_t tensor)
{
    static const char *const names[] = {"queries", "keys", "values",
                                        "keys before RoPE", "ids of tokens"};

    return names[tensor];
}

static void add_piece(struct kvdump_arrays *a, size_t tensor, size_t array,
                      const struct said *s)
{
    a->piece = kv_realloc(a->piece, a->n_pieces + 1, sizeof(*a->piece));
    a->piece[a->n_pieces++] = (struct kvdump_piece){
        .tensor = tensor,
        .layer = s->layer,
        .chunk = s->chunk,
        .array = array,
        .joined = !s->n_tensors && !s->ids,
        .outer = s->outer && !s->n_tensors && !s->n_layers,
        .numbered = s->n_layers};
}

static int take_array(struct kvdump_arrays *a, size_t i, const struct said *s,
                      struct kv_err *e)
{
    if (s->layer >= KV_MAX_LAYERS)
        return kv_fail(e, "%s: %s: expected a layer below %d", a->files.path,
                       a->files.list[i].name, KV_MAX_LAYERS);
    if (s->n_tensors) {
        add_piece(a, s->pre ? KV_T_K_PRE : s->tensor, i, s);
    } else if (s->ids) {
        add_piece(a, KVDUMP_IDS, i, s);
    } else {
        add_piece(a, KV_T_K, i, s);
        add_piece(a, KV_T_V, i, s);
    }
    return 0;
}

static int by_place(const void *one, const void *other)
{
    const struct kvdump_piece *a = one, *b = other;
    const size_t x[] = {a->tensor, a->layer, a->chunk, a->array};
    const size_t y[] = {b->tensor, b->layer, b->chunk, b->array};

    for (size_t i = 0; i < 4; i++)
        if (x[i] != y[i])
            return x[i] < y[i] ? -1 : 1;
    return 0;
}

/* Takes the n pieces of a tensor, sorted by layer and chunk. */
static int take_pieces(struct kvdump_arrays *a, const struct kvdump_piece *p,
                       size_t n, struct kv_err *e)
{
    const char *name = kvdump_arrays_name(p->tensor), *path = a->files.path;
    struct kvdump_layers *l = &a->of[p->tensor];

    *l = (struct kvdump_layers){.have = true,
                                .stacked =
                                    !p->numbered && p->tensor != KVDUMP_IDS,
                                .piece = p,
                                .first = p->layer,
                                .last = p[n - 1].layer};
    while (l->n_chunks < n && p[l->n_chunks].layer == p->layer)
        l->n_chunks++;
    for (size_t i = 1; i < n; i++) {
        const struct kvdump_piece *was = &p[i - 1], *is = &p[i];

        if (is->numbered != p->numbered ||
            (is->layer == was->layer && is->chunk == was->chunk))
            return kv_fail(e, "%s: %s: there are other %s of the same layers",
                           path, a->files.list[is->array].name, name);
        if (is->layer > was->layer + 1)
            return kv_fail(e, "%s: no %s of layer %zu, between %zu and %zu",
                           path, name, was->layer + 1, was->layer, is->layer);
    }
    for (size_t i = 0; i < n; i++)
        if (p[i].layer != l->first + i / l->n_chunks ||
            p[i].chunk != p[i % l->n_chunks].chunk ||
            (i == n - 1 && n % l->n_chunks))
            return kv_fail(e,
                           "%s: %s of layer %zu have other chunks than layer "
                           "%zu: expected the same of all",
                           path, name, p[i].layer, l->first);
    return 0;
}

static int sort_pieces(struct kvdump_arrays *a, struct kv_err *e)
{
    size_t end;

    if (a->n_pieces)
        qsort(a->piece, a->n_pieces, sizeof(*a->piece), by_place);
    for (size_t i = 0; i < a->n_pieces; i = end) {
        for (end = i; end < a->n_pieces; end++)
            if (a->piece[end].tensor != a->piece[i].tensor)
                break;
        if (take_pieces(a, &a->piece[i], end - i, e))
            return -1;
    }
    return 0;
}

int kvdump_arrays_open(struct kvdump_arrays *a, const char *path,
                       struct kv_err *e)
{
    size_t others = 0, other = 0;

    *a = (struct kvdump_arrays){.piece = NULL};
    if (kvdump_files_open(&a->files, path, e))
        return -1;
    for (size_t i = 0; i < a->files.n; i++) {
        const struct said s = read_name(a->files.list[i].name);

        if (!is_ours(&s)) {
            other = others++ ? other : i;
            continue;
        }
        if (take_array(a, i, &s, e))
            return -1;
    }
    if (others)
        kv_note("%s: not read, as their names are of no keys, values or "
                "queries: %s%s",
                path, a->files.list[other].name, others > 1 ? ", ..." : "");
    return sort_pieces(a, e);
}

void kvdump_arrays_clear(struct kvdump_arrays *a)
{
    kvdump_files_clear(&a->files);
    free(a->piece);
    free(a->chunk_tokens);
    *a = (struct kvdump_arrays){.piece = NULL};
}

const struct kv_array *kvdump_arrays_first(const struct kvdump_arrays *a,
                                           size_t tensor)
{
    return &a->files.list[a->of[tensor].piece->array];
}
