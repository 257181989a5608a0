/* What tokenizers look for in a text: a string or a regular expression.
 *
 * Regular expressions are written for Oniguruma (Ruby's syntax, as Hugging
 * Face uses it) and run by PCRE2.  What the two read differently is rewritten
 * or refused by name, never passed on. */
#ifndef KV_MODEL_TOKENIZER_PATTERN_H
#define KV_MODEL_TOKENIZER_PATTERN_H

#include "lib/base/err.h"
#include "lib/tokenizer/tokenizer_text.h"

#include <jansson.h>
#include <stdbool.h>

/* Watches over the work on one text, whoever wrote the tokenizer: an interrupt
 * is seen, expressions that take more than a second and 10 microseconds a byte
 * of it (100 times what any needs) end, and so do rewritings that make more
 * than 64 times its bytes and 1 MiB. */
struct kv_watch {
    size_t n_bytes, n_made;
    double cpu, looked; /* this thread's time at the start; the clock, lately */
};
void kv_watch_init(struct kv_watch *w, size_t n_bytes);
/* Costs a look at the clock.  source: the expression, NULL: none is at work. */
int kv_watch_look(struct kv_watch *w, const char *source, struct kv_err *e);
/* n bytes more were made of the text. */
int kv_watch_made(struct kv_watch *w, size_t n, struct kv_err *e);

/* A tokenizer's normalizer, pre_tokenizer and decoder have this many stages at
 * most: each text goes through all of them. */
enum { KV_TOKENIZER_STAGES = 64 };

struct kv_pattern;

/* Takes no more than 64 KiB of a regular expression's own code. */
int kv_pattern_new(struct kv_pattern **p, const char *source, bool regex,
                   struct kv_err *e);
/* {"String": "..."} or {"Regex": "..."}. */
int kv_pattern_parse(struct kv_pattern **p, const json_t *j, struct kv_err *e);
void kv_pattern_free(struct kv_pattern *p);

/* Cuts a text, well-formed UTF-8, into matches and what lies between them.
 * Nothing in p changes, so that threads may share it. */
struct kv_scan {
    const struct kv_pattern *p;
    const char *s;
    size_t n, at; /* the next part starts here */
    size_t next_start, next_end;
    bool found; /* a match at next_start is still to be given */
    struct kv_watch *watch;
    void *match_data, *context;
};

struct kv_part {
    size_t start, end; /* never empty */
    bool is_match;
};

void kv_scan_init(struct kv_scan *x, const struct kv_pattern *p, const char *s,
                  size_t n, struct kv_watch *w);
/* 1 and the next part, 0 at the end, or -1: the expression matches an empty
 * string, PCRE2 gave up, or the watch did. */
int kv_scan_next(struct kv_scan *x, struct kv_part *part, struct kv_err *e);
void kv_scan_clear(struct kv_scan *x);

/* Appends the text with every match replaced. */
int kv_pattern_replace(const struct kv_pattern *p, const char *s, size_t n,
                       const char *by, struct kv_text *out, struct kv_watch *w,
                       struct kv_err *e);

/* Rewrites an expression from Oniguruma's syntax to PCRE2's (compiled with
 * UTF, UCP and MULTILINE); fails on what it does not know to be the same. */
int kv_regex_translate(const char *source, struct kv_text *out,
                       struct kv_err *e);

#endif
