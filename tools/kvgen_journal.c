/* kvgen --resume, --append: answers of earlier runs are not made again.
 *
 * A line's field "key" is a hash of everything that its answer depends on.
 * Each answer goes to FILE.partial as soon as it is made.  A later run uses the
 * lines of FILE.partial and FILE whose keys it needs. */
#include "lib/base/alloc.h"
#include "lib/base/hash.h"
#include "lib/base/progress.h"
#include "lib/base/release.h"
#include "lib/json_file.h"
#include "lib/mixed.h"
#include "lib/results.h"
#include "tools/kvgen.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

struct line {
    char *text;      /* without its line feed */
    const char *key; /* key in its fields; NULL: none */
    json_t *fields;
    size_t same; /* 1 + the number of the previous line with this key; 0:
                  * none */
    bool wanted; /* an answer of this run has the key */
};

struct kvgen_journal {
    char *path; /* FILE.partial */
    int fd;
    bool keeps;        /* --append */
    struct line *line; /* [n], of FILE the first n_old */
    size_t n, n_old;
    json_t *by_key; /* key: number of its last line */
};

/* ---- keys ---------------------------------------------------------------- */

static void add_text(struct kv_hash *h, const char *text)
{
    text = text ? text : "";
    kv_hash_add(h, text, strlen(text) + 1);
}

static void add_ids(struct kv_hash *h, const int32_t *ids, size_t n)
{
    kv_hash_add(h, &n, sizeof(n));
    kv_hash_add(h, ids, n * sizeof(*ids));
}

void kvgen_key(const struct kvgen_run *r, const struct kvgen_args *a,
               const struct kv_answer *x, char key[KV_HASH_CHARS])
{
    const struct kv_conditions *c = &r->conditions;
    const double real[] = {x->sampling->repetition_penalty,
                           x->sampling->temperature, x->sampling->top_p};
    const uint64_t random = x->sampling->temperature == 0 ? 0 : x->key;
    const uint64_t size[] = {x->sampling->top_k, x->most,       random,
                             a->common.seed,     a->pool_heads, r->longest,
                             a->ignore_eos,      x->n_top};
    struct kv_hash *h = kv_hash_new();

    add_text(h, kv_version());
    add_text(h, c->model_hash);
    add_text(h, c->protocol);
    add_text(h, c->gemm);
    add_text(h, c->device);
    add_text(h, c->level);
    add_text(h, x->spec->text);
    add_text(h,
             r->calib && kv_spec_calibrated(x->spec) ? r->calib->hash : NULL);
    kv_hash_add(h, real, sizeof(real));
    kv_hash_add(h, size, sizeof(size));
    if (x->least)
        kv_hash_add(h, &x->least, sizeof(x->least));
    add_ids(h, x->prompt, x->n_prompt);
    add_ids(h, x->forced, x->n_forced);
    add_ids(h, r->chat.end, r->chat.n_ends);
    for (size_t i = 0; i < x->stops.n; i++)
        add_text(h, x->stops.text[i]);
    kv_hash_end(h, key);
}

/* ---- reading ------------------------------------------------------------- */

static int add_line(struct kvgen_journal *j, const char *path, size_t number,
                    const char *text, size_t bytes, struct kv_err *e)
{
    struct line *l;
    json_t *key;

    j->line = kv_realloc(j->line, j->n + 1, sizeof(*j->line));
    l = &j->line[j->n];
    *l = (struct line){.text = kv_strndup(text, bytes)};
    l->fields = kv_json_line(path, number, l->text, bytes, e);
    if (!l->fields) {
        free(l->text);
        return -1;
    }
    memcpy(l->text, text, bytes); /* the parser may change it */
    key = json_object_get(l->fields, "key");
    l->key = json_string_value(key);
    if (l->key) {
        const json_t *last = json_object_get(j->by_key, l->key);

        l->same = last ? 1 + (size_t)json_integer_value(last) : 0;
        json_object_set_new(j->by_key, l->key, json_integer((json_int_t)j->n));
    }
    j->n++;
    return 0;
}

/* Reads the lines of a file that may be missing.  whole: leaves out a last line
 * without a line feed, since a killed run may have cut it; *bytes: the size of
 * the other lines.  The file is not opened as an input (lib/base/file.h), since
 * this run replaces it. */
static int read_lines(struct kvgen_journal *j, const char *path, bool whole,
                      off_t *bytes, struct kv_err *e)
{
    FILE *f = fopen(path, "re");
    char *text = NULL;
    size_t capacity = 0, number = 0;
    ssize_t n;
    int rc = 0;

    *bytes = 0;
    if (!f)
        return errno == ENOENT
                   ? 0
                   : kv_fail(e, "cannot open %s: %s", path, strerror(errno));
    while (!rc && (n = getline(&text, &capacity, f)) > 0) {
        const bool ends = text[n - 1] == '\n';

        number++;
        if (whole && !ends)
            break;
        *bytes += n;
        if (n > ends)
            rc = add_line(j, path, number, text, (size_t)(n - ends), e);
    }
    if (!rc && ferror(f))
        rc = kv_fail(e, "cannot read %s: %s", path, strerror(errno));
    fclose(f);
    free(text);
    return rc;
}

/* Opens FILE.partial, which belongs to this run alone while it is open. */
static int open_partial(struct kvgen_journal *j, struct kv_err *e)
{
    struct stat is, named;

    j->fd = open(j->path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
    if (j->fd < 0 || fstat(j->fd, &is))
        return kv_fail(e, "cannot write %s: %s", j->path, strerror(errno));
    if ((flock(j->fd, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK) ||
        stat(j->path, &named) || is.st_ino != named.st_ino) {
        close(j->fd); /* the file belongs to another run */
        j->fd = -1;
        return kv_fail(e,
                       "%s is in use: another run makes answers for this file, "
                       "wait for its end",
                       j->path);
    }
    return 0;
}

static int read_both(struct kvgen_journal *j, const char *file,
                     struct kv_err *e)
{
    off_t bytes;

    if (read_lines(j, file, false, &bytes, e))
        return -1;
    j->n_old = j->n;
    if (read_lines(j, j->path, true, &bytes, e))
        return -1;
    return ftruncate(j->fd, bytes)
               ? kv_fail(e, "cannot write %s: %s", j->path, strerror(errno))
               : 0;
}

int kvgen_journal_open(struct kvgen_journal **out, const char *file, bool keeps,
                       struct kv_err *e)
{
    const size_t capacity = strlen(file) + sizeof(KV_RESULTS_JOURNAL);
    struct kvgen_journal *j = kv_alloc(1, sizeof(*j));

    *j = (struct kvgen_journal){.path = kv_alloc(capacity, 1),
                                .fd = -1,
                                .keeps = keeps,
                                .by_key = json_object()};
    snprintf(j->path, capacity, "%s" KV_RESULTS_JOURNAL, file);
    if (open_partial(j, e) || read_both(j, file, e)) {
        kvgen_journal_free(j);
        return -1;
    }
    *out = j;
    return 0;
}

/* Removes a journal without answers. */
static void close_partial(struct kvgen_journal *j)
{
    struct stat st;

    if (!fstat(j->fd, &st) && !st.st_size && st.st_nlink)
        unlink(j->path);
    close(j->fd);
}

void kvgen_journal_free(struct kvgen_journal *j)
{
    if (!j)
        return;
    for (size_t i = 0; i < j->n; i++) {
        free(j->line[i].text);
        json_decref(j->line[i].fields);
    }
    if (j->fd >= 0)
        close_partial(j);
    json_decref(j->by_key);
    free(j->line);
    free(j->path);
    free(j);
}

/* ---- answers that are there ---------------------------------------------- */

static double real_of(const json_t *from, const char *name)
{
    return json_number_value(json_object_get(from, name));
}

static struct kv_bits bits_of(const json_t *cache)
{
    const json_t *coded = json_object_get(cache, "coded");
    struct kv_bits b = {.bytes = real_of(cache, "bytes"),
                        .values = real_of(cache, "values"),
                        .kept_values = real_of(cache, "kept_values"),
                        .quantized_bytes = real_of(cache, "quantized_bytes"),
                        .quantized_values = real_of(cache, "quantized_values"),
                        .clipped = real_of(cache, "clipped"),
                        .declared =
                            json_is_true(json_object_get(cache, "declared"))};

    for (size_t i = 0; i < KV_SIDES; i++)
        b.coded[i] = json_number_value(json_array_get(coded, i));
    return b;
}

static bool take_ids(const json_t *line, size_t n_vocab, struct kv_answer *x)
{
    const json_t *ids = json_object_get(line, "ids"), *id;
    const size_t n = json_array_size(ids);
    size_t i;

    if (!n || n > x->most - x->n_context)
        return false;
    x->ids = kv_alloc(x->n_context + n, sizeof(*x->ids));
    if (x->n_context)
        memcpy(x->ids, x->forced, x->n_context * sizeof(*x->ids));
    json_array_foreach(ids, i, id)
    {
        const json_int_t value = json_integer_value(id);

        if (!json_is_integer(id) || value < 0 || (size_t)value >= n_vocab)
            return false;
        x->ids[x->n_context + i] = (int32_t)value;
    }
    x->made = x->n_context + n;
    return x->made >= x->n_forced &&
           (!x->n_forced ||
            !memcmp(x->ids, x->forced, x->n_forced * sizeof(*x->ids)));
}

/* Returns false and takes nothing if the line lacks results of the answer. */
static bool take(const struct kvgen_run *r, const json_t *line,
                 struct kv_answer *x)
{
    const json_t *cache = json_object_get(line, "cache");

    x->prompt_seconds = real_of(line, "prompt_seconds");
    x->seconds = real_of(line, "seconds");
    x->bits = bits_of(cache);
    if (x->bits.values > 0 &&
        take_ids(line, kv_model_info(r->model)->n_vocab, x) &&
        r->job->take_fields(line, x) &&
        (x->finish != KV_FINISH_LENGTH || x->made == x->most))
        return true;
    kv_answer_clear(x);
    x->made = 0;
    return false;
}

size_t kvgen_journal_take(struct kvgen_run *r, const struct kvgen_args *a)
{
    struct kvgen_journal *j = r->journal;
    size_t n = 0;

    for (size_t i = 0; i < r->n_answers; i++) {
        char key[KV_HASH_CHARS];
        const json_t *at;

        kvgen_key(r, a, &r->answer[i], key);
        at = json_object_get(j->by_key, key);
        for (size_t k = at ? 1 + (size_t)json_integer_value(at) : 0; k;
             k = j->line[k - 1].same) {
            j->line[k - 1].wanted = true;
            n += !r->answer[i].made &&
                 take(r, j->line[k - 1].fields, &r->answer[i]);
        }
    }
    return n;
}

/* ---- answers that are made ----------------------------------------------- */

int kvgen_journal_add(struct kvgen_run *r, const struct kvgen_args *a,
                      const struct kv_answer *x, struct kv_err *e)
{
    char *text = NULL;
    size_t bytes = 0;
    struct kv_out out = {.file = open_memstream(&text, &bytes)};
    int rc;

    if (!out.file)
        return kv_fail(e, "%s: %s", r->journal->path, strerror(errno));
    rc = kvgen_put_line(r, a, &out, (size_t)(x - r->answer), false, e);
    fclose(out.file);
    if (!rc && write(r->journal->fd, text, bytes) != (ssize_t)bytes)
        rc = kv_fail(e, "cannot write %s: %s", r->journal->path,
                     strerror(errno));
    free(text);
    return rc;
}

void kvgen_journal_keep(const struct kvgen_journal *j, FILE *to)
{
    for (size_t i = 0; j->keeps && i < j->n; i++)
        if (!j->line[i].wanted)
            fprintf(to, "%s\n", j->line[i].text);
}

void kvgen_journal_end(struct kvgen_journal *j)
{
    size_t left = 0;

    if (ftruncate(j->fd, 0))
        return;
    for (size_t i = j->n_old; !j->keeps && i < j->n; i++)
        if (!j->line[i].wanted)
            left += dprintf(j->fd, "%s\n", j->line[i].text) > 0;
    if (left)
        kv_note("%s keeps %zu answer%s of other runs", j->path, left,
                left == 1 ? "" : "s");
}
