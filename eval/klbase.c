#include "eval/klbase.h"
#include "kernels/vecops/vecops.h"
#include "lib/base/alloc.h"
#include "lib/base/file.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct kv_klbase {
    char *path;
    size_t n_ctx, n_vocab, n_scored, row_words;
    struct kv_out out; /* writing */
    uint16_t *row;
    float *log_p, *p; /* values of the row being written */
    size_t n_put;
    struct kv_map map; /* reading */
    size_t first_row;
};

static const char magic[8] = {'_', 'l', 'o', 'g', 'i', 't', 's', '_'};
enum { HEAD_BYTES = sizeof(magic) + 3 * sizeof(int32_t) };

enum { TOP_CODE = 65535, SPAN = 16, SLACK = 1 };

static struct kv_klbase *new_base(const char *path, size_t n_ctx,
                                  size_t n_vocab)
{
    struct kv_klbase *b = kv_alloc(1, sizeof(*b));

    b->path = kv_strdup(path);
    b->n_ctx = n_ctx;
    b->n_vocab = n_vocab;
    b->n_scored = n_ctx - 1 - n_ctx / 2;
    b->row_words = 2 * ((n_vocab + 1) / 2) + 4;
    return b;
}

static int put(struct kv_klbase *b, const void *data, size_t bytes,
               struct kv_err *e)
{
    if (fwrite(data, 1, bytes, b->out.file) != bytes)
        return kv_fail(e, "cannot write %s: %s", b->out.path, strerror(errno));
    return 0;
}

int kv_klbase_create(struct kv_klbase **out, const char *path, size_t n_ctx,
                     size_t n_vocab, size_t n_chunks, const int32_t *tokens,
                     struct kv_err *e)
{
    const int32_t head[3] = {(int32_t)n_ctx, (int32_t)n_vocab,
                             (int32_t)n_chunks};
    struct kv_klbase *b = new_base(path, n_ctx, n_vocab);

    b->row = kv_alloc(b->row_words, sizeof(*b->row));
    b->log_p = kv_alloc(n_vocab, sizeof(*b->log_p));
    b->p = kv_alloc(n_vocab, sizeof(*b->p));
    if (kv_out_open(&b->out, path, true, e) ||
        put(b, magic, sizeof(magic), e) || put(b, head, sizeof(head), e) ||
        put(b, tokens, n_chunks * n_ctx * sizeof(*tokens), e)) {
        kv_klbase_close(b);
        return -1;
    }
    *out = b;
    return 0;
}

/* Whether a row can be a distribution as llama.cpp writes it.
 *
 * The largest logit has code TOP_CODE, or all are equal: scale 0, codes 0.  The
 * span TOP_CODE * scale is at most SPAN, up to the rounding of a float of the
 * logits' size (SLACK).  Each log p is moved by at most half a step, and by the
 * roundings of a handful of float operations on values below 32:
 *
 *     |log p' - log p| <= d = scale / 2 + 2^-16
 *
 * except that a clipped p is raised to code 0, which is at most e^-(SPAN -
 * SLACK) of the largest.  As the p sum to 1:
 *
 *     e^-d <= sum of all p',  sum of all p' that are not raised <= e^d
 *
 * and only rows of the full span have raised p'. */
static int check_row(float scale, float min, unsigned top_code, double sum,
                     double raised, struct kv_err *e)
{
    const double span = TOP_CODE * (double)scale;
    const double d = (double)scale / 2 + 0x1p-16;

    if (!isfinite(scale) || scale < 0 || span > SPAN + SLACK)
        return kv_fail(e, "scale is %g, expected 0 to %g", (double)scale,
                       (double)SPAN / TOP_CODE);
    if (!isfinite(min))
        return kv_fail(e, "the least log p is %g, expected a finite number",
                       (double)min);
    if (top_code != (scale > 0 ? TOP_CODE : 0))
        return kv_fail(e, "the largest code is %u, expected %d at scale %g",
                       top_code, scale > 0 ? TOP_CODE : 0, (double)scale);
    if (span < SPAN - SLACK)
        raised = 0;
    if (!(sum >= exp(-d) && sum - raised <= exp(d)))
        return kv_fail(e, "the probabilities sum to %.9g, expected 1", sum);
    return 0;
}

/* Decodes the row at `at` [8 + 2 n bytes] into log p, and into its exponentials
 * p. */
static int read_row(const uint8_t *at, size_t n, float *log_p, float *p,
                    struct kv_err *e)
{
    const uint8_t *codes = at + 4 * sizeof(uint16_t);
    unsigned top = 0;
    size_t n_zero = 0;
    float head[2];
    double sum;

    memcpy(head, at, sizeof(head));
    for (size_t i = 0; i < n; i++) {
        uint16_t code;

        memcpy(&code, codes + i * sizeof(code), sizeof(code));
        top = code > top ? code : top;
        n_zero += code == 0;
        log_p[i] = head[0] * (float)code + head[1];
    }
    memcpy(p, log_p, n * sizeof(*p));
    sum = kv_row_exp(p, n, 0);
    return check_row(head[0], head[1], top, sum,
                     (double)n_zero * exp((double)head[1]), e);
}

static int fail_put(const struct kv_klbase *b, struct kv_err *e)
{
    return kv_fail_in(e, "%s: chunk %zu, row %zu cannot be written", b->path,
                      b->n_put / b->n_scored, b->n_put % b->n_scored);
}

int kv_klbase_put(struct kv_klbase *b, const float *logits, struct kv_err *e)
{
    const size_t n = b->n_vocab;
    float max = logits[0], min = logits[0];
    float head[2];

    for (size_t i = 0; i < n; i++) {
        if (!isfinite(logits[i])) {
            kv_fail(e, "the logit of token %zu is %g", i, (double)logits[i]);
            return fail_put(b, e);
        }
        max = fmaxf(max, logits[i]);
        min = fminf(min, logits[i]);
    }
    min = fmaxf(min, max - SPAN);
    head[0] = (max - min) / TOP_CODE;
    head[1] = (float)((double)min - kv_log_sum_exp(logits, n));
    memcpy(b->row, head, sizeof(head));
    for (size_t i = 0; i < n; i++)
        b->row[4 + i] = head[0] > 0 && logits[i] > min
                            ? (uint16_t)lrintf(fminf(
                                  (logits[i] - min) * (1 / head[0]), TOP_CODE))
                            : 0;
    if (read_row((const uint8_t *)b->row, n, b->log_p, b->p, e))
        return fail_put(b, e);
    b->n_put++;
    return put(b, b->row, b->row_words * sizeof(*b->row), e);
}

int kv_klbase_commit(struct kv_klbase *b, struct kv_err *e)
{
    const int rc = kv_out_commit(&b->out, e);

    kv_klbase_close(b);
    return rc;
}

int kv_klbase_open(struct kv_klbase **out, const char *path, size_t n_ctx,
                   size_t n_vocab, size_t n_chunks, const int32_t *tokens,
                   struct kv_err *e)
{
    struct kv_klbase *b = new_base(path, n_ctx, n_vocab);
    int32_t head[3] = {0};
    size_t want;

    if (kv_map_open(&b->map, path, e) ||
        kv_lfs_check(path, b->map.data, b->map.bytes, e))
        goto fail;
    if (b->map.bytes < HEAD_BYTES ||
        memcmp(b->map.data, magic, sizeof(magic)) != 0) {
        kv_fail(e,
                "%s is not a file of base log-probabilities (it does not "
                "begin with _logits_)",
                path);
        goto fail;
    }
    memcpy(head, b->map.data + sizeof(magic), sizeof(head));
    if (head[0] != (int32_t)n_ctx || head[1] != (int32_t)n_vocab) {
        kv_fail(e,
                "%s: made with context %d and vocabulary %d, expected %zu "
                "and %zu",
                path, head[0], head[1], n_ctx, n_vocab);
        goto fail;
    }
    if (head[2] < 0 || (size_t)head[2] < n_chunks) {
        kv_fail(e, "%s holds %d chunks, expected at least %zu (use -n)", path,
                head[2], n_chunks);
        goto fail;
    }
    b->first_row = HEAD_BYTES + (size_t)head[2] * n_ctx * sizeof(int32_t);
    want = b->first_row +
           (size_t)head[2] * b->n_scored * b->row_words * sizeof(uint16_t);
    if (b->map.bytes != want) {
        kv_fail(e, "%s %s: %zu bytes, expected %zu for %d chunks", path,
                b->map.bytes < want ? "is truncated" : "goes on past its end",
                b->map.bytes, want, head[2]);
        goto fail;
    }
    if (memcmp(b->map.data + HEAD_BYTES, tokens,
               n_chunks * n_ctx * sizeof(int32_t)) != 0) {
        kv_fail(e, "%s was made from other tokens than this text gives", path);
        goto fail;
    }
    *out = b;
    return 0;
fail:
    kv_klbase_close(b);
    return -1;
}

int kv_klbase_get(const struct kv_klbase *b, size_t chunk, size_t row,
                  float *log_p, float *p, struct kv_err *e)
{
    const uint8_t *at =
        b->map.data + b->first_row +
        (chunk * b->n_scored + row) * b->row_words * sizeof(uint16_t);

    if (read_row(at, b->n_vocab, log_p, p, e))
        return kv_fail_in(e, "%s: chunk %zu, row %zu", b->path, chunk, row);
    return 0;
}

void kv_klbase_close(struct kv_klbase *b)
{
    if (!b)
        return;
    kv_out_discard(&b->out);
    kv_map_close(&b->map);
    free(b->row);
    free(b->log_p);
    free(b->p);
    free(b->path);
    free(b);
}
