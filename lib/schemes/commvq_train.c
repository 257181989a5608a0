/* Training of CommVQ's keys by EM, one book after the other.
 *
 * E: a token's share of code-word w is proportional to exp(-d_w / T), where d_w
 * is its distance.  The temperature T falls from 1e-3 to 1e-5 over the rounds,
 * and to a tenth after the first of every four books.  M: finds the vectors z
 * that minimize sum_ab N_ab |m_ab - z_a - i z_b|^2, with N_ab the weight and
 * m_ab the mean of a code-word's tokens, from
 *
 *   sum_b (N_ab + N_ba) z_a + i sum_b (N_ab - N_ba) z_b
 *                                  = sum_b N_ab m_ab - i sum_b N_ba m_ba
 *
 * All this follows the published code.  Training begins with an M step for
 * which tokens drawn at random are the code-words.  The published code first
 * assigns every token to these at a temperature of 1; here they have equal
 * weights.  Training ends when the error of the nearest code-words no longer
 * falls, and keeps the best round. */
#include "kernels/eigen.h"
#include "lib/base/alloc.h"
#include "lib/base/file.h"
#include "lib/base/half.h"
#include "lib/base/progress.h"
#include "lib/base/rng.h"
#include "lib/calib.h"
#include "lib/dump.h"
#include "lib/schemes/commvq.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    A_WORD = 256 /* tokens for a code-word at most */,
    CHUNK = 512,
    PART = 512
};

static const double HOT = 1e-3, COLD = 1e-5, LEAST_WEIGHT = 1e-8;

/* ---- a book -------------------------------------------------------------- */

/* Sums over points. */
struct sums {
    double *weight; /* N [words][words] */
    double *first;  /* [words][channels]: sum_b N_ab m_ab */
    double *second; /* [words][channels]: sum_a N_ab m_ab */
    double error;   /* the nearest code-words' squared error */
};

/* The points of a group.  Each PART of them has its own sums, which are then
 * added in order: the result does not depend on the number of threads. */
struct em {
    const float *x;    /* [n][channels] */
    const float *norm; /* [n]: the tokens' norms */
    size_t n, channels, words;
    struct sums *part; /* [n_parts]; the first becomes the sum of all */
    size_t n_parts;
};

/* The code-words near a token, and their shares, [words^2]. */
struct near {
    uint32_t *word;
    double *share;
};

static void clear_sums(const struct em *m, struct sums *s)
{
    memset(s->weight, 0, m->words * m->words * sizeof(*s->weight));
    memset(s->first, 0, m->words * m->channels * sizeof(*s->first));
    memset(s->second, 0, m->words * m->channels * sizeof(*s->second));
    s->error = 0;
}

static void add_sums(const struct em *m, const struct sums *from,
                     struct sums *to)
{
    for (size_t i = 0; i < m->words * m->words; i++)
        to->weight[i] += from->weight[i];
    for (size_t i = 0; i < m->words * m->channels; i++) {
        to->first[i] += from->first[i];
        to->second[i] += from->second[i];
    }
    to->error += from->error;
}

/* Adds by[i] times x [channels] to each y[i], [n][channels]. */
static void add_times(const float *x, size_t channels, const double *by,
                      size_t n, double *y)
{
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; by[i] > 0 && k < channels; k++)
            y[i * channels + k] += by[i] * (double)x[k];
}

/* Adds one point to the sums. */
static void take_point(const struct em *m, const struct kv_commvq_book *b,
                       size_t point, double temperature,
                       const struct near *near, struct sums *sums)
{
    const float *x = m->x + point * m->channels;
    float p[KV_COMMVQ_MAX_WORDS], q[KV_COMMVQ_MAX_WORDS], least, limit;
    double of_first[KV_COMMVQ_MAX_WORDS] = {0};
    double of_second[KV_COMMVQ_MAX_WORDS] = {0};
    double square = 0, sum = 0, nearest;
    size_t found;

    kv_commvq_terms(b, x, p, q);
    least = kv_commvq_least(b, p, q);
    for (size_t i = 0; i < m->channels; i++)
        square += (double)x[i] * (double)x[i];
    nearest = sqrt(fmax(square + (double)least, 0));
    sums->error += pow((double)m->norm[point] * nearest, 2);
    /* others weigh less than e^-20 of the nearest */
    limit = (float)(pow(nearest + 20 * temperature, 2) - square);
    found = kv_commvq_within(b, p, q, fmaxf(limit, least), m->words * m->words,
                             near->word);
    for (size_t i = 0; i < found; i++) {
        const size_t a = near->word[i] / b->n, c = near->word[i] % b->n;
        const double s = (double)(p[a] + (q[c] + b->cross[near->word[i]]));

        near->share[i] =
            exp((nearest - sqrt(fmax(square + s, 0))) / temperature);
        sum += near->share[i];
    }
    for (size_t i = 0; i < found; i++) {
        const double w = near->share[i] / sum;

        sums->weight[near->word[i]] += w;
        of_first[near->word[i] / b->n] += w;
        of_second[near->word[i] % b->n] += w;
    }
    add_times(x, m->channels, of_first, b->n, sums->first);
    add_times(x, m->channels, of_second, b->n, sums->second);
}

/* Sets z [channels][words] from the sums. */
static int maximize(const struct em *m, float *z, struct kv_err *e)
{
    const struct sums *sum = &m->part[0];
    const size_t n = m->words, pairs = m->channels / 2;
    double *a = kv_alloc(2 * n, 2 * n * sizeof(*a));
    double *y = kv_alloc(2 * n, pairs * sizeof(*y));
    int rc;

    for (size_t i = 0; i < n * n; i++) {
        const size_t r = i / n, c = i % n;
        const double by = sum->weight[i] + LEAST_WEIGHT;
        const double back = sum->weight[c * n + r] + LEAST_WEIGHT;

        a[r * 2 * n + r] += by + back;
        a[(n + r) * 2 * n + n + r] += by + back;
        a[r * 2 * n + n + c] = back - by;
        a[(n + r) * 2 * n + c] = by - back;
    }
    for (size_t i = 0; i < n * pairs; i++) {
        const double *u = sum->first + i / pairs * m->channels + i % pairs * 2;
        const double *v = sum->second + i / pairs * m->channels + i % pairs * 2;

        y[i] = u[0] + v[1];
        y[n * pairs + i] = u[1] - v[0];
    }
    rc = kv_solve(a, 2 * n, y, pairs);
    for (size_t i = 0; i < 2 * n * pairs && !rc; i++) {
        const size_t part = i / (n * pairs), word = i / pairs % n;

        z[(i % pairs * 2 + part) * n + word] = (float)y[i];
    }
    free(y);
    free(a);
    return rc ? kv_fail(e, "the equations of its code-words have no solution")
              : 0;
}

/* Sets z [channels][words] by an M step for which the code-words' means are
 * tokens drawn at random, all with the same weight. */
static void start(const struct em *m, uint64_t key, float *z)
{
    const size_t n = m->words;

    for (size_t i = 0; i < n * n; i++) {
        const float *x =
            m->x + (size_t)(kv_random(key, i) % m->n) * m->channels;
        const size_t a = i / n, b = i % n;

        for (size_t c = 0; c < m->channels; c += 2) {
            z[c * n + a] += x[c] / (float)(2 * n);
            z[(c + 1) * n + a] += x[c + 1] / (float)(2 * n);
            z[c * n + b] += x[c + 1] / (float)(2 * n);
            z[(c + 1) * n + b] -= x[c] / (float)(2 * n);
        }
    }
}

static void expect(const struct em *m, const float *z, double temperature)
{
    const size_t pairs = m->words * m->words;
    struct kv_commvq_book b;

    kv_commvq_book_init(&b, z, m->words, m->channels);
#pragma omp parallel for schedule(dynamic, 1)
    for (size_t i = 0; i < m->n_parts; i++) {
        const struct near near = {kv_alloc(pairs, sizeof(*near.word)),
                                  kv_alloc(pairs, sizeof(*near.share))};

        clear_sums(m, &m->part[i]);
        for (size_t j = i * PART; j < m->n && j < (i + 1) * PART; j++)
            take_point(m, &b, j, temperature, &near, &m->part[i]);
        free(near.share);
        free(near.word);
    }
    for (size_t i = 1; i < m->n_parts; i++)
        add_sums(m, &m->part[i], &m->part[0]);
    kv_commvq_book_clear(&b);
}

/* Trains best [channels][words], a book for the points; cold: factor of all
 * temperatures. */
static int train_book(const struct em *m, size_t rounds, double cold,
                      uint64_t key, float *best, struct kv_err *e)
{
    const size_t size = m->channels * m->words;
    float *z = kv_alloc(size, sizeof(*z));
    double least = INFINITY;
    int rc = 0;

    start(m, key, z);
    for (size_t i = 0; i < rounds && !rc; i++) {
        const double done = rounds > 1 ? (double)i / (double)(rounds - 1) : 0;

        expect(m, z, cold * HOT * pow(COLD / HOT, done));
        if (!(m->part[0].error < least))
            break;
        least = m->part[0].error;
        memcpy(best, z, size * sizeof(*best));
        rc = kv_interrupted(e) ? -1 : maximize(m, z, e);
    }
    free(z);
    return rc;
}

/* ---- a group ------------------------------------------------------------- */

/* A layer's points x by groups, [groups][n][channels]. */
struct layer {
    const struct kv_commvq_sizes *m;
    size_t n, rounds;
    float *x, *norm;
    uint64_t key;
};

static struct em make_em(const struct layer *l, size_t group)
{
    const size_t words = l->m->words, channels = l->m->channels;
    struct em m = {.x = l->x + group * l->n * channels,
                   .norm = l->norm,
                   .n = l->n,
                   .channels = channels,
                   .words = words,
                   .n_parts = (l->n + PART - 1) / PART};

    m.part = kv_alloc(m.n_parts, sizeof(*m.part));
    for (size_t i = 0; i < m.n_parts; i++) {
        struct sums *s = &m.part[i];

        s->weight = kv_alloc(words * words, sizeof(*s->weight));
        s->first = kv_alloc(words, channels * sizeof(*s->first));
        s->second = kv_alloc(words, channels * sizeof(*s->second));
    }
    return m;
}

static void clear_em(struct em *m)
{
    for (size_t i = 0; i < m->n_parts; i++) {
        free(m->part[i].weight);
        free(m->part[i].first);
        free(m->part[i].second);
    }
    free(m->part);
}

/* Subtracts from each point of x its nearest code-word. */
static void leave_rest(const struct em *m, const float *z, float *x)
{
    struct kv_commvq_book b;

    kv_commvq_book_init(&b, z, m->words, m->channels);
#pragma omp parallel for
    for (size_t i = 0; i < m->n; i++) {
        float *point = x + i * m->channels;

        kv_commvq_add(&b, kv_commvq_nearest(&b, point), -1, point);
    }
    kv_commvq_book_clear(&b);
}

/* Trains table [books][channels][words]; the group's points become the
 * residual. */
static int train_group(const struct layer *l, size_t group, float *table,
                       struct kv_err *e)
{
    struct em m = make_em(l, group);
    const size_t size = m.channels * m.words;
    double cold = 1;
    int rc = 0;

    for (size_t r = 0; r < l->m->books && !rc; r++) {
        float *z = table + r * size;

        rc = train_book(&m, l->rounds, cold, kv_mix(kv_mix(l->key, group), r),
                        z, e);
        for (size_t i = 0; i < size; i++)
            z[i] = kv_f16_to_f32(kv_f16_clamp(z[i]));
        leave_rest(&m, z, l->x + group * l->n * m.channels);
        cold /= r % 4 == 0 ? 10 : 1;
    }
    clear_em(&m);
    return rc;
}

/* ---- a layer ------------------------------------------------------------- */

struct job {
    const struct kv_spec *spec;
    struct kv_dump *dump;
    const struct kv_dump_info *info;
    struct kv_calib_set *out;
    struct kv_commvq_sizes m;
    size_t tokens; /* tokens of the dump */
    uint64_t seed;
};

/* Reads n tokens of a layer, evenly spaced, to x [n][row]. */
static int read_tokens(const struct job *j, size_t layer, enum kv_tensor which,
                       size_t n, float *x, struct kv_err *e)
{
    const size_t row = j->m.row;
    float *chunk = kv_alloc(CHUNK, row * sizeof(*chunk));
    size_t taken = 0;
    int rc = 0;

    for (size_t at = 0; at < j->tokens && !rc; at += CHUNK) {
        const size_t len = j->tokens - at < CHUNK ? j->tokens - at : CHUNK;

        rc = kv_interrupted(e) ||
             kv_dump_read(j->dump, layer, which, at, len, chunk, e);
        for (; !rc && taken < n && taken * j->tokens / n < at + len; taken++)
            memcpy(x + taken * row, chunk + (taken * j->tokens / n - at) * row,
                   row * sizeof(*x));
    }
    free(chunk);
    return rc ? -1 : 0;
}

/* Fills l->x and l->norm from tokens x [n][row]. */
static void cut(const struct job *j, const float *x, const struct layer *l)
{
    const size_t d = j->info->shape.head_dim, g = j->m.channels;
    size_t *order = kv_alloc(d, sizeof(*order));

    kv_commvq_order(&j->info->shape, order);
    for (size_t t = 0; t < l->n; t++, x += j->m.row) {
        uint8_t half[2];
        const float norm = kv_commvq_put_norm(x, j->m.row, half);

        l->norm[t] = norm;
        for (size_t i = 0; i < j->m.row; i++)
            l->x[(i / g * l->n + t) * g + i % g] =
                norm > 0 ? x[i / d * d + order[i % d]] / norm : 0;
    }
    free(order);
}

/* The mean square of the keys' residual. */
static double mean_left(const struct layer *l)
{
    const size_t g = l->m->channels;
    double sum = 0;

    for (size_t i = 0; i < l->m->groups * l->n * g; i++)
        sum += pow((double)l->x[i] * (double)l->norm[i / g % l->n], 2);
    return sum / (double)(l->n * l->m->row);
}

static int train_keys(const struct job *j, size_t layer, struct kv_err *e)
{
    const struct kv_commvq_sizes *m = &j->m;
    const size_t most = A_WORD * m->words * m->words;
    struct layer l = {.m = m,
                      .n = j->tokens < most ? j->tokens : most,
                      .rounds = kv_spec_size(j->spec, KV_K, "iters"),
                      .key = kv_mix(j->seed, layer)};
    const size_t dims[] = {m->groups, m->books, m->channels, m->words};
    const size_t size = m->books * m->channels * m->words;
    float *x = kv_alloc(l.n, m->row * sizeof(*x));
    struct kv_table *table;
    int rc = read_tokens(j, layer, KV_T_K_PRE, l.n, x, e);

    l.x = kv_alloc(l.n, m->row * sizeof(*l.x));
    l.norm = kv_alloc(l.n, sizeof(*l.norm));
    if (!rc)
        cut(j, x, &l);
    free(x);
    table = kv_calib_add(j->out, "codebook", KV_K, (int)layer, KV_ALL, 4, dims);
    table->type = KV_TABLE_F16;
    for (size_t g = 0; g < m->groups && !rc; g++)
        rc = train_group(&l, g, table->data + g * size, e);
    table->error = mean_left(&l);
    free(l.norm);
    free(l.x);
    return rc;
}

static int train_values(const struct job *j, size_t layer, struct kv_err *e)
{
    enum { A_BIT = 16 }; /* at most so many tokens for each bit */
    const size_t most = A_BIT * j->m.bits;
    const size_t n = j->tokens < most ? j->tokens : most;
    float *x = kv_alloc(n, j->m.row * sizeof(*x));
    const int rc = read_tokens(j, layer, KV_T_V, n, x, e) ||
                   kv_commvq_train_values(&j->m, layer,
                                          kv_spec_size(j->spec, KV_V, "iters"),
                                          x, n, j->out, e);

    free(x);
    return rc ? -1 : 0;
}

static int commvq_check_dump(const struct kv_spec *s, struct kv_dump *dump,
                             struct kv_err *e)
{
    (void)s;
    if (kv_dump_want(dump, KV_T_K_PRE, e))
        return kv_fail_in(e, "K");
    return kv_dump_want(dump, KV_T_V, e) ? kv_fail_in(e, "V") : 0;
}

static int commvq_calibrate(const struct kv_spec *s, struct kv_dump *dump,
                            uint64_t seed, struct kv_calib_set *out,
                            struct kv_err *e)
{
    const struct kv_dump_info *info = kv_dump_info(dump);
    const struct job j = {.spec = s,
                          .dump = dump,
                          .info = info,
                          .out = out,
                          .m = kv_commvq_sizes_of(s, &info->shape),
                          .tokens = info->n_windows * info->ctx,
                          .seed = seed};

    const int n_sides = kv_shape_sides(&info->shape);

    if (out->progress)
        out->progress->total +=
            (size_t)n_sides * (info->last_layer - info->first_layer + 1);
    for (size_t l = info->first_layer; l <= info->last_layer; l++)
        for (int side = 0; side < n_sides; side++) {
            if ((side == KV_K ? train_keys : train_values)(&j, l, e))
                return kv_fail_in(e, "layer %zu, %c", l,
                                  kv_side_name((enum kv_side)side));
            if (out->progress)
                kv_progress_step(out->progress, 1);
        }
    return 0;
}

const struct kv_training kv_commvq_training = {.check_dump = commvq_check_dump,
                                               .calibrate = commvq_calibrate};
