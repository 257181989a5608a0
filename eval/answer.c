#include "eval/answer.h"
#include "kernels/vecops/vecops.h"
#include "lib/base/alloc.h"
#include "lib/base/rng.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *kv_finish_name(enum kv_finish f)
{
    static const char *const name[] = {"length", "eos", "stop", "failed"};

    return name[f];
}

void kv_answer_clear(struct kv_answer *a)
{
    free(a->ids);
    free(a->log_prob);
    free(a->top);
    free(a->why);
    a->ids = NULL;
    a->log_prob = NULL;
    a->top = NULL;
    a->why = NULL;
}

size_t kv_answer_agrees(const struct kv_answer *a, const struct kv_answer *b)
{
    size_t i = 0;

    while (i < a->made && i < b->made && a->ids[i] == b->ids[i])
        i++;
    return i;
}

static int check_finite(const float *logits, size_t n, size_t at,
                        struct kv_err *e)
{
    for (size_t i = 0; i < n; i++)
        if (!isfinite(logits[i]))
            return kv_fail(e,
                           "token %zu: the logit of id %zu is not finite (does "
                           "the model overflow?)",
                           at, i);
    return 0;
}

/* Writes the n_top most probable ids in descending order; if the model has
 * fewer ids, -1 fills the rest. */
static void note_top(struct kv_top *top, size_t n_top, const float *logits,
                     size_t n, double sum)
{
    size_t held = 0;

    for (size_t i = 0; i < n_top; i++)
        top[i] = (struct kv_top){-1, -INFINITY};
    for (size_t i = 0; i < n; i++) {
        const float x = (float)(logits[i] - sum);
        size_t at;

        if (held == n_top && x <= top[n_top - 1].log_prob)
            continue;
        held += held < n_top;
        for (at = held - 1; at && top[at - 1].log_prob < x; at--)
            top[at] = top[at - 1];
        top[at] = (struct kv_top){(int32_t)i, x};
    }
}

/* The ids [n] of tokens that may not come yet. */
struct barred {
    int32_t *id;
    size_t n;
};

static int list_barred(const struct kv_answer *a, const struct kv_ends *ends,
                       const struct kv_tokenizer *t, struct barred *b,
                       struct kv_err *e)
{
    size_t n;

    b->id = kv_alloc(ends->n + a->stops.n, sizeof(*b->id));
    if (kv_stops_ids(&a->stops, t, b->id, &n, e))
        return -1;
    for (size_t i = 0; i < ends->n; i++)
        b->id[n + i] = ends->id[i];
    b->n = n + ends->n;
    return 0;
}

/* Returns the next token: the forced one, or the sampler's choice. */
static int32_t choose(const struct kv_answer *a, const struct barred *b,
                      const int32_t *ids, float *logits, size_t n_vocab)
{
    static const struct kv_sampling greedy = KV_SAMPLING_GREEDY;
    const struct kv_sampling *s = a->sampling ? a->sampling : &greedy;
    const double u = (double)(kv_random(a->key, a->made) >> 11) * 0x1p-53;

    if (a->made < a->n_forced)
        return a->forced[a->made];
    kv_sampling_penalize(s, logits, n_vocab, ids, a->n_prompt + a->made);
    for (size_t i = 0; i < b->n; i++)
        if ((size_t)b->id[i] < n_vocab)
            logits[b->id[i]] = -INFINITY;
    return kv_sampling_choose(s, logits, n_vocab, u);
}

static bool is_end(const struct kv_ends *ends, int32_t id)
{
    for (size_t i = 0; i < ends->n; i++)
        if (ends->id[i] == id)
            return true;
    return false;
}

/* Computes the probabilities, then calls choose(), which changes the logits. */
static int32_t choose_noted(struct kv_answer *a, const struct barred *b,
                            const int32_t *ids, float *logits, size_t n_vocab)
{
    float *before = kv_alloc(n_vocab, sizeof(*before));
    const double sum = kv_log_sum_exp(logits, n_vocab);
    int32_t id;

    memcpy(before, logits, n_vocab * sizeof(*before));
    id = choose(a, b, ids, logits, n_vocab);
    a->log_prob[a->made] = (float)(before[id] - sum);
    note_top(a->top + a->made * a->n_top, a->n_top, before, n_vocab, sum);
    free(before);
    return id;
}

/* Whether the newest token ends the answer. */
static int find_end(struct kv_answer *a, const struct kv_ends *ends,
                    const struct kv_tokenizer *t, bool *ended, struct kv_err *e)
{
    const size_t first = a->n_forced + a->least;
    bool stopped = false;

    if (a->made > first && is_end(ends, a->ids[a->made - 1])) {
        a->finish = KV_FINISH_EOS;
        *ended = true;
        return 0;
    }
    if (a->made > first && kv_stops_check(&a->stops, t, a->ids + first,
                                          a->made - first, &stopped, e))
        return -1;
    a->finish = stopped ? KV_FINISH_STOP : KV_FINISH_LENGTH;
    *ended = stopped || a->made == a->most;
    return 0;
}

int kv_answer_take(struct kv_answer *a, int32_t *ids, float *logits,
                   size_t n_vocab, const struct kv_ends *ends,
                   const struct kv_tokenizer *t, bool *ended, struct kv_err *e)
{
    const size_t n = a->n_prompt + a->made;
    struct barred b = {NULL, 0};

    if (check_finite(logits, n_vocab, n, e))
        return -1;
    if (a->made >= a->n_forced && a->made < a->n_forced + a->least &&
        list_barred(a, ends, t, &b, e)) {
        free(b.id);
        return -1;
    }
    ids[n] = a->n_top ? choose_noted(a, &b, ids, logits, n_vocab)
                      : choose(a, &b, ids, logits, n_vocab);
    free(b.id);
    a->ids[a->made++] = ids[n];
    return find_end(a, ends, t, ended, e);
}
