#include "eval/serving/measured_rows.h"
#include "lib/base/alloc.h"
#include "lib/base/file.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { COLUMNS = 12 };

/* The columns that each table must have. */
static const char *const needed[KV_MEASURED_TABLES][COLUMNS] = {
    {"tool", "spec", "layer", "side", "bits"},
    {"tool", "spec", "model", "device", "ctx", "windows", "protocol", "bits",
     "lat_us_p50", "quantize_us_p50", "decode_us_p50"},
    {"tool", "model", "device", "protocol", "windows", "lat_us_p50",
     "attention_us"}};
static const char *const tools[] = {"kvquant", "kvattn", "kvattn -m"};

/* ---- tables --------------------------------------------------------------
 */

static int open_table(struct kv_measured *m, size_t t, struct kv_err *e)
{
    struct kv_results_file *rows = &m->rows[t];
    struct kv_input *in;

    if (kv_input_open(&in, m->path[t], e))
        return -1;
    if (kv_results_file_read(rows, m->path[t], ',', e)) {
        kv_input_close(in);
        return -1;
    }
    if (!kv_input_close(in))
        return kv_fail(e, "%s: was changed while it was read", m->path[t]);
    for (size_t i = 0; i < COLUMNS && needed[t][i]; i++)
        if (kv_results_file_find(rows, needed[t][i]) == rows->n)
            return kv_fail(e, "%s has no column %s: expected rows of %s",
                           m->path[t], needed[t][i], tools[t]);
    return 0;
}

int kv_measured_open(struct kv_measured *m,
                     const char *const path[KV_MEASURED_TABLES],
                     struct kv_err *e)
{
    *m = (struct kv_measured){0};
    for (size_t t = 0; t < KV_MEASURED_TABLES; t++) {
        m->path[t] = path[t];
        if (path[t] && open_table(m, t, e)) {
            kv_measured_clear(m);
            return -1;
        }
    }
    return 0;
}

void kv_measured_clear(struct kv_measured *m)
{
    for (size_t t = 0; t < KV_MEASURED_TABLES; t++)
        kv_results_file_clear(&m->rows[t]);
}

static const char *cell(const struct kv_results_file *t, size_t row,
                        const char *column)
{
    const size_t at = kv_results_file_find(t, column);

    return at < t->n ? kv_results_file_cell(t, row, at) : "";
}

static double real(const struct kv_results_file *t, size_t row,
                   const char *column)
{
    const char *text = cell(t, row, column);
    char *end;
    const double x = strtod(text, &end);

    return end == text || *end ? NAN : x;
}

static bool is_spec(const struct kv_results_file *t, size_t row,
                    const struct kv_spec *s)
{
    struct kv_spec other;
    struct kv_err e;

    return !kv_spec_parse(&other, cell(t, row, "spec"), &e) &&
           !strcmp(other.text, s->text);
}

/* ---- laws ----------------------------------------------------------------
 */

struct point {
    double n, t, s; /* number of sequences, tokens of all sequences, seconds */
};

/* Solves a [k][k] x = b by elimination with pivots; false: no unique
 * solution. */
static bool solve(size_t k, double a[3][3], double b[3], double x[3])
{
    for (size_t i = 0; i < k; i++) {
        size_t best = i;

        for (size_t r = i + 1; r < k; r++)
            best = fabs(a[r][i]) > fabs(a[best][i]) ? r : best;
        if (!(fabs(a[best][i]) > 1e-12))
            return false;
        for (size_t c = 0; c < k; c++) {
            const double swap = a[i][c];

            a[i][c] = a[best][c];
            a[best][c] = swap;
        }

        const double swap = b[i];

        b[i] = b[best];
        b[best] = swap;
        for (size_t r = i + 1; r < k; r++) {
            const double f = a[r][i] / a[i][i];

            for (size_t c = i; c < k; c++)
                a[r][c] -= f * a[i][c];
            b[r] -= f * b[i];
        }
    }
    for (size_t i = k; i-- > 0;) {
        x[i] = b[i];
        for (size_t c = i + 1; c < k; c++)
            x[i] -= a[i][c] * x[c];
        x[i] /= a[i][i];
    }
    return true;
}

/* Fits the coefficients of these terms (0 fixed, 1 request, 2 token).  Each
 * column is scaled by its largest value, since counts of tokens are far larger
 * than 1. */
static bool fit_terms(const struct point *p, size_t n, const size_t *term,
                      size_t k, double out[3])
{
    double a[3][3] = {{0}}, b[3] = {0}, x[3], top[3] = {0};

    for (size_t i = 0; i < n; i++)
        for (size_t r = 0; r < k; r++)
            top[r] = fmax(top[r], (const double[]){1, p[i].n, p[i].t}[term[r]] /
                                      p[i].s);
    for (size_t i = 0; i < n; i++) {
        const double all[3] = {1 / p[i].s, p[i].n / p[i].s, p[i].t / p[i].s};

        for (size_t r = 0; r < k; r++) {
            b[r] += all[term[r]] / top[r];
            for (size_t c = 0; c < k; c++)
                a[r][c] += all[term[r]] / top[r] * all[term[c]] / top[c];
        }
    }
    if (!solve(k, a, b, x))
        return false;
    for (size_t r = 0; r < k; r++)
        if (!(x[r] >= 0))
            return false;
    for (size_t r = 0; r < k; r++)
        out[term[r]] = x[r] / top[r];
    return true;
}

static double largest_error(const struct point *p, size_t n, const double x[3])
{
    double off = 0;

    for (size_t i = 0; i < n; i++)
        off = fmax(off,
                   fabs((x[0] + x[1] * p[i].n + x[2] * p[i].t) / p[i].s - 1));
    return off;
}

/* Takes the first set of terms that the rows determine and whose coefficients
 * are not negative; larger sets come first. */
static struct kv_measured_law fit(const struct point *p, size_t n)
{
    static const size_t terms[][3] = {{0, 1, 2}, {0, 2}, {1, 2}, {2}};
    static const size_t count[] = {3, 2, 2, 1};
    struct kv_measured_law law = {0};

    for (size_t i = 0; i < 4 && n; i++) {
        double x[3] = {0};

        if (n < count[i] || !fit_terms(p, n, terms[i], count[i], x))
            continue;
        law = (struct kv_measured_law){x[0], x[1], x[2], .rows = n,
                                       .off = largest_error(p, n, x)};
        break;
    }
    return law;
}

/* Keeps the fastest row of each size. */
static void add(struct point *p, size_t *n, double sequences, double tokens,
                double seconds)
{
    size_t i = 0;

    if (!(seconds > 0) || !(tokens > 0) || !(sequences > 0))
        return;
    while (i < *n && (p[i].n != sequences || p[i].t != tokens))
        i++;
    if (i == *n)
        p[(*n)++] = (struct point){sequences, tokens, seconds};
    p[i].s = fmin(p[i].s, seconds);
}

/* ---- rows ----------------------------------------------------------------
 */

static bool is_here(const struct kv_results_file *t, size_t row,
                    const struct kv_measured_place *at, bool whole_model)
{
    const char *model = cell(t, row, "model");
    char shape[96];

    snprintf(shape, sizeof(shape), "random-hq%zu-hkv%zu-d%zu", at->heads,
             at->kv_heads, at->head_dim);
    return strstr(cell(t, row, "device"), at->device) &&
           (!strcmp(model, at->model) ||
            (!whole_model && !strcmp(model, shape)));
}

/* kvattn times the newest tokens that became codes, this many at most. */
static const double APPENDED = 128;

static void find_times(const struct kv_results_file *t, const struct kv_spec *s,
                       const struct kv_measured_place *at,
                       struct kv_measured_scheme *found)
{
    struct point *p = kv_alloc(3 * (t->n_rows + 1), sizeof(*p));
    struct point *encode = p + t->n_rows, *decode = encode + t->n_rows;
    size_t n = 0, n_encode = 0, n_decode = 0;

    for (size_t row = 0; row < t->n_rows; row++) {
        const double windows = real(t, row, "windows");
        const double some = fmin(APPENDED, real(t, row, "ctx")) * windows;

        if (!is_spec(t, row, s))
            continue;
        if (isnan(found->bits))
            found->bits = real(t, row, "bits");
        if (strncmp(cell(t, row, "protocol"), "decode:1", 8) != 0 ||
            !is_here(t, row, at, false))
            continue;
        add(p, &n, windows, real(t, row, "ctx") * windows,
            real(t, row, "lat_us_p50") * 1e-6);
        add(encode, &n_encode, windows, some,
            real(t, row, "quantize_us_p50") * 1e-6);
        /* On a CPU append_us is the time of one token of every sequence. */
        add(encode, &n_encode, windows, some,
            real(t, row, "append_us") * 1e-6 * some / windows);
        add(decode, &n_decode, windows, some,
            real(t, row, "decode_us_p50") * 1e-6);
    }
    found->step = fit(p, n);
    found->encode = fit(encode, n_encode);
    found->decode = fit(decode, n_decode);
    free(p);
}

void kv_measured_find(const struct kv_measured *m, const struct kv_spec *s,
                      const struct kv_measured_place *at,
                      struct kv_measured_scheme *found)
{
    const struct kv_results_file *quant = &m->rows[KV_MEASURED_QUANT];

    *found = (struct kv_measured_scheme){.bits = NAN};
    for (size_t row = 0; row < quant->n_rows; row++)
        if (!strcmp(cell(quant, row, "side"), "KV") &&
            !strcmp(cell(quant, row, "layer"), "all") &&
            is_spec(quant, row, s)) {
            found->bits = real(quant, row, "bits");
            found->bits_quant = true;
        }
    find_times(&m->rows[KV_MEASURED_ATTN], s, at, found);
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

double kv_measured_rest(const struct kv_measured *m,
                        const struct kv_measured_place *at)
{
    const struct kv_results_file *t = &m->rows[KV_MEASURED_STEP];
    double *rest = kv_alloc(t->n_rows + 1, sizeof(*rest)), median;
    size_t n = 0;

    for (size_t row = 0; row < t->n_rows; row++) {
        const double s =
            real(t, row, "lat_us_p50") - real(t, row, "attention_us");

        if (is_here(t, row, at, true) && s > 0)
            rest[n++] = s * 1e-6;
    }
    qsort(rest, n, sizeof(*rest), by_value);
    median = n ? (rest[(n - 1) / 2] + rest[n / 2]) / 2 : NAN;
    free(rest);
    return median;
}
