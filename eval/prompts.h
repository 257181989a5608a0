/* Reads prompts from a file of JSON lines. */
#ifndef KV_PROMPTS_H
#define KV_PROMPTS_H

#include "eval/answer_text.h"
#include "lib/base/hash.h"
#include "lib/tokenizer/chat_template.h"

/* A line: an object with an id, a text or an integer (the number of the line),
 * and either of
 *
 *   context       a text, which may be empty
 *   continuation  a text that follows it
 *
 * whose log-likelihood is measured, or
 *
 *   prompt      a text, or
 *   messages    [{"role": "system", "user" or "assistant", "content": text}]:
 *               at most one of the system's, then the user's and the
 *               assistant's in turn; a last one of the assistant's is the
 *               beginning of the answer
 *   max_tokens  1 or more
 *   min_tokens  0 or more (eval/answer.h, least)
 *   stop        a text, or a list of texts, none empty
 *
 * and any other fields, which are kept.  Empty lines are skipped. */
struct kv_prompt {
    size_t line;
    json_t *fields;
    const char *text; /* or NULL if there are messages; both belong to fields */
    json_t *messages;
    const char *continuation; /* or NULL; belongs to fields */
    size_t max_tokens;        /* 0: not given */
    size_t min_tokens;        /* SIZE_MAX: not given */
    const char **stop;        /* [n_stops]: the texts are parts of fields */
    size_t n_stops;
    int32_t *ids; /* [n + n_continuation], after kv_prompts_encode() */
    size_t n, n_continuation;
};

struct kv_prompts {
    const char *path;
    char hash[KV_HASH_CHARS];
    struct kv_prompt *at; /* [n] */
    size_t n;
};

/* path: a file or a pipe; kept by pointer.  continued: lines have context and
 * continuation.  taken: names, up to a NULL, that no field may have.  Fails,
 * with the line, on a line that is not as above, and on a file without
 * prompts. */
int kv_prompts_read(struct kv_prompts *p, const char *path, bool continued,
                    const char *const *taken, struct kv_err *e);
void kv_prompts_clear(struct kv_prompts *p);

struct kv_prompt_encoder {
    const struct kv_tokenizer *tokenizer;
    size_t n_vocab;
    bool special; /* names of special tokens in a prompt are tokens */
    const struct kv_chat_model *chat;
    const char *model, *template; /* for kv_chat_messages() */
    struct kv_chat_clock *clock;
};

/* Reads messages, in the form of a line, into p->messages.  Replaces a content
 * that is a list of parts, [{"type": "text", "text": text}], by the texts, with
 * a line feed between two. */
int kv_prompt_take_messages(struct kv_prompt *p, json_t *messages,
                            struct kv_err *e);
/* Makes the tokens of p's text or messages; adds the counts of
 * kv_tokenizer_encode() to named.  Fails as kv_prompts_encode() does. */
int kv_prompt_encode(struct kv_prompt *p, const struct kv_prompt_encoder *r,
                     struct kv_named *named, struct kv_err *e);

/* Makes the tokens of all prompts.  A text gets a BOS if the tokenizer adds
 * one; messages become the template's text, special tokens included.  White
 * space at the end of a context moves to the beginning of its continuation.
 * Both are tokenized as one text; the tokens behind the context's are the
 * continuation.  An empty context becomes a BOS.  Fails, with the line, as
 * kv_chat_messages() does, on a prompt or a continuation without tokens, and on
 * an empty context if there is no BOS. */
int kv_prompts_encode(struct kv_prompts *p, const struct kv_prompt_encoder *r,
                      struct kv_err *e);

#endif
