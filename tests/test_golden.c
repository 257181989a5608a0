/* Every folder of tests/golden: losses, keys and values as transformers has
 * them (scripts/make-goldens.py). */
#include "lib/base/alloc.h"
#include "lib/base/file.h"
#include "lib/model/model.h"
#include "lib/model/safetensors.h"
#include "tests/test.h"

#include <dirent.h>
#include <math.h>

struct golden {
    const char *name;
    struct kv_safetensors expected;
};

/* A new array; *n values. */
static float *expected(const struct golden *g, const char *name, size_t *n)
{
    float *x;

    for (size_t i = 0; i < g->expected.n_weights; i++) {
        const struct kv_weight *w = &g->expected.weight[i];

        if (strcmp(w->name, name) != 0)
            continue;
        *n = w->n;
        x = kv_alloc(w->n, sizeof(*x));
        kv_weight_dequantize(w, 0, w->n, x);
        return x;
    }
    fail_msg("%s: no %s", g->name, name);
    return NULL;
}

/* Equal but for 1e-5 of the largest. */
static void check(const struct golden *g, const char *name, const float *is,
                  size_t n)
{
    size_t n_should;
    float *should = expected(g, name, &n_should);
    double largest = 0;

    assert_int_equal(n, n_should);
    for (size_t i = 0; i < n; i++)
        largest = fmax(largest, fabs((double)should[i]));
    for (size_t i = 0; i < n; i++)
        if (!(fabs((double)is[i] - (double)should[i]) <= 1e-5 * largest))
            fail_msg("%s: %s: value %zu of %zu is %.9g, not %.9g", g->name,
                     name, i, n, (double)is[i], (double)should[i]);
    free(should);
}

static int check_layer(void *arg, const struct kv_qkv *x, struct kv_err *e)
{
    const size_t n = x->n * x->shape->n_kv_heads * x->shape->head_dim;
    char name[16];

    snprintf(name, sizeof(name), "k.%zu", x->layer);
    check(arg, name, x->n_windows == 1 ? x->k : NULL, n);
    snprintf(name, sizeof(name), "v.%zu", x->layer);
    check(arg, name, x->v, n);
    return kv_attend_exact(NULL, x, e);
}

static void check_model(struct golden *g, const char *dir)
{
    const struct kv_attention attention = {check_layer, g};
    struct kv_err e = {""};
    struct kv_model *m;
    size_t n = 0;
    float *ids = expected(g, "tokens", &n), *hidden, *loss;
    int32_t *tokens = kv_alloc(n, sizeof(*tokens));
    struct kv_loss *got = kv_alloc(n, sizeof(*got));

    for (size_t i = 0; i < n; i++)
        tokens[i] = (int32_t)ids[i];
    if (kv_model_open(&m, dir, &e))
        fail_msg("%s", e.msg);
    hidden = kv_alloc(n, kv_model_info(m)->hidden * sizeof(*hidden));
    loss = kv_alloc(n, sizeof(*loss));
    if (kv_model_forward(m, tokens, 1, n, 0, &attention, hidden, &e) ||
        kv_model_losses(m, hidden, NULL, n - 1, tokens + 1, got, &e))
        fail_msg("%s: %s", g->name, e.msg);
    for (size_t i = 0; i + 1 < n; i++)
        loss[i] = got[i].nll;
    check(g, "loss", loss, n - 1);
    kv_model_free(m);
    free(loss);
    free(hidden);
    free(got);
    free(tokens);
    free(ids);
}

static void test_goldens(void **state)
{
    char *top = kv_path_join(getenv("KV_SOURCE_ROOT"), "tests/golden");
    DIR *d = opendir(top);
    size_t n = 0;

    (void)state;
    assert_non_null(d);
    for (struct dirent *f; (f = readdir(d));) {
        char *dir = kv_path_join(top, f->d_name);
        char *path = kv_path_join(dir, "expected.safetensors");
        struct golden g = {.name = f->d_name};
        struct kv_err e = {""};

        if (kv_file_exists(path)) {
            if (kv_safetensors_open(&g.expected, path, &e))
                fail_msg("%s", e.msg);
            check_model(&g, dir);
            kv_safetensors_clear(&g.expected);
            n++;
        }
        free(path);
        free(dir);
    }
    closedir(d);
    free(top);
    assert_true(n > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_goldens)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
