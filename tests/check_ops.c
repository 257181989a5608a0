/* Every version of every operation of the families' tables (KV_VERSIONS,
 * kernels/level.h) against plain C, on the inputs of tests/ops/.
 *
 *   check_ops [--bench] [FAMILY]
 *
 * --bench: also times what it compared, of the sizes that are realistic, and
 * prints CSV: the median of 15 runs, versions by turns, and how many times as
 * fast as plain C.  A member of a table that no operation runs is an error. */
#include "eval/timing.h"
#include "kernels/level.h"
#include "lib/base/alloc.h"
#include "lib/base/opt.h"
#include "lib/base/progress.h"
#include "tests/ops/ops.h"

#include <float.h>
#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct check_family *const families[] = {
    &check_vecops,   &check_tiles,     &check_nearest, &check_trellis,
    &check_hack,     &check_integers,  &check_scaled,  &check_scaled_int8,
    &check_codebook, &check_transform, &check_weights,
};

/* avx512 runs what the CPU has of it: kv_level_vnni(). */
static const struct version {
    const char *name;
    enum kv_level level;
    bool pairs; /* kv_level_pairs() */
} versions[] = {{"c", KV_LEVEL_C, false},
                {"avx2", KV_LEVEL_AVX2, false},
                {"avx512", KV_LEVEL_AVX512, false},
                {"avx512-pairs", KV_LEVEL_AVX512, true}};

enum { CANARY = 64, SAMPLES = 15, POISON = 0xa5, OTHER_POISON = 0x5a };

struct check {
    const struct check_family *family;
    const struct check_op *op;
    struct check_size size;
    const void *in;
    uint8_t *want, *got; /* [CHECK_MAX_OUT + CANARY], poisoned between runs */
    bool failed;
    size_t *op_failed; /* [n_ops], how often */
};

static size_t n_versions(const struct check_family *f)
{
    const size_t levels = (size_t)kv_level_max() + 1;

    return levels + (f->pairs && kv_level_max() == KV_LEVEL_AVX512);
}

static void use(const struct version *v)
{
    struct kv_err e;

    if (kv_level_set(v->level, &e))
        kv_die("%s", e.msg);
    kv_level_set_pairs(v->pairs);
}

/* Says the first few of an operation. */
static void fail(struct check *c, const char *version, const char *words)
{
    enum { FEW = 3 };

    if (c->op_failed[c->op - c->family->op]++ < FEW)
        fprintf(stderr, "check_ops: %s, %s, %s, %s: %s\n", c->family->name,
                c->op->name, c->size.label, version, words);
    c->failed = true;
}

/* Checks the bytes written, and that nothing after them is touched. */
static size_t run(struct check *c, const struct version *v, uint8_t *out,
                  uint8_t poison)
{
    size_t n;

    use(v);
    n = c->op->run(c->in, out);
    if (n == CHECK_NONE)
        return n;
    for (size_t i = n; i < n + CANARY; i++)
        if (out[i] != poison) {
            fail(c, v->name, "wrote past its output");
            break;
        }
    return n;
}

/* The index of the first byte that differs, or n. */
static size_t different(const uint8_t *a, const uint8_t *b, size_t n)
{
    size_t i = 0;

    while (i < n && a[i] == b[i])
        i++;
    return i;
}

/* The first float further from plain C than the tolerance, or what the least
 * normal float is rounded by, allows; or n. */
static size_t too_far(const float *want, const float *got, size_t n,
                      double tolerance)
{
    double max = 0;
    size_t i = 0;

    for (size_t j = 0; j < n; j++)
        max = fmax(max, fabs((double)want[j]));
    while (i < n && fabs((double)got[i] - (double)want[i]) <=
                        tolerance * max + (double)FLT_MIN)
        i++;
    return i;
}

static void compare(struct check *c, const char *version, size_t n)
{
    const float *want = (const void *)c->want, *got = (const void *)c->got;
    const double tolerance = c->op->tolerance;
    const size_t all = tolerance > 0 ? n / sizeof(float) : n;
    const size_t at = tolerance > 0 ? too_far(want, got, all, tolerance)
                                    : different(c->want, c->got, all);
    char words[160];

    if (at == all)
        return;
    if (tolerance > 0)
        snprintf(words, sizeof(words),
                 "float %zu of %zu is %.9g, in plain C %.9g (tolerance %g)", at,
                 all, (double)got[at], (double)want[at], tolerance);
    else
        snprintf(words, sizeof(words),
                 "byte %zu of %zu is 0x%02x, in plain C 0x%02x", at, all,
                 c->got[at], c->want[at]);
    fail(c, version, words);
}

/* False: the operation does not take this input. */
static bool compare_versions(struct check *c)
{
    const size_t n = run(c, &versions[0], c->want, POISON);

    if (n == CHECK_NONE)
        return false;
    for (size_t v = 1; v < n_versions(c->family); v++) {
        if (run(c, &versions[v], c->got, OTHER_POISON) != n)
            fail(c, versions[v].name, "another number of bytes");
        compare(c, versions[v].name, n);
        memset(c->got, OTHER_POISON, n + CANARY);
    }
    memset(c->want, POISON, n + CANARY);
    return true;
}

/* ---- times ---------------------------------------------------------------
 */

static double seconds(const struct check *c, size_t version, size_t repeat)
{
    double start;

    use(&versions[version]);
    start = kv_seconds();
    for (size_t i = 0; i < repeat; i++)
        c->op->run(c->in, c->got);
    return kv_seconds() - start;
}

static void time_versions(const struct check *c)
{
    static const double ENOUGH = 5e-5; /* seconds of a sample */
    double took[COUNT(versions)][SAMPLES], c_time = 0;
    const size_t n = n_versions(c->family);
    size_t repeat[COUNT(versions)];

    for (size_t v = 0; v < n; v++)
        for (repeat[v] = 1; seconds(c, v, repeat[v]) < ENOUGH;)
            repeat[v] *= 2;
    for (size_t i = 0; i < SAMPLES; i++)
        for (size_t v = 0; v < n; v++)
            took[v][i] = seconds(c, v, repeat[v]) / (double)repeat[v];
    for (size_t v = 0; v < n; v++) {
        const double median = kv_quantile(took[v], SAMPLES, 0.5);

        c_time = v ? c_time : median;
        printf("%s,%s,%s,%s,%.1f,%.2f\n", c->family->name, c->op->name,
               c->size.label, versions[v].name, 1e9 * median, c_time / median);
    }
    memset(c->got, OTHER_POISON, CHECK_MAX_OUT + CANARY);
}

/* ---- families ------------------------------------------------------------
 */

/* Every member of the table is run, and every operation at some size. */
static void check_coverage(struct check *c, const bool *ran)
{
    uint64_t all = 0;

    for (size_t i = 0; i < c->family->n_ops; i++) {
        c->op = &c->family->op[i];
        all |= c->op->runs;
        if (!ran[i])
            fail(c, "all versions", "took no input");
    }
    for (size_t i = 0; i < c->family->members; i++)
        if (!(all >> i & 1)) {
            fprintf(stderr,
                    "check_ops: %s: no operation runs member %zu of the table "
                    "of versions\n",
                    c->family->name, i);
            c->failed = true;
        }
}

static void check_family(struct check *c, bool bench)
{
    const struct check_family *f = c->family;
    bool *ran = kv_alloc(f->n_ops, sizeof(*ran));
    void *in;

    c->op_failed = kv_alloc(f->n_ops, sizeof(*c->op_failed));
    for (size_t i = 0; (in = f->open(i, &c->size)); i++) {
        c->in = in;
        for (char *s = c->size.label; *s; s++)
            *s = *s == ',' ? ';' : *s; /* a cell of CSV */
        for (size_t j = 0; j < f->n_ops; j++) {
            c->op = &f->op[j];
            if (!compare_versions(c))
                continue;
            ran[j] = true;
            if (bench && c->size.timed)
                time_versions(c);
        }
        f->close(in);
        c->size = (struct check_size){.label = "all sizes"};
    }
    check_coverage(c, ran);
    free(c->op_failed);
    free(ran);
}

int main(int argc, char **argv)
{
    const bool bench = argc > 1 && !strcmp(argv[1], "--bench");
    const char *only = argc > 1 + bench ? argv[1 + bench] : NULL;
    struct check c = {.want = kv_lines(CHECK_MAX_OUT + CANARY, 1),
                      .got = kv_lines(CHECK_MAX_OUT + CANARY, 1)};
    size_t n = 0;

    omp_set_num_threads(1);
    memset(c.want, POISON, CHECK_MAX_OUT + CANARY);
    memset(c.got, OTHER_POISON, CHECK_MAX_OUT + CANARY);
    if (bench)
        printf("family,operation,size,version,ns,speedup\n");
    for (size_t i = 0; i < COUNT(families); i++) {
        c.family = families[i];
        if (only && strcmp(only, c.family->name) != 0)
            continue;
        check_family(&c, bench);
        n++;
    }
    free(c.want);
    free(c.got);
    if (!n || argc > 2 + bench)
        kv_die("usage: check_ops [--bench] [FAMILY]");
    kv_close_stdout();
    return c.failed ? KV_EXIT_NO : KV_EXIT_OK;
}
