#include "lib/schemes/exec_pool.h"
#include "lib/base/alloc.h"
#include "lib/base/child.h"
#include "lib/base/decimal.h"
#include "lib/spec_impl.h"

#include <ctype.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char hello[] = "kvtools 1\n", welcome[] = "codec 1\n";
enum { SILENCE = 300 }; /* seconds, unless timeout= says otherwise */

/* The header before each message, little-endian. */
struct head {
    uint32_t kind, place;
    uint64_t bytes;
};
_Static_assert(sizeof(struct head) == 16, "as docs/exec.md draws it");

struct process {
    struct process *next;
    struct kv_child *child;
    bool greeted;
    uint32_t *open; /* [n_open] places */
    size_t n_open;
};

struct kv_exec_pool {
    struct kv_exec_pool *next;
    char *command;
    pthread_mutex_t lock;
    struct process *idle;
    bool *closed; /* [n_places] */
    uint32_t n_places;
};

struct kv_exec_place {
    struct kv_exec_pool *pool;
    struct kv_exec_layout layout;
    uint32_t id;
    size_t layer;
    enum kv_side side;
    double silence;
    char *request; /* the OPEN request */
    size_t n_request;
};

static const char *const doing[] = {
    [KV_EXEC_HELLO] = "hello",   [KV_EXEC_OPEN] = "open",
    [KV_EXEC_TRAIN] = "train",   [KV_EXEC_ENCODE] = "encode",
    [KV_EXEC_DECODE] = "decode", [KV_EXEC_CLOSE] = "close",
};

struct kv_exec_pool *kv_exec_pool_of(const char *command)
{
    static struct kv_exec_pool *first;
    struct kv_exec_pool *p = first;

    while (p && strcmp(p->command, command))
        p = p->next;
    if (p)
        return p;
    p = kv_alloc(1, sizeof(*p));
    p->command = kv_strdup(command);
    pthread_mutex_init(&p->lock, NULL);
    p->next = first;
    first = p;
    return p;
}

/* ---- sentences --------------------------------------------------------- */

static int fail_where(const struct kv_exec_place *p, enum kv_exec_kind kind,
                      struct kv_err *e)
{
    return kv_fail_in(e, "exec '%s', layer %zu, %c, %s", p->pool->command,
                      p->layer, kv_side_name(p->side), doing[kind]);
}

int kv_exec_wrong(const struct kv_exec_place *p, enum kv_exec_kind kind,
                  struct kv_err *e, const char *fmt, ...)
{
    char text[512];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    kv_fail(e, "%s", text);
    return fail_where(p, kind, e);
}

/* The first bytes of an invalid answer, as text. */
static void show(const void *data, size_t n, char text[40])
{
    const char *from = data;
    size_t i = 0;

    for (; i < n && i < 39; i++)
        text[i] = isprint((unsigned char)from[i]) ? from[i] : '.';
    text[i] = 0;
}

/* ---- messages ---------------------------------------------------------- */

static int send_message(struct process *x, const struct kv_exec_place *p,
                        const struct kv_exec_request *r, struct kv_err *e)
{
    const struct head head = {(uint32_t)r->kind, p->id,
                              r->head_bytes + r->bytes};

    return kv_child_send(x->child, &head, sizeof(head), p->silence, e) ||
                   kv_child_send(x->child, r->head, r->head_bytes, p->silence,
                                 e) ||
                   kv_child_send(x->child, r->data, r->bytes, p->silence, e)
               ? -1
               : 0;
}

/* Returns 1 with the process's own error in e, if the process can go on. */
static int read_error(struct process *x, const struct kv_exec_place *p,
                      size_t n, struct kv_err *e)
{
    char text[600] = "";
    size_t end;

    if (n >= sizeof(text))
        return kv_child_fail(x->child, e,
                             "its sentence has %zu bytes: at most %zu", n,
                             sizeof(text) - 1);
    if (kv_child_read(x->child, text, n, p->silence, e))
        return -1;
    for (end = n; end && isspace((unsigned char)text[end - 1]);)
        text[--end] = 0;
    kv_fail(e, "%s", end ? text : "an error without a sentence");
    return 1;
}

static int read_answer(struct process *x, const struct kv_exec_place *p,
                       const struct kv_exec_request *r, void **answer,
                       size_t *n, struct kv_err *e)
{
    struct head head;
    char text[40];

    if (kv_child_read(x->child, &head, sizeof(head), p->silence, e))
        return -1;
    if (head.place == p->id && head.kind == KV_EXEC_ERROR)
        return read_error(x, p, head.bytes, e);
    if (head.place != p->id || head.kind != r->kind) {
        show(&head, sizeof(head), text);
        return kv_child_fail(x->child, e,
                             "its answer begins with '%s', which is no message "
                             "of the protocol (docs/exec.md): does it print on "
                             "stdout?",
                             text);
    }
    if (head.bytes > r->at_most)
        return kv_child_fail(x->child, e,
                             "it answers %zu bytes: expected at most %zu",
                             (size_t)head.bytes, r->at_most);
    *n = head.bytes;
    *answer = kv_alloc(*n + 1, 1); /* + 1: a text ends in 0 */
    if (!kv_child_read(x->child, *answer, *n, p->silence, e))
        return 0;
    free(*answer);
    return -1;
}

static int exchange(struct process *x, const struct kv_exec_place *p,
                    const struct kv_exec_request *r, void **answer, size_t *n,
                    struct kv_err *e)
{
    const int rc =
        send_message(x, p, r, e) ? -1 : read_answer(x, p, r, answer, n, e);

    if (rc)
        fail_where(p, r->kind, e);
    return rc;
}

static int greet(struct process *x, const struct kv_exec_place *p,
                 struct kv_err *e)
{
    const struct kv_exec_request r = {.kind = KV_EXEC_HELLO,
                                      .data = hello,
                                      .bytes = strlen(hello),
                                      .at_most = 64};
    void *answer;
    size_t n;
    char text[40];
    int rc = exchange(x, p, &r, &answer, &n, e);

    if (rc)
        return -1;
    if (n != strlen(welcome) || memcmp(answer, welcome, n) != 0) {
        show(answer, n, text);
        kv_child_fail(x->child, e,
                      "it greets with '%s': expected 'codec 1', the protocol "
                      "of docs/exec.md",
                      text);
        rc = fail_where(p, KV_EXEC_HELLO, e);
    }
    free(answer);
    return rc;
}

/* ---- processes --------------------------------------------------------- */

static void free_process(struct process *x)
{
    kv_child_free(x->child);
    free(x->open);
    free(x);
}

/* An idle process, or a new one. */
static struct process *take(struct kv_exec_pool *pool, struct kv_err *e)
{
    struct process *x;

    pthread_mutex_lock(&pool->lock);
    x = pool->idle;
    if (x)
        pool->idle = x->next;
    pthread_mutex_unlock(&pool->lock);
    if (x)
        return x;
    x = kv_alloc(1, sizeof(*x));
    if (!kv_child_start(&x->child, pool->command, e))
        return x;
    free(x);
    return NULL;
}

static void give_back(struct kv_exec_pool *pool, struct process *x)
{
    pthread_mutex_lock(&pool->lock);
    x->next = pool->idle;
    pool->idle = x;
    pthread_mutex_unlock(&pool->lock);
}

/* Tells the process which places have been closed. */
static int close_places(struct process *x, const struct kv_exec_place *p,
                        struct kv_err *e)
{
    size_t n = 0;
    int rc = 0;

    for (size_t i = 0; i < x->n_open && !rc; i++) {
        const struct kv_exec_place gone = {.id = x->open[i],
                                           .silence = p->silence};
        const struct kv_exec_request r = {.kind = KV_EXEC_CLOSE};
        bool closed;

        pthread_mutex_lock(&p->pool->lock);
        closed = p->pool->closed[x->open[i]];
        pthread_mutex_unlock(&p->pool->lock);
        if (!closed)
            x->open[n++] = x->open[i];
        else if ((rc = send_message(x, &gone, &r, e)))
            fail_where(p, KV_EXEC_CLOSE, e);
    }
    x->n_open = n;
    return rc;
}

/* ---- places ------------------------------------------------------------ */

/* Reads one line of the answer to an OPEN request; false: such a line is not
 * known. */
static bool read_line(struct kv_exec_layout *l, const char *line)
{
    char end;

    if (sscanf(line, "block %zu%c", &l->block, &end) == 1 ||
        sscanf(line, "bytes %zu%c", &l->bytes, &end) == 1 ||
        sscanf(line, "declared %lf%c", &l->declared, &end) == 1)
        return true;
    if (sscanf(line, "at-most %zu%c", &l->bytes, &end) == 1)
        return l->varies = true;
    if (!strcmp(line, "keys pre-rope"))
        return l->pre_rope = true;
    if (!strcmp(line, "rule batched"))
        return l->batched = true;
    return !strcmp(line, "trains") && (l->trains = true);
}

static int check_layout(const struct kv_exec_layout *l, struct kv_err *e)
{
    enum { MAX_BLOCK = 1 << 20, MAX_BYTES = 1 << 30 };

    if (l->block < 1 || l->block > MAX_BLOCK)
        return kv_fail(e, "a block of %zu tokens: expected 1 to %d", l->block,
                       MAX_BLOCK);
    if (l->bytes < 1 || l->bytes > MAX_BYTES)
        return kv_fail(e, "a block of %zu bytes: expected 1 to %d", l->bytes,
                       MAX_BYTES);
    if (!(l->declared >= 0 && l->declared <= 32))
        return kv_fail(e, "declares %g bits a value: expected 0 to 32",
                       l->declared);
    return 0;
}

/* Reads the answer to an OPEN request; text: lines, ending in 0; it is
 * overwritten. */
static int read_layout(struct kv_exec_layout *l, char *text, struct kv_err *e)
{
    char *rest;

    *l = (struct kv_exec_layout){.block = 0};
    for (char *line = strtok_r(text, "\n", &rest); line;
         line = strtok_r(NULL, "\n", &rest))
        if (!read_line(l, line))
            return kv_fail(e,
                           "answers '%.60s': expected the lines of "
                           "docs/exec.md (block, bytes, ...)",
                           line);
    return check_layout(l, e);
}

static bool equal(const struct kv_exec_layout *a,
                  const struct kv_exec_layout *b)
{
    return a->block == b->block && a->bytes == b->bytes &&
           a->declared == b->declared && a->varies == b->varies &&
           a->pre_rope == b->pre_rope && a->batched == b->batched &&
           a->trains == b->trains;
}

static int open_in(struct process *x, const struct kv_exec_place *p,
                   struct kv_exec_layout *l, struct kv_err *e)
{
    const struct kv_exec_request r = {.kind = KV_EXEC_OPEN,
                                      .data = p->request,
                                      .bytes = p->n_request,
                                      .at_most = 4096};
    void *answer;
    size_t n;
    int rc = exchange(x, p, &r, &answer, &n, e);

    if (rc)
        return rc;
    rc = read_layout(l, answer, e);
    free(answer);
    if (rc)
        return fail_where(p, KV_EXEC_OPEN, e);
    x->open = kv_realloc(x->open, x->n_open + 1, sizeof(*x->open));
    x->open[x->n_open++] = p->id;
    return 0;
}

/* Makes the process ready for the place: greets it and opens the place, if that
 * is not done yet. */
static int make_ready(struct process *x, const struct kv_exec_place *p,
                      struct kv_exec_layout *l, struct kv_err *e)
{
    int rc;

    *l = p->layout;
    if (!x->greeted && greet(x, p, e))
        return -1;
    x->greeted = true;
    if (close_places(x, p, e))
        return -1;
    for (size_t i = 0; i < x->n_open; i++)
        if (x->open[i] == p->id)
            return 0;
    rc = open_in(x, p, l, e);
    if (!rc && p->layout.block && !equal(l, &p->layout))
        return kv_exec_wrong(p, KV_EXEC_OPEN, e,
                             "one process answers otherwise than another");
    return rc;
}

int kv_exec_ask(const struct kv_exec_place *p, const struct kv_exec_request *r,
                void **answer, size_t *n, struct kv_err *e)
{
    struct process *x = take(p->pool, e);
    struct kv_exec_layout l;
    int rc;

    if (!x)
        return -1;
    rc = make_ready(x, p, &l, e);
    if (!rc)
        rc = exchange(x, p, r, answer, n, e);
    if (rc < 0)
        free_process(x);
    else
        give_back(p->pool, x);
    return rc ? -1 : 0;
}

/* Writes "param b 2\n" for each of the spec's own parameters. */
static void put_params(FILE *f, const struct kv_spec *s, enum kv_side side)
{
    for (size_t i = 0; i < kv_spec_n_own(s->scheme); i++) {
        const struct kv_param *p = &s->scheme->params[i];
        const double value = s->value[side][i];
        size_t n;
        const char *choice =
            p->choices ? kv_choice_at(p->choices, (size_t)value, &n) : NULL;

        if (choice)
            fprintf(f, "param %s %.*s\n", p->name, (int)n, choice);
        else
            fprintf(f, "param %s %s\n", p->name, kv_decimal(value).text);
    }
}

static double silence_of(const struct kv_spec *s, enum kv_side side)
{
    const size_t i = kv_spec_index(s->scheme, "timeout", strlen("timeout"));
    const struct kv_param *p = kv_spec_param(s->scheme, i);

    return p && !p->choices ? s->value[side][i] : SILENCE;
}

static void write_request(struct kv_exec_place *p, const struct kv_spec *spec,
                          const struct kv_shape *shape, const float *tables,
                          size_t n)
{
    FILE *f = open_memstream(&p->request, &p->n_request);

    if (!f)
        kv_memory_end(1, BUFSIZ);
    fprintf(f,
            "side %c\nlayer %zu\nlayers %zu\nheads %zu\nkv_heads %zu\n"
            "head_dim %zu\n",
            kv_side_name(p->side), p->layer, shape->n_layers, shape->n_heads,
            shape->n_kv_heads, shape->head_dim);
    put_params(f, spec, p->side);
    fprintf(f, "tables %zu\n\n", n);
    if (n)
        fwrite(tables, sizeof(*tables), n, f);
    fclose(f);
}

int kv_exec_place_new(struct kv_exec_place **out, const struct kv_spec *spec,
                      const struct kv_shape *shape, size_t layer,
                      enum kv_side side, const float *tables, size_t n,
                      struct kv_err *e)
{
    struct kv_exec_pool *pool = kv_exec_of(spec->scheme)->pool;
    struct kv_exec_place *p = kv_alloc(1, sizeof(*p));
    struct process *x;
    int rc = -1;

    p->pool = pool;
    p->layer = layer;
    p->side = side;
    p->silence = silence_of(spec, side);
    write_request(p, spec, shape, tables, tables ? n : 0);
    pthread_mutex_lock(&pool->lock);
    pool->closed =
        kv_realloc(pool->closed, pool->n_places + 1, sizeof(*pool->closed));
    p->id = pool->n_places++;
    pool->closed[p->id] = false;
    pthread_mutex_unlock(&pool->lock);
    x = take(pool, e);
    if (x)
        rc = make_ready(x, p, &p->layout, e);
    if (rc && x)
        free_process(x);
    if (rc) {
        kv_exec_place_free(p);
        return -1;
    }
    give_back(pool, x);
    *out = p;
    return 0;
}

void kv_exec_place_free(struct kv_exec_place *p)
{
    if (!p)
        return;
    pthread_mutex_lock(&p->pool->lock);
    p->pool->closed[p->id] = true;
    pthread_mutex_unlock(&p->pool->lock);
    free(p->request);
    free(p);
}

const struct kv_exec_layout *kv_exec_layout(const struct kv_exec_place *p)
{
    return &p->layout;
}
