/* Chooses the columns of a table, and their order. */
#include "lib/base/alloc.h"
#include "lib/results_impl.h"
#include "lib/spec_columns.h"

#include <stdlib.h>
#include <string.h>

static const char params[] = "params", params_dot[] = "params.";

/* The part of a name after "params.", or NULL. */
static const char *param_of(const char *name)
{
    return strncmp(name, params_dot, strlen(params_dot))
               ? NULL
               : name + strlen(params_dot);
}

size_t kv_results_find(const struct kv_results *r, const char *name)
{
    size_t i = 0;

    while (i < r->n && strcmp(r->name[i], name))
        i++;
    return i;
}

size_t kv_results_add_name(struct kv_results *r, const char *name)
{
    r->name = kv_realloc(r->name, r->n + 1, sizeof(*r->name));
    r->name[r->n] = kv_strdup(name);
    return r->n++;
}

static void show(struct kv_results *r, size_t i)
{
    r->shown = kv_realloc(r->shown, r->n_shown + 1, sizeof(*r->shown));
    r->shown[r->n_shown++] = i;
}

static bool is_shown(const struct kv_results *r, size_t i)
{
    for (size_t j = 0; j < r->n_shown; j++)
        if (r->shown[j] == i)
            return true;
    return false;
}

static int fail_unknown(const struct kv_results *r, const char *name,
                        bool has_params, struct kv_err *e)
{
    char known[sizeof(e->msg)] = "";
    size_t n = 0;

    for (size_t i = 0; i < r->n_own && n < sizeof(known); i++)
        n += (size_t)snprintf(known + n, sizeof(known) - n, "%s%s",
                              i ? ", " : "", r->name[i]);
    return kv_fail(
        e, "--columns: unknown column '%.64s': expected some of %s%s", name,
        known, has_params ? ", params (all parameters), params.b (one)" : "");
}

/* Adds one name of --columns, other than "params". */
static int choose_one(struct kv_results *r, const char *name, bool has_params,
                      struct kv_err *e)
{
    size_t i = kv_results_find(r, name);
    const char *param = has_params ? param_of(name) : NULL;

    if (i == r->n && param && kv_spec_is_column(param))
        i = kv_results_add_name(r, name);
    if (i == r->n)
        return fail_unknown(r, name, has_params, e);
    if (is_shown(r, i))
        return kv_fail(e, "--columns: %s is given twice", name);
    show(r, i);
    return 0;
}

static bool among(char *const *names, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++)
        if (!strcmp(names[i], name))
            return true;
    return false;
}

/* Adds the names [n] of --columns; "params" means every parameter that is not
 * listed by itself. */
static int choose(struct kv_results *r, char *const *names, size_t n,
                  const struct kv_results_form *form, struct kv_err *e)
{
    const size_t end = r->n;

    for (size_t i = 0; i < n; i++) {
        if (!*names[i])
            return kv_fail(e, "--columns: a name is missing: expected names of "
                              "columns with commas between");
        if (!form->params || strcmp(names[i], params)) {
            if (choose_one(r, names[i], form->params, e))
                return -1;
            continue;
        }
        if (among(names, i, params))
            return kv_fail(e, "--columns: %s is given twice", params);
        for (size_t j = r->n_own; j < end; j++)
            if (!among(names, n, r->name[j]))
                show(r, j);
    }
    return 0;
}

static int read_chosen(struct kv_results *r, const struct kv_results_form *form,
                       struct kv_err *e)
{
    char *text = kv_strdup(form->chosen), *at = text, **names = NULL;
    size_t n = 0;
    int rc;

    for (char *name; (name = strsep(&at, ","));) {
        names = kv_realloc(names, n + 1, sizeof(*names));
        names[n++] = name;
    }
    rc = choose(r, names, n, form, e);
    free(names);
    free(text);
    return rc;
}

/* The order of columns in a JSON object: plain members first, then each nested
 * object. */
enum { RANKS = 4 };
static int rank(const char *name)
{
    const char *param = param_of(name);

    return !param                     ? 0
           : !strchr(param, '.')      ? 1
           : !strncmp(param, "K.", 2) ? 2
           : !strncmp(param, "V.", 2) ? 3
                                      : 4;
}

/* For JSON lines: moves all parameters to the position of the first
 * parameter. */
static void gather(struct kv_results *r)
{
    size_t *shown = kv_alloc(r->n_shown, sizeof(*shown)), n = 0;
    bool done = false;

    for (size_t i = 0; i < r->n_shown; i++) {
        const bool param = rank(r->name[r->shown[i]]);

        if (!param)
            shown[n++] = r->shown[i];
        for (int k = 1; k <= RANKS && param && !done; k++)
            for (size_t j = i; j < r->n_shown; j++)
                if (rank(r->name[r->shown[j]]) == k)
                    shown[n++] = r->shown[j];
        done = done || param;
    }
    free(r->shown);
    r->shown = shown;
}

static void add_param(struct kv_results *r, const char *param)
{
    char name[64];

    snprintf(name, sizeof(name), "%s%s", params_dot, param);
    kv_results_add_name(r, name);
}

int kv_results_choose(struct kv_results *r, const struct kv_results_form *form,
                      const char *const *columns, struct kv_err *e)
{
    for (; columns[r->n_own]; r->n_own++)
        kv_results_add_name(r, columns[r->n_own]);
    for (size_t i = 0; form->params && form->params[i]; i++)
        add_param(r, form->params[i]);
    if (form->chosen && read_chosen(r, form, e))
        return -1;
    for (size_t i = 0; !form->chosen && i < r->n; i++)
        show(r, i);
    if (r->format == KV_JSONL)
        gather(r);
    r->cell = kv_alloc(r->n, sizeof(*r->cell));
    return 0;
}

void kv_results_params(struct kv_results *r, const struct kv_spec *s)
{
    for (size_t i = r->n_own; i < r->n; i++) {
        struct kv_spec_cell c;

        if (!kv_spec_cell(s, param_of(r->name[i]), &c))
            continue;
        free(r->cell[i].text);
        r->cell[i] = (struct cell){kv_strdup(c.text), strlen(c.text), c.number};
    }
}
