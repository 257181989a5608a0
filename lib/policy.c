#include "lib/policy.h"
#include "lib/base/alloc.h"
#include "lib/base/decimal.h"
#include "lib/policies/policies.h"
#include "lib/spec_impl.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define LISTED(name) &kv_policy_##name,
const struct kv_policy *const kv_policies[] = {KV_POLICIES(LISTED) NULL};
#undef LISTED

static size_t n_params(const struct kv_policy *p)
{
    size_t n = 0;

    while (p->params[n].name)
        n++;
    return n;
}

static size_t index_of(const struct kv_policy *p, char name)
{
    size_t i = 0;

    while (i < n_params(p) && p->params[i].name[0] != name)
        i++;
    return i;
}

double kv_policy_get(const struct kv_policy_spec *p, const char *name)
{
    const size_t i = index_of(p->policy, *name);

    if (i == n_params(p->policy))
        abort(); /* a bug: the policy has no such letter */
    return p->value[i];
}

/* ---- text ---------------------------------------------------------------- */

static const struct kv_policy *find(const char *name, size_t n)
{
    for (size_t i = 0; kv_policies[i]; i++)
        if (strlen(kv_policies[i]->name) == n &&
            !memcmp(kv_policies[i]->name, name, n))
            return kv_policies[i];
    return NULL;
}

/* Writes "s (0 to 1048576), w (1 to 1048576)". */
static void known_letters(const struct kv_policy *p, char *text, size_t n)
{
    size_t used = 0;

    for (size_t i = 0; i < n_params(p) && used + 1 < n; i++)
        used += (size_t)snprintf(text + used, n - used, "%s%s (%s to %s)",
                                 i ? ", " : "", p->params[i].name,
                                 kv_decimal(p->params[i].min).text,
                                 kv_decimal(p->params[i].max).text);
}

static int read_letter(struct kv_policy_spec *p, const char **at, bool *given,
                       struct kv_err *e)
{
    const size_t i = index_of(p->policy, **at);
    const struct kv_param *param = &p->policy->params[i];
    const size_t n = strspn(*at + 1, "0123456789.");
    char number[24] = "", known[256];
    double value;

    if (i == n_params(p->policy)) {
        known_letters(p->policy, known, sizeof(known));
        return kv_fail(e, "%s has no '%c'; it has %s", p->policy->name, **at,
                       known);
    }
    if (given[i])
        return kv_fail(e, "'%s' is given twice", param->name);
    if (!n || n >= sizeof(number))
        return kv_fail(e, "'%s' wants a number, not '%.*s%s'", param->name,
                       KV_SHOWN(*at + 1, strlen(*at + 1)));
    memcpy(number, *at + 1, n);

    char *stop;

    value = strtod(number, &stop);
    if (*stop || (param->min == floor(param->min) && value != floor(value)))
        return kv_fail(e, "'%s' wants a %snumber, not '%s'", param->name,
                       *stop ? "" : "whole ", number);
    if (value < param->min || value > param->max)
        return kv_fail(e, "%s=%s is out of range: expected %s to %s",
                       param->name, kv_decimal(value).text,
                       kv_decimal(param->min).text,
                       kv_decimal(param->max).text);
    given[i] = true;
    p->value[i] = value;
    *at += 1 + n;
    return 0;
}

const char *kv_policy_parse(struct kv_policy_spec *p, const char *text,
                            struct kv_err *e)
{
    const size_t n = strcspn(text, ":,+");
    const char *at = text + n;
    bool given[KV_POLICY_PARAMS] = {false};

    *p = (struct kv_policy_spec){.policy = find(text, n)};
    if (!p->policy)
        return text;
    for (size_t i = 0; i < n_params(p->policy); i++)
        p->value[i] = p->policy->params[i].fallback;
    if (*at == ':')
        at++;
    while (*at && *at != '+' && *at != ',')
        if (read_letter(p, &at, given, e))
            return NULL;
    if (*at == '+')
        return at + 1;
    kv_fail(e, "a policy stands before a spec: %.*s+kivi:b2g32",
            (int)(at - text), text);
    return NULL;
}

int kv_policy_print(const struct kv_policy_spec *p, char *text, size_t n)
{
    int used;

    if (!p->policy)
        return snprintf(text, n, "%s", "");
    used = snprintf(text, n, "%s:", p->policy->name);
    for (size_t i = 0; i < n_params(p->policy) && (size_t)used < n; i++)
        used +=
            snprintf(text + used, n - (size_t)used, "%s%s",
                     p->policy->params[i].name, kv_decimal(p->value[i]).text);
    if ((size_t)used < n)
        used += snprintf(text + used, n - (size_t)used, "+");
    return used;
}

bool kv_policy_drops(const struct kv_policy_spec *p)
{
    return p->policy && !p->policy->patterns;
}

bool kv_policy_calibrated(const struct kv_policy_spec *p)
{
    return p->policy && p->policy->patterns && p->policy->patterns->search;
}

void kv_policy_calib_key(const struct kv_policy_spec *p,
                         char key[KV_SPEC_CHARS])
{
    const int n = kv_policy_print(p, key, KV_SPEC_CHARS);

    key[n - 1] = 0; /* the '+' */
}

int kv_policy_dense(const struct kv_spec *specs, size_t n, struct kv_err *e)
{
    for (size_t i = 0; i < n; i++)
        if (specs[i].policy.policy && specs[i].policy.policy->patterns)
            return kv_fail(e,
                           "%s: attention is dense here: %s goes with kvppl, "
                           "protocols all, llama.cpp and prefill:P",
                           specs[i].given, specs[i].policy.policy->name);
    return 0;
}

int kv_policy_on_device(const struct kv_spec *specs, size_t n, struct kv_err *e)
{
    for (size_t i = 0; i < n; i++)
        if (specs[i].policy.policy && specs[i].policy.policy->patterns)
            return kv_fail(e,
                           "%s: patterns of prompts run on the CPU alone, not "
                           "with --device",
                           specs[i].text);
    return 0;
}

/* ---- choice -------------------------------------------------------------- */

size_t kv_policy_tokens(double budget, size_t n)
{
    return (size_t)(budget > 1 ? floor(budget) : ceil(budget * (double)n));
}

struct candidate {
    double score;
    size_t i;
};

static int better(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;

    if (x->score != y->score)
        return x->score < y->score ? 1 : -1;
    return x->i < y->i ? 1 : -1; /* the newer token first */
}

void kv_policy_choose(const struct kv_policy_plan *plan, const double *score,
                      size_t n, bool *keep)
{
    const size_t first = plan->first < n ? plan->first : n;
    const size_t newest = plan->newest < n - first ? plan->newest : n - first;
    size_t left = plan->budget - first - newest;
    const size_t others = n - first - newest;
    struct candidate *among;

    if (n <= plan->budget) {
        for (size_t i = 0; i < n; i++)
            keep[i] = true;
        return;
    }
    among = kv_alloc(others, sizeof(*among));
    for (size_t i = 0; i < n; i++)
        keep[i] = i < first || i >= n - newest;
    for (size_t i = 0; i < others; i++)
        among[i] = (struct candidate){score[first + i], first + i};
    qsort(among, others, sizeof(*among), better);
    for (size_t i = 0; i < others && left; i++, left--)
        keep[among[i].i] = true;
    free(among);
}
