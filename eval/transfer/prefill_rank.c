#include "eval/transfer/transfer_impl.h"
#include "lib/base/alloc.h"
#include "lib/base/progress.h"
#include "lib/seq/seq.h"

#include <limits.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

/* A prompt, and its layers' messages until the decoding rank has loaded
 * them. */
struct sending {
    struct kv_msg of;
    size_t to;
    bool begun, granted, dropped, has_first, sent_first;
    struct kv_msg_first first;
    uint8_t **layer; /* [n_layers] */
    size_t *bytes;   /* [n_layers] */
    size_t n_ready, n_sent;
    struct kv_msg_prefilled times;
};

struct kv_prefill_rank {
    const struct kv_transfer *t;
    struct kv_transfer_job *job;
    int (*poll)(void *arg, struct kv_err *e);
    void *arg;
    struct kv_generator *generator;
    size_t n_layers;      /* one more if there is a state, which comes last */
    struct sending **all; /* [n] in the order of their prompts */
    size_t n;
    struct sending *now; /* the request whose prompt runs */
    struct kv_answer answer;
    size_t kept; /* bytes of all layers */
    size_t n_layers_sent;
    double writing;        /* seconds of kv_seq_write() for `now` */
    struct kv_err *failed; /* the error of poll() while a prompt runs */
};

static void clear(struct kv_prefill_rank *p, struct sending *s)
{
    for (size_t i = 0; i < s->n_ready; i++) {
        p->kept -= s->bytes[i];
        free(s->layer[i]);
    }
    free(s->layer);
    free(s->bytes);
    free(s);
}

/* Frees the i-th request; if its prompt runs, the end of the prompt frees
 * it. */
static void drop(struct kv_prefill_rank *p, size_t i)
{
    struct sending *s = p->all[i];

    s->dropped = true;
    if (s == p->now)
        return;
    clear(p, s);
    memmove(p->all + i, p->all + i + 1, (--p->n - i) * sizeof(*p->all));
}

static size_t find(const struct kv_prefill_rank *p, struct kv_msg of)
{
    size_t i = 0;

    while (i < p->n && (p->all[i]->of.answer != of.answer ||
                        p->all[i]->of.attempt != of.attempt))
        i++;
    return i;
}

/* ---- sending ------------------------------------------------------------- */

static void send_layer(struct kv_prefill_rank *p, struct sending *s,
                       size_t layer)
{
    const struct kv_transfer_fault *f = &p->t->fault;
    const struct kv_msg_layer head = {s->of, layer};
    uint8_t *middle = s->layer[layer] + s->bytes[layer] / 2;

    p->n_layers_sent++;
    if (p->n_layers_sent == f->end)
        raise(SIGKILL);
    *middle ^= p->n_layers_sent == f->alter;
    kv_transfer_send(p->t, s->to, KV_TAG_LAYER, &head, sizeof(head),
                     s->layer[layer], s->bytes[layer]);
    *middle ^= p->n_layers_sent == f->alter;
}

/* Sends all messages that are ready, if the decoding rank has granted room. */
static void flush(struct kv_prefill_rank *p, struct sending *s)
{
    if (!s->granted || s->dropped)
        return;
    while (s->n_sent < s->n_ready)
        send_layer(p, s, s->n_sent++);
    if (s->has_first && !s->sent_first && s->n_sent == p->n_layers) {
        kv_transfer_send(p->t, s->to, KV_TAG_FIRST, &s->first, sizeof(s->first),
                         NULL, 0);
        s->sent_first = true;
    }
}

static int layer_ready(void *arg, const struct kv_answer *a,
                       const struct kv_seq *seq, size_t layer, struct kv_err *e)
{
    struct kv_prefill_rank *p = arg;
    struct sending *s = p->now;
    const double start = kv_seconds();

    (void)a;
    if (s->dropped)
        return kv_fail(e, "another rank runs this prompt");
    if (layer == kv_model_info(p->t->generation.model)->shape.n_layers)
        kv_seq_write_state(seq, &s->layer[layer], &s->bytes[layer]);
    else if (kv_seq_write(seq, layer, &s->layer[layer], &s->bytes[layer], e))
        return -1;
    s->n_ready = layer + 1;
    p->kept += s->bytes[layer];
    p->writing += kv_seconds() - start;
    if (!layer)
        s->times.ready = kv_seconds();
    if (s->bytes[layer] > INT_MAX - sizeof(struct kv_msg_layer))
        return kv_fail(e,
                       "layer %zu of %zu tokens is %.3g GB, more than a "
                       "message holds",
                       layer, a->n_prompt, (double)s->bytes[layer] * 1e-9);
    flush(p, s);
    if (p->poll(p->arg, p->failed))
        return kv_fail(e, "%s", p->failed->msg);
    return 0;
}

/* ---- messages ------------------------------------------------------------ */

static void take_prompt(struct kv_prefill_rank *p, const struct kv_message *m)
{
    struct kv_msg_prompt head;
    struct sending *s;

    if (!kv_transfer_head(m, &head, sizeof(head)))
        return;
    s = kv_alloc(1, sizeof(*s));
    *s = (struct sending){.of = head.of, .to = (size_t)head.decode};
    s->layer = kv_alloc(p->n_layers, sizeof(*s->layer));
    s->bytes = kv_alloc(p->n_layers, sizeof(*s->bytes));
    p->all = kv_realloc(p->all, p->n + 1, sizeof(*p->all));
    p->all[p->n++] = s;
}

static void take_again(struct kv_prefill_rank *p, const struct kv_message *m)
{
    struct kv_msg_layer head;
    size_t i;

    if (!kv_transfer_head(m, &head, sizeof(head)))
        return;
    i = find(p, head.of);
    if (i < p->n && head.layer < p->all[i]->n_sent)
        send_layer(p, p->all[i], (size_t)head.layer);
}

static void drop_older(struct kv_prefill_rank *p, struct kv_msg of)
{
    for (size_t i = p->n; i--;)
        if (p->all[i]->of.answer == of.answer &&
            p->all[i]->of.attempt <= of.attempt)
            drop(p, i);
}

void kv_prefill_rank_take(struct kv_prefill_rank *p, const struct kv_message *m)
{
    struct kv_msg of;
    size_t i;

    if (!kv_transfer_head(m, &of, sizeof(of)))
        return;
    i = find(p, of);
    if (m->tag == KV_TAG_PROMPT)
        take_prompt(p, m);
    else if (m->tag == KV_TAG_AGAIN)
        take_again(p, m);
    else if (m->tag == KV_TAG_DROP)
        drop_older(p, of);
    else if (m->tag == KV_TAG_LOADED && i < p->n)
        drop(p, i);
    else if (m->tag == KV_TAG_GRANT && i < p->n) {
        p->all[i]->granted = true;
        flush(p, p->all[i]);
    }
}

/* ---- prompts ------------------------------------------------------------- */

static void report(struct kv_prefill_rank *p, struct sending *s,
                   const struct kv_answer *a)
{
    s->times.of = s->of;
    s->times.ended = kv_seconds();
    s->times.encode =
        a->encode_seconds > 0 ? a->encode_seconds + p->writing : NAN;
    kv_transfer_send(p->t, 0, KV_TAG_PREFILLED, &s->times, sizeof(s->times),
                     NULL, 0);
}

/* Called when the prompt has its first token, or has failed. */
static int prompt_ended(void *arg, struct kv_answer *a, struct kv_err *e)
{
    struct kv_prefill_rank *p = arg;
    struct sending *s = p->now;
    const size_t most = p->job[s->of.answer].answer->most;

    (void)e;
    if (a->finish == KV_FINISH_FAILED) {
        if (!s->dropped && !*p->failed->msg)
            kv_transfer_fail(p->t, s->of, false, a->why);
        s->dropped = true;
        return 0;
    }
    s->first = (struct kv_msg_first){
        s->of, a->ids[0], a->finish,
        a->finish == KV_FINISH_EOS || a->finish == KV_FINISH_STOP || most == 1};
    s->has_first = true;
    report(p, s, a);
    flush(p, s);
    return 0;
}

static int run(struct kv_prefill_rank *p, struct sending *s, struct kv_err *e)
{
    struct kv_err failed = {""};
    int rc;

    p->now = s;
    p->failed = &failed;
    p->writing = 0;
    s->begun = true;
    s->times.begun = kv_seconds();
    kv_transfer_send(p->t, s->to, KV_TAG_ASK, &s->of, sizeof(s->of), NULL, 0);
    p->answer = *p->job[s->of.answer].answer;
    p->answer.most = 1;
    rc = kv_generator_add(p->generator, &p->answer, e);
    while (!rc && !kv_generator_idle(p->generator))
        rc = kv_generator_step(p->generator, e);
    kv_answer_clear(&p->answer);
    p->now = NULL;
    if (s->dropped)
        for (size_t i = p->n; i--;)
            if (p->all[i] == s)
                drop(p, i);
    return !rc && *failed.msg ? kv_fail(e, "%s", failed.msg) : rc;
}

/* Gives up the caches for decoding ranks that have fallen silent. */
static void give_up_silent(struct kv_prefill_rank *p)
{
    for (size_t i = p->n; i--;) {
        const struct sending *s = p->all[i];
        struct kv_err e;

        if (!s->begun ||
            kv_transport_silence(p->t->transport, s->to) <= p->t->silence)
            continue;
        kv_fail(&e, "rank %zu was silent for %g s (--disaggregate-silence)",
                s->to, p->t->silence);
        kv_transfer_fail(p->t, s->of, true, e.msg);
        drop(p, i);
    }
}

int kv_prefill_rank_step(struct kv_prefill_rank *p, bool *ran, struct kv_err *e)
{
    const struct kv_shape *shape =
        &kv_model_info(p->t->generation.model)->shape;
    size_t i = 0;

    *ran = false;
    give_up_silent(p);
    while (i < p->n && p->all[i]->begun)
        i++;
    if (i == p->n)
        return 0;

    const struct kv_answer *a = p->job[p->all[i]->of.answer].answer;

    if (p->kept &&
        p->kept + kv_generate_cache_bytes(shape, a->n_prompt) > p->t->memory)
        return 0;
    *ran = true;
    return run(p, p->all[i], e);
}

/* ---- the whole ----------------------------------------------------------- */

struct kv_prefill_rank *
kv_prefill_rank_new(const struct kv_transfer *t, struct kv_transfer_job *job,
                    int (*poll)(void *arg, struct kv_err *e), void *arg)
{
    struct kv_prefill_rank *p = kv_alloc(1, sizeof(*p));
    struct kv_generation g = t->generation;

    g.batch = 1;
    g.progress = NULL;
    g.layer = layer_ready;
    g.ended = prompt_ended;
    g.arg = p;
    *p = (struct kv_prefill_rank){.t = t,
                                  .job = job,
                                  .poll = poll,
                                  .arg = arg,
                                  .generator = kv_generator_new(&g),
                                  .n_layers = kv_transfer_layers(t)};
    return p;
}

void kv_prefill_rank_free(struct kv_prefill_rank *p)
{
    if (!p)
        return;
    for (size_t i = 0; i < p->n; i++)
        clear(p, p->all[i]);
    free(p->all);
    kv_generator_free(p->generator);
    free(p);
}
