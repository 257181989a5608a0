#include "tools/serve/choice.h"
#include "lib/base/alloc.h"
#include "lib/base/utf8.h"
#include "lib/tokenizer/tokenizer_text.h"

#include <stdlib.h>
#include <string.h>

/* The number of the prompt's tokens that are decoded one by one, as forced
 * tokens. */
static size_t n_forced(const struct kv_choice *c)
{
    return c->answer->n_forced;
}

/* An answer makes at least one token; with max_tokens 0 the token is not
 * shown. */
void kv_choice_ask(struct kv_answer *a, const struct kv_request *r,
                   const struct kv_request_prompt *p, size_t ctx)
{
    const size_t room = ctx - p->n,
                 most = r->max_tokens < room ? r->max_tokens : room;

    a->prompt = p->ids;
    a->n_prompt = p->n;
    if (kv_request_scores(r)) {
        a->n_prompt = 1;
        a->forced = p->ids + 1;
        a->n_forced = p->n - 1;
    }
    a->most = a->n_forced + most;
    a->most += !a->most;
    a->least = r->min_tokens;
    a->sampling = &r->sampling;
    a->stops = (struct kv_stops){(const char *const *)r->stop, r->n_stops};
    a->n_top = !r->log_probs ? 0 : r->n_top ? r->n_top : 1;
}

size_t kv_choice_tokens(const struct kv_choice *c)
{
    const size_t n =
        c->made.tokens > n_forced(c) ? c->made.tokens - n_forced(c) : 0;

    return n < c->request->max_tokens ? n : c->request->max_tokens;
}

const char *kv_choice_finish(const struct kv_choice *c)
{
    return c->request->max_tokens && c->answer->finish != KV_FINISH_LENGTH
               ? "stop"
               : "length";
}

/* ---- text ---------------------------------------------------------------- */

static const int32_t *new_ids(const struct kv_choice *c)
{
    return kv_choice_tokens(c) ? c->answer->ids + n_forced(c) : NULL;
}

/* The number of bytes that are sure: the text's end may be half a character or
 * the beginning of a stop string. */
static size_t count_sure(const struct kv_stops *s, const char *text, size_t n)
{
    static const char half[] = KV_UTF8_REPLACEMENT;
    size_t most = n, held = 0;

    while (most >= 3 && !memcmp(text + most - 3, half, 3))
        most -= 3;
    for (size_t i = 0; i < s->n; i++) {
        size_t k = strlen(s->text[i]) - 1;

        k = k < most ? k : most;
        while (k > held && memcmp(text + most - k, s->text[i], k) != 0)
            k--;
        held = k > held ? k : held;
    }
    return most - held;
}

/* The new tokens' text up to a stop string. */
static int new_text(const struct kv_choice *c, char **text, size_t *bytes,
                    size_t *sure, struct kv_err *e)
{
    const struct kv_answer *a = c->answer;
    const bool eos = c->made.ended && a->finish == KV_FINISH_EOS;
    const size_t n = kv_choice_tokens(c);

    if (kv_answer_cut(c->tokenizer, c->prompt->ids, c->prompt->n, new_ids(c),
                      n - (eos && n), &a->stops, a->least, text, bytes, e))
        return -1;
    *sure = c->made.ended ? *bytes : count_sure(&a->stops, *text, *bytes);
    return 0;
}

int kv_choice_text(const struct kv_choice *c, char **text, size_t *bytes,
                   size_t *sure, struct kv_err *e)
{
    const char *start = c->request->echo ? c->prompt->text : "";
    const size_t n = strlen(start);
    char *mine;

    if (new_text(c, &mine, bytes, sure, e))
        return -1;
    *text = kv_alloc(n + *bytes + 1, 1);
    memcpy(*text, start, n);
    memcpy(*text + n, mine, *bytes);
    free(mine);
    *bytes += n;
    *sure += n;
    return 0;
}

/* ---- log-probabilities --------------------------------------------------- */

/* The prompt's and the new tokens; `first` is the first scored one. */
struct tokens {
    int32_t *ids; /* [n] */
    size_t n, first;
};

static void list_tokens(const struct kv_choice *c, struct tokens *t)
{
    const size_t n = c->prompt->n, made = kv_choice_tokens(c);

    t->ids = kv_alloc(n + made, sizeof(*t->ids));
    memcpy(t->ids, c->prompt->ids, n * sizeof(*t->ids));
    if (made)
        memcpy(t->ids + n, new_ids(c), made * sizeof(*t->ids));
    t->n = n + made;
    t->first = kv_request_scores(c->request) ? 0 : n;
}

size_t kv_choice_scored(const struct kv_choice *c)
{
    const size_t made = c->made.tokens;

    if (!kv_request_scores(c->request))
        return kv_choice_tokens(c);
    return 1 + (made < n_forced(c) ? made : n_forced(c)) + kv_choice_tokens(c);
}

/* Decodes an id that follows the first `at` tokens. */
static int token_text(const struct kv_choice *c, const struct tokens *t,
                      size_t at, int32_t id, char **text, size_t *bytes,
                      struct kv_err *e)
{
    return kv_answer_text(c->tokenizer, t->ids, at, &id, 1, text, bytes, e);
}

static size_t count_characters(const char *text, size_t n)
{
    size_t count = 0;

    for (size_t i = 0; i < n; i++)
        count += ((unsigned char)text[i] & 0xc0) != 0x80;
    return count;
}

/* A token's text and results; the prompt's first token has no results. */
struct scored {
    char *text;
    size_t bytes;
    bool has;
    float log_prob;
    const struct kv_top *top; /* [n_top]; n_top is the request's */
};

static int score(const struct kv_choice *c, const struct tokens *t, size_t i,
                 struct scored *x, struct kv_err *e)
{
    const struct kv_answer *a = c->answer;
    const size_t at = t->first + i, skip = kv_request_scores(c->request);

    *x = (struct scored){.has = i >= skip};
    if (x->has) {
        x->log_prob = a->log_prob[i - skip];
        x->top = a->top + (i - skip) * a->n_top;
    }
    return token_text(c, t, at, t->ids[at], &x->text, &x->bytes, e);
}

/* ---- as completions have them -------------------------------------------- */

/* Makes {text: log-probability}: the most probable tokens, and the token
 * itself.  Of tokens with equal texts it has the most probable. */
static json_t *text_top(const struct kv_choice *c, const struct tokens *t,
                        size_t i, const struct scored *x, struct kv_err *e)
{
    json_t *all = json_object();

    for (size_t k = 0; k < c->request->n_top && x->top[k].id >= 0; k++) {
        char *text;
        size_t bytes;

        if (token_text(c, t, t->first + i, x->top[k].id, &text, &bytes, e)) {
            json_decref(all);
            return NULL;
        }
        if (!json_object_get(all, text))
            json_object_set_new(all, text, json_real(x->top[k].log_prob));
        free(text);
    }
    if (!json_object_get(all, x->text))
        json_object_set_new(all, x->text, json_real(x->log_prob));
    return all;
}

static json_t *text_log_probs(const struct kv_choice *c, const struct tokens *t,
                              size_t from, size_t to, size_t *offset,
                              struct kv_err *e)
{
    json_t *tokens = json_array(), *probs = json_array(), *tops = json_array(),
           *offsets = json_array();

    for (size_t i = from; i < to; i++) {
        json_t *top = NULL;
        struct scored x;

        if (score(c, t, i, &x, e))
            goto fail;
        if (x.has && c->request->n_top)
            top = text_top(c, t, i, &x, e);
        json_array_append_new(tokens, json_stringn(x.text, x.bytes));
        json_array_append_new(probs,
                              x.has ? json_real(x.log_prob) : json_null());
        json_array_append_new(tops, top ? top : json_null());
        json_array_append_new(offsets, json_integer((json_int_t)*offset));
        *offset += count_characters(x.text, x.bytes);
        free(x.text);
        if (x.has && c->request->n_top && !top)
            goto fail;
    }
    return json_pack("{s:o, s:o, s:o, s:o}", "tokens", tokens, "token_logprobs",
                     probs, "top_logprobs", tops, "text_offset", offsets);
fail:
    json_decref(tokens);
    json_decref(probs);
    json_decref(tops);
    json_decref(offsets);
    return NULL;
}

/* ---- as chats have them -------------------------------------------------- */

/* Lists the token's own bytes.  For a part of a character the text has U+FFFD
 * or nothing, but the bytes of all tokens together are the answer's. */
static json_t *token_bytes(const struct kv_choice *c, int32_t id,
                           const char *text, size_t n)
{
    struct kv_text own = {0};
    json_t *bytes = json_array();

    if (kv_tokenizer_bytes(c->tokenizer, id, &own)) {
        text = own.s;
        n = own.n;
    }
    for (size_t i = 0; i < n; i++)
        json_array_append_new(bytes, json_integer((unsigned char)text[i]));
    kv_text_clear(&own);
    return bytes;
}

static json_t *chat_token(const struct kv_choice *c, int32_t id,
                          const char *text, size_t n, float log_prob)
{
    return json_pack("{s:s%, s:f, s:o}", "token", text, n, "logprob",
                     (double)log_prob, "bytes", token_bytes(c, id, text, n));
}

static json_t *chat_log_prob(const struct kv_choice *c, const struct tokens *t,
                             size_t i, struct kv_err *e)
{
    json_t *top = json_array(), *one;
    struct scored x;

    if (score(c, t, i, &x, e)) {
        json_decref(top);
        return NULL;
    }
    one = chat_token(c, t->ids[t->first + i], x.text, x.bytes, x.log_prob);
    free(x.text);
    json_object_set_new(one, "top_logprobs", top);
    for (size_t k = 0; k < c->request->n_top && x.top[k].id >= 0; k++) {
        if (token_text(c, t, t->first + i, x.top[k].id, &x.text, &x.bytes, e)) {
            json_decref(one);
            return NULL;
        }
        json_array_append_new(top, chat_token(c, x.top[k].id, x.text, x.bytes,
                                              x.top[k].log_prob));
        free(x.text);
    }
    return one;
}

static json_t *chat_log_probs(const struct kv_choice *c, const struct tokens *t,
                              size_t from, size_t to, struct kv_err *e)
{
    json_t *all = json_array();

    for (size_t i = from; i < to; i++) {
        json_t *one = chat_log_prob(c, t, i, e);

        if (!one) {
            json_decref(all);
            return NULL;
        }
        json_array_append_new(all, one);
    }
    return json_pack("{s:o}", "content", all);
}

json_t *kv_choice_log_probs(const struct kv_choice *c, size_t from,
                            size_t *offset, struct kv_err *e)
{
    const size_t to = kv_choice_scored(c);
    struct tokens t;
    json_t *all;

    list_tokens(c, &t);
    all = c->request->chat ? chat_log_probs(c, &t, from, to, e)
                           : text_log_probs(c, &t, from, to, offset, e);
    free(t.ids);
    return all;
}
