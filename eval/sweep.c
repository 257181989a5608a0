#include "eval/sweep.h"
#include "lib/base/alloc.h"
#include "lib/base/progress.h"
#include "lib/mixed.h"
#include "lib/policy.h"
#include "lib/scheme.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A requested spec and the spec that runs. */
struct row {
    struct kv_spec asked, run;
};

/* Whether the spec keeps sinks or a residual: r or s is not 0, and it was given
 * or differs from the scheme's default. */
static bool keeps(const struct kv_spec *s)
{
    static const char *const letter[] = {"r", "s"};
    struct kv_spec own;
    bool is = false;

    for (size_t i = 0; s->mixed && i < kv_spec_members(s); i++)
        is = is || keeps(kv_spec_member(s, i));
    if (s->mixed || kv_spec_parse(&own, s->scheme->name, NULL))
        return is;
    for (size_t i = 0; i < 2 * (size_t)KV_SIDES; i++) {
        const enum kv_side side = (enum kv_side)(i / 2);
        const double x = kv_spec_get(s, side, letter[i % 2]);

        is = is || (x != 0 &&
                    (s->keeps || x != kv_spec_get(&own, side, letter[i % 2])));
    }
    return is;
}

/* Notes the first spec whose r or s the protocol sets to 0; one note
 * suffices. */
static void note_dropped(const struct kv_sweep *s, const struct kv_spec *asked,
                         size_t n)
{
    const struct kv_protocol *p = s->protocol;

    if (!p || kv_protocol_steps(p) || p->keep_window)
        return;
    for (size_t i = 0; i < n; i++)
        if (!kv_policy_drops(&asked[i].policy) && keeps(&asked[i])) {
            kv_note("%s: protocol %s sets r and s to 0, in all rows "
                    "(--keep-window keeps them)",
                    asked[i].given, p->text);
            return;
        }
}

/* Applies the protocol and fits the spec. */
static int prepare(const struct kv_sweep *s, struct row *row, struct kv_err *e)
{
    if (!s->protocol && kv_policy_dense(&row->asked, 1, e))
        return -1;
    row->run = row->asked;
    if (s->protocol && !kv_policy_drops(&row->asked.policy))
        kv_protocol_spec(s->protocol, &row->run);
    return kv_spec_fit(&row->run, s->shape, e);
}

/* Notes the first fp8 spec with a scale of 1 if the model's files hold scales
 * of an fp8 cache. */
static void note_scale(const struct kv_sweep *s, const struct row *rows,
                       size_t n)
{
    for (size_t i = 0; s->shape->cache_scale && i < n; i++) {
        const struct kv_spec *run = &rows[i].run;

        if (run->mixed || strcmp(run->scheme->name, "fp8") ||
            !kv_spec_is(run, KV_K, "scale", "none"))
            continue;
        kv_note("%s has a scale of 1; the model's files hold scales of an fp8 "
                "cache, which vLLM takes, as modelopt:fp8 does",
                rows[i].asked.given);
        return;
    }
}

/* Whether two specs, equal under the protocol, would differ without it. */
static bool protocol_joins(const struct kv_sweep *s, const struct row *a,
                           const struct row *b)
{
    struct kv_spec x = a->asked, y = b->asked;

    return s->protocol &&
           (kv_spec_fit(&x, s->shape, NULL) ||
            kv_spec_fit(&y, s->shape, NULL) || strcmp(x.text, y.text) != 0);
}

/* Notes why a spec gets no row of its own. */
static void note_again(const struct kv_sweep *s, const struct row *first,
                       const struct row *again, bool is_base)
{
    const char *given = again->asked.given, *text = again->run.text;

    if (protocol_joins(s, first, again))
        kv_note("%s is %s here (protocol %s sets r and s to 0; --keep-window "
                "keeps them): one row",
                given, text, s->protocol->text);
    else if (is_base)
        kv_note("%s is the base line, %s: one row", given, text);
    else if (!strcmp(given, first->asked.given))
        kv_note("%s is asked for again: one row", given);
    else
        kv_note("%s is %s here, as %s is: one row", given, text,
                first->asked.given);
}

/* Whether the last of n rows equals an earlier one. */
static bool comes_again(const struct kv_sweep *s, const struct row *rows,
                        size_t n)
{
    const struct row *last = &rows[n - 1];
    size_t i = 0;

    while (strcmp(rows[i].run.text, last->run.text))
        i++;
    if (i < n - 1)
        note_again(s, &rows[i], last, s->base && i == 0);
    return i < n - 1;
}

/* Adds the spec of this text, or if text is NULL this spec, unless a row equals
 * it. */
static int add(const struct kv_sweep *s, struct row *rows, size_t *n,
               const char *text, const struct kv_spec *spec, struct kv_err *e)
{
    struct row *row = &rows[*n];

    if (text ? kv_spec_parse(&row->asked, text, e) : (row->asked = *spec, 0))
        return -1;
    if (prepare(s, row, e))
        return -1;
    *n += !comes_again(s, rows, *n + 1);
    return 0;
}

/* Lists the specs of this shard's rows, then the specs of the other shards. */
static void take(const struct kv_shard *shard, const struct row *rows, size_t n,
                 struct kv_spec *list, size_t *n_own)
{
    size_t at = 0;

    for (int own = 1; own >= 0; own--) {
        for (size_t i = 0; i < n; i++)
            if ((i % shard->n == shard->i - 1) == own)
                list[at++] = rows[i].run;
        *n_own = own ? at : *n_own;
    }
}

int kv_sweep_list(const struct kv_sweep *s, struct kv_spec **list, size_t *n,
                  size_t *n_all, struct kv_err *e)
{
    struct kv_spec *asked = NULL;
    struct row *rows = NULL;
    size_t n_asked, n_rows = 0;
    int rc = -1;

    if (kv_spec_expand(s->specs->item, s->specs->n, &asked, &n_asked, e))
        return -1;
    rows = kv_alloc(n_asked + 2, sizeof(*rows));
    note_dropped(s, asked, n_asked);
    if ((s->base && add(s, rows, &n_rows, s->base, NULL, e)) ||
        (s->floor && add(s, rows, &n_rows, s->floor, NULL, e)))
        goto out;
    for (size_t i = 0; i < n_asked; i++)
        if (add(s, rows, &n_rows, NULL, &asked[i], e))
            goto out;
    *list = kv_alloc(n_rows, sizeof(**list));
    take(&s->shard, rows, n_rows, *list, n);
    *n_all = n_rows;
    note_scale(s, rows, n_rows);
    rc = 0;
out:
    free(rows);
    free(asked);
    return rc;
}
