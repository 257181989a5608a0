#include "lib/spec_columns.h"
#include "lib/base/alloc.h"
#include "lib/base/decimal.h"
#include "lib/mixed.h"
#include "lib/policy.h"
#include "lib/scheme.h"
#include "lib/spec_impl.h"

#include <stdio.h>
#include <stdlib.h>

static const char of_policy[] = "policy.", policy_name[] = "policy.name";

/* The spec of one side; for a spec with a layer file, the spec itself. */
static const struct kv_spec *of_side(const struct kv_spec *s, enum kv_side side)
{
    return s->mixed && !s->mixed->n_layers ? kv_spec_at(s, 0, side) : s;
}

static bool side_value(const struct kv_spec *s, enum kv_side side,
                       const char *name, struct kv_spec_cell *c)
{
    const struct kv_spec *own = of_side(s, side);
    const size_t i = kv_spec_index(own->scheme, name, strlen(name));
    const struct kv_param *p = kv_spec_param(own->scheme, i);
    const double value = p ? own->value[side][i] : KV_AS_PLACED;
    size_t n = 0;

    if (!p || (own->mixed && value == KV_AS_PLACED))
        return false;
    c->number = !p->choices;
    if (c->number) {
        snprintf(c->text, sizeof(c->text), "%s", kv_decimal(value).text);
    } else {
        const char *word = kv_choice_at(p->choices, (size_t)value, &n);

        snprintf(c->text, sizeof(c->text), "%.*s", (int)n, word);
    }
    return true;
}

/* Whether both sides have the parameter, with the same value. */
static bool same_value(const struct kv_spec *s, const char *name,
                       struct kv_spec_cell *c)
{
    struct kv_spec_cell v;

    return side_value(s, KV_K, name, c) && side_value(s, KV_V, name, &v) &&
           !strcmp(c->text, v.text);
}

static bool policy_value(const struct kv_policy_spec *p, const char *name,
                         struct kv_spec_cell *c)
{
    if (!p->policy)
        return false;
    c->number = strcmp(name, "name");
    if (!c->number) {
        snprintf(c->text, sizeof(c->text), "%s", p->policy->name);
        return true;
    }
    for (size_t i = 0; p->policy->params[i].name; i++)
        if (!strcmp(p->policy->params[i].name, name)) {
            snprintf(c->text, sizeof(c->text), "%s",
                     kv_decimal(p->value[i]).text);
            return true;
        }
    return false;
}

static bool begins(const char *text, const char *with)
{
    return !strncmp(text, with, strlen(with));
}

bool kv_spec_cell(const struct kv_spec *s, const char *column,
                  struct kv_spec_cell *cell)
{
    if (begins(column, of_policy))
        return policy_value(&s->policy, column + strlen(of_policy), cell);
    for (int side = 0; side < KV_SIDES; side++)
        if (column[0] == kv_side_name((enum kv_side)side) && column[1] == '.')
            return side_value(s, (enum kv_side)side, column + 2, cell);
    return same_value(s, column, cell);
}

bool kv_spec_is_column(const char *column)
{
    const bool side = begins(column, "K.") || begins(column, "V.");
    const char *name = column + (side ? 2 : 0);

    for (size_t i = 0; kv_schemes[i]; i++)
        if (kv_spec_index(kv_schemes[i], name, strlen(name)) <
            kv_spec_n_params(kv_schemes[i]))
            return true;
    if (!begins(column, of_policy))
        return false;
    name = column + strlen(of_policy);
    for (size_t i = 0; kv_policies[i]; i++)
        for (const struct kv_param *p = kv_policies[i]->params; p->name; p++)
            if (!strcmp(p->name, name))
                return true;
    return !strcmp(column, policy_name);
}

/* ---- the columns of some specs ------------------------------------------- */

struct list {
    char **name;
    size_t n;
};

static void add(struct list *l, const char *before, const char *name)
{
    char text[64];

    snprintf(text, sizeof(text), "%s%s", before, name);
    for (size_t i = 0; i < l->n; i++)
        if (!strcmp(l->name[i], text))
            return;
    l->name = kv_realloc(l->name, l->n + 1, sizeof(*l->name));
    l->name[l->n++] = kv_strdup(text);
}

/* Adds a parameter's column, or one column per side if K and V differ. */
static void add_param(struct list l[1 + KV_SIDES], const struct kv_spec *s,
                      const char *name)
{
    static const char *const before[] = {[KV_K] = "K.", [KV_V] = "V."};
    struct kv_spec_cell c;

    if (same_value(s, name, &c)) {
        add(&l[0], "", name);
        return;
    }
    for (int side = 0; side < KV_SIDES; side++)
        if (side_value(s, (enum kv_side)side, name, &c))
            add(&l[1 + side], before[side], name);
}

static void add_spec(struct list l[1 + KV_SIDES], const struct kv_spec *s)
{
    for (int side = 0; side < KV_SIDES; side++) {
        const struct kv_spec *own = of_side(s, (enum kv_side)side);

        for (size_t i = 0; i < kv_spec_n_params(own->scheme); i++)
            if (!kv_spec_left_out(own, i))
                add_param(l, s, kv_spec_param(own->scheme, i)->name);
    }
}

static void add_policy(struct list *l, const struct kv_policy *p)
{
    if (!p)
        return;
    add(l, "", policy_name);
    for (size_t i = 0; p->params[i].name; i++)
        add(l, of_policy, p->params[i].name);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

char **kv_spec_columns(const struct kv_spec *specs, size_t n)
{
    enum { GROUPS = 1 + KV_SIDES + 1 };
    struct list l[GROUPS] = {{0}}, all = {0};

    for (size_t i = 0; i < n; i++) {
        add_spec(l, &specs[i]);
        add_policy(&l[GROUPS - 1], specs[i].policy.policy);
    }
    for (size_t g = 0; g < GROUPS; g++) {
        if (g < GROUPS - 1 && l[g].n)
            qsort(l[g].name, l[g].n, sizeof(*l[g].name), by_name);
        for (size_t i = 0; i < l[g].n; i++) {
            add(&all, "", l[g].name[i]);
            free(l[g].name[i]);
        }
        free(l[g].name);
    }
    all.name = kv_realloc(all.name, all.n + 1, sizeof(*all.name));
    all.name[all.n] = NULL;
    return all.name;
}

void kv_spec_columns_free(char **columns)
{
    for (size_t i = 0; columns && columns[i]; i++)
        free(columns[i]);
    free(columns);
}
