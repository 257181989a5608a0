/* lib/model: every architecture against what transformers computes, of tiny
 * random models (scripts/make-goldens.py). */
#include "eval/generate.h"
#include "kernels/backend.h"
#include "kernels/vecops/vecops.h"
#include "lib/base/alloc.h"
#include "lib/base/file.h"
#include "lib/model/backward.h"
#include "lib/model/model.h"
#include "lib/model/safetensors.h"
#include "tests/test.h"

#include <dirent.h>
#include <math.h>

struct golden {
    const char *name;
    struct kv_safetensors expected;
    double worst; /* error of keys and values */
};

/* NULL: there is none. */
static const struct kv_weight *find_if(const struct golden *g, const char *name)
{
    for (size_t i = 0; i < g->expected.n_weights; i++)
        if (!strcmp(g->expected.weight[i].name, name))
            return &g->expected.weight[i];
    return NULL;
}

static const struct kv_weight *find(const struct golden *g, const char *name)
{
    const struct kv_weight *w = find_if(g, name);

    if (!w)
        fail_msg("%s: expected.safetensors has no %s", g->name, name);
    return w;
}

static void check_rows(struct golden *g, const char *what,
                       const struct kv_qkv *x, const float *is)
{
    const size_t n = x->n * x->shape->n_kv_heads * x->shape->head_dim;
    char name[32];
    const struct kv_weight *w;
    float *expected;

    snprintf(name, sizeof(name), "%s.%zu", what,
             kv_shape_own(x->shape, x->layer));
    w = find(g, name);
    assert_true(w->n >= n);
    expected = kv_alloc(n, sizeof(*expected));
    kv_weight_dequantize(w, 0, n, expected);
    for (size_t i = 0; i < n; i++) {
        const double error = fabs((double)is[i] - (double)expected[i]);

        if (!(error <= 1e-5))
            fail_msg("%s: %s: value %zu is %.9g, not %.9g", g->name, name, i,
                     (double)is[i], (double)expected[i]);
        g->worst = error > g->worst ? error : g->worst;
    }
    free(expected);
}

/* RoPE makes k of k_pre. */
static void check_rope(const struct golden *g, const struct kv_qkv *x)
{
    const struct kv_shape *s = x->shape;
    const size_t n = x->n * s->n_kv_heads * s->head_dim;
    float *k = kv_alloc(n, sizeof(*k));
    struct kv_err e;

    memcpy(k, x->k_pre, n * sizeof(*k));
    assert_int_equal(x->backend->rotate(x->rope, kv_shape_pairs(s), x->n, k,
                                        x->n, s->n_kv_heads, s->head_dim, &e),
                     0);
    for (size_t i = 0; i < n; i++)
        if (!(fabs((double)k[i] - (double)x->k[i]) <= 1e-5))
            fail_msg("%s: layer %zu: value %zu of k_pre turns to %.9g, not "
                     "%.9g",
                     g->name, x->layer, i, (double)k[i], (double)x->k[i]);
    free(k);
}

static int check_layer(void *arg, const struct kv_qkv *x, struct kv_err *e)
{
    char name[32];

    snprintf(name, sizeof(name), "k_pre.%zu", kv_shape_own(x->shape, x->layer));
    check_rows(arg, "k", x, x->k);
    if (find_if(arg, name))
        check_rows(arg, "k_pre", x, x->k_pre);
    if (!x->shape->latent) { /* latent values are partly rotated keys */
        check_rows(arg, "v", x, x->v);
        check_rope(arg, x);
    }
    return kv_attend_exact(NULL, x, e);
}

static void check_losses(const struct golden *g, struct kv_model *m,
                         const float *hidden, const int32_t *tokens, size_t n)
{
    const struct kv_weight *w = find(g, "losses");
    struct kv_loss *loss = kv_alloc(n, sizeof(*loss));
    double worst = 0;
    struct kv_err e = {""};
    float expected;

    assert_true(w->n >= n - 1);
    if (kv_model_losses(
            m,
            &(struct kv_states){.n = n - 1, .hidden = &hidden, .n_hidden = 1},
            tokens + 1, &loss, &e))
        fail_msg("%s: %s", g->name, e.msg);
    for (size_t i = 0; i < n - 1; i++) {
        kv_weight_dequantize(w, i, 1, &expected);

        const double error = fabs((double)loss[i].nll / (double)expected - 1);

        if (!(error <= 1e-5))
            fail_msg("%s: loss %zu is %.9g, not %.9g", g->name, i,
                     (double)loss[i].nll, (double)expected);
        worst = error > worst ? error : worst;
    }
    print_message("%-12s %-11s %2zu tokens: losses within %.1e, keys and "
                  "values within %.1e\n",
                  g->name, kv_model_info(m)->name, n, worst, g->worst);
    free(loss);
}

static void check_first(struct golden *g, struct kv_model *m,
                        const int32_t *tokens, size_t n)
{
    const struct kv_attention attention = {.run = check_layer, .arg = g};
    float *hidden = kv_alloc(n * kv_model_info(m)->hidden, sizeof(*hidden));
    struct kv_err e = {""};

    if (kv_model_forward(m, tokens, 1, n, 0, &attention, hidden, &e))
        fail_msg("%s: %s", g->name, e.msg);
    check_losses(g, m, hidden, tokens, n);
    free(hidden);
}

/* Values of an I64 tensor, little endian, below 256; the caller frees them. */
static int32_t *ids_of(const struct golden *g, const char *name, size_t *n)
{
    const struct kv_weight *w = find(g, name);
    int32_t *ids = kv_alloc(w->n, sizeof(*ids));

    for (size_t i = 0; i < w->n; i++)
        ids[i] = w->data[8 * i];
    *n = w->n;
    return ids;
}

/* RoPE that depends on the length of a text changes in transformers while the
 * text grows; here it is the same for the whole text. */
static bool by_length(const struct golden *g)
{
    return !strcmp(g->name, "dynamic") || !strcmp(g->name, "longrope");
}

/* The greedy text of transformers' generate(). */
static void check_greedy(const struct golden *g, struct kv_model *m,
                         const int32_t *tokens, size_t n)
{
    size_t n_new;
    int32_t *expected = ids_of(g, "greedy", &n_new);
    struct kv_spec spec;
    const struct kv_generation how = {.model = m, .batch = 1};
    struct kv_answer a = {
        .spec = &spec, .prompt = tokens, .n_prompt = n - n_new, .most = n_new};
    struct kv_err e = {""};

    if (kv_spec_parse(&spec, "f32", &e) ||
        kv_spec_fit(&spec, &kv_model_info(m)->shape, &e) ||
        kv_generate(&how, &a, 1, &e))
        fail_msg("%s: %s", g->name, e.msg);
    assert_int_equal(a.made, n_new);
    for (size_t i = 0; i < n_new && !by_length(g); i++)
        if (a.ids[i] != expected[i])
            fail_msg("%s: new token %zu is %d, transformers writes %d", g->name,
                     i, (int)a.ids[i], (int)expected[i]);
    kv_answer_clear(&a);
    free(expected);
}

/* path: the model's folder, or a GGUF file in it. */
static void check_model(const char *folder, const char *path, const char *name)
{
    struct golden g = {.name = name};
    char *file = kv_path_join(folder, "expected.safetensors");
    struct kv_err e = {""};
    struct kv_model *m = NULL;
    int32_t *tokens;
    size_t n;

    if (kv_safetensors_open(&g.expected, file, &e) ||
        kv_model_open(&m, path, &e))
        fail_msg("%s", e.msg);
    tokens = ids_of(&g, "tokens", &n);
    kv_model_context(m, n);
    assert_true(n > KV_FEW_ROWS);
    check_first(&g, m, tokens, n);
    check_first(&g, m, tokens, KV_FEW_ROWS); /* by stored matrices */
    check_greedy(&g, m, tokens, n);
    free(tokens);
    kv_model_free(m);
    kv_safetensors_clear(&g.expected);
    free(file);
}

static void check_folder(const char *all, const char *name)
{
    char *folder = kv_path_join(all, name);
    char *gguf = kv_path_join(folder, "model.gguf");

    check_model(folder, folder, name);
    if (kv_file_exists(gguf))
        check_model(folder, gguf, name);
    free(gguf);
    free(folder);
}

static const char *goldens; /* the folder of folders; NULL: the tree's */

static void test_every_folder(void **state)
{
    char *folder = goldens
                       ? kv_strdup(goldens)
                       : kv_path_join(getenv("KV_SOURCE_ROOT"), "tests/golden");
    DIR *dir = opendir(folder);
    size_t n = 0;

    (void)state;
    assert_non_null(dir);
    for (struct dirent *d; (d = readdir(dir)); n++)
        if (*d->d_name != '.')
            check_folder(folder, d->d_name);
    closedir(dir);
    free(folder);
    assert_true(n > 0);
}

static int no_gradients(void *arg, const struct kv_gradient *g,
                        struct kv_err *e)
{
    (void)arg, (void)g, (void)e;
    return 0;
}

/* A table of positions is limited; the backward pass exists only for Llama. */
static void test_refusals(void **state)
{
    enum { N = 25 };
    char *path = kv_path_join(getenv("KV_SOURCE_ROOT"), "tests/golden/gpt2");
    const struct kv_gradient_sink sink = {.run = no_gradients};
    const int32_t tokens[N] = {0};
    struct kv_err e = {""};
    struct kv_model *m;
    float *hidden;

    (void)state;
    assert_int_equal(kv_model_open(&m, path, &e), 0);
    hidden = kv_alloc(N * kv_model_info(m)->hidden, sizeof(*hidden));
    assert_int_equal(kv_model_forward(m, tokens, 1, N, 0, NULL, hidden, &e),
                     -1);
    assert_says(e, "gpt2 has learned positions of 24 tokens: 25 are too many");
    assert_int_equal(kv_model_backward(m, tokens, 1, 4, 0, NULL, &sink, &e),
                     -1);
    assert_says(e, "LayerNorm, which a GPT2LMHeadModel has, is not");
    free(hidden);
    kv_model_free(m);
    free(path);
}

/* Ministral 3 multiplies queries by a factor after its first 24 tokens here;
 * longer texts are refused. */
static void test_limit(void **state)
{
    enum { N = 25 };
    char *path = kv_path_join(getenv("KV_SOURCE_ROOT"), "tests/golden");
    char *folder = kv_path_join(path, "ministral3");
    const int32_t tokens[N] = {0};
    struct kv_err e = {""};
    struct kv_model *m;
    float *hidden;

    (void)state;
    assert_int_equal(kv_model_open(&m, folder, &e), 0);
    hidden = kv_alloc(N * kv_model_info(m)->hidden, sizeof(*hidden));
    assert_int_equal(kv_model_forward(m, tokens, 1, N - 1, 0, NULL, hidden, &e),
                     0);
    assert_int_equal(kv_model_forward(m, tokens, 1, N, 0, NULL, hidden, &e),
                     -1);
    assert_says(e, "ministral3 scales queries after 24 tokens, which is not "
                   "implemented: 25 are too many");
    free(hidden);
    kv_model_free(m);
    free(folder);
    free(path);
}

/* test_golden [FOLDER]: others, as scripts/make-goldens.py --released. */
int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_folder),
                                       cmocka_unit_test(test_refusals),
                                       cmocka_unit_test(test_limit)};

    goldens = argc > 1 ? argv[1] : NULL;

    return cmocka_run_group_tests(tests, NULL, NULL);
}
