#include "tools/serve/metrics.h"
#include "lib/base/alloc.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KINDS = 64 }; /* more than routes times statuses */

struct kv_metrics {
    pthread_mutex_t lock;
    struct kind {
        const char *path;
        int status;
        unsigned long n;
        double seconds;
    } kind[KINDS];
    size_t n_kinds, prompt_tokens, tokens;
};

struct kv_metrics *kv_metrics_new(void)
{
    struct kv_metrics *m = kv_alloc(1, sizeof(*m));

    pthread_mutex_init(&m->lock, NULL);
    return m;
}

void kv_metrics_free(struct kv_metrics *m)
{
    pthread_mutex_destroy(&m->lock);
    free(m);
}

void kv_metrics_request(struct kv_metrics *m, const char *path, int status,
                        double seconds)
{
    size_t i = 0;

    pthread_mutex_lock(&m->lock);
    while (i < m->n_kinds &&
           (strcmp(m->kind[i].path, path) != 0 || m->kind[i].status != status))
        i++;
    if (i < KINDS) {
        m->n_kinds += i == m->n_kinds;
        m->kind[i].path = path;
        m->kind[i].status = status;
        m->kind[i].n++;
        m->kind[i].seconds += seconds;
    }
    pthread_mutex_unlock(&m->lock);
}

void kv_metrics_tokens(struct kv_metrics *m, size_t prompt, size_t made)
{
    pthread_mutex_lock(&m->lock);
    m->prompt_tokens += prompt;
    m->tokens += made;
    pthread_mutex_unlock(&m->lock);
}

__attribute__((format(printf, 2, 3))) static void put(struct kv_text *t,
                                                      const char *fmt, ...)
{
    char line[256];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(line, sizeof(line), fmt, ap);
    va_end(ap);
    kv_text_add(t, line, strlen(line));
}

static void put_one(struct kv_text *t, const char *name, const char *type,
                    const char *help, size_t n)
{
    put(t, "# HELP kvgen_%s %s\n# TYPE kvgen_%s %s\nkvgen_%s %zu\n", name, help,
        name, type, name, n);
}

/* Prints a counter by path and status; status "left": the client left. */
static void put_requests(const struct kv_metrics *m, struct kv_text *t,
                         const char *name, bool seconds)
{
    put(t, "# TYPE kvgen_%s counter\n", name);
    for (size_t i = 0; i < m->n_kinds; i++) {
        const struct kind *k = &m->kind[i];
        char status[16] = "left";

        if (k->status)
            snprintf(status, sizeof(status), "%d", k->status);
        put(t, "kvgen_%s{path=\"%s\",status=\"%s\"} %.9g\n", name, k->path,
            status, seconds ? k->seconds : (double)k->n);
    }
}

void kv_metrics_print(struct kv_metrics *m, const struct kv_queue_counts *now,
                      struct kv_text *t)
{
    pthread_mutex_lock(&m->lock);
    put_requests(m, t, "requests_total", false);
    put_requests(m, t, "request_seconds_total", true);
    put_one(t, "prompt_tokens_total", "counter", "tokens of prompts",
            m->prompt_tokens);
    put_one(t, "tokens_total", "counter", "new tokens", m->tokens);
    pthread_mutex_unlock(&m->lock);
    put_one(t, "requests_open", "gauge", "completions under way or waiting",
            now->jobs);
    put_one(t, "answers_decoding", "gauge", "answers that decode",
            now->decoding);
    put_one(t, "answers_waiting", "gauge", "answers of open requests that wait",
            now->waiting);
}
