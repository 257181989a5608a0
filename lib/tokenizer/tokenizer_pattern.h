/* The patterns that tokenizers match in a text: a string or a regular
 * expression.
 *
 * Regular expressions are written for Oniguruma (Ruby's syntax, as Hugging
 * Face uses it) and run by PCRE2.  Syntax that the two interpret differently is
 * rewritten or refused by name. */
#ifndef KV_MODEL_TOKENIZER_PATTERN_H
#define KV_MODEL_TOKENIZER_PATTERN_H

#include "lib/base/err.h"
#include "lib/tokenizer/tokenizer_text.h"

#include <jansson.h>
#include <stdbool.h>

/* Limits the work on one text, since a tokenizer may come from anyone.  It
 * notices interrupts.  It ends expressions that take longer than 1 s + 10 us
 * per byte of the text (100 times the need of any expression), and rewriting
 * that produces more than 1 MiB + 64 times the text's bytes. */
struct kv_watch {
    size_t n_bytes, n_made;
    double cpu, looked; /* this thread's time at the start; the clock at the
                         * last look */
};
void kv_watch_init(struct kv_watch *w, size_t n_bytes);
/* Checks the limits, at the cost of reading the clock.  source: the running
 * expression; NULL: none. */
int kv_watch_look(struct kv_watch *w, const char *source, struct kv_err *e);
/* Counts n more bytes made from the text. */
int kv_watch_made(struct kv_watch *w, size_t n, struct kv_err *e);

/* The maximum number of stages in a tokenizer's normalizer, pre_tokenizer and
 * decoder; each text goes through all of them. */
enum { KV_TOKENIZER_STAGES = 64 };

struct kv_pattern;

/* Accepts at most 64 KiB of compiled code for a regular expression. */
int kv_pattern_new(struct kv_pattern **p, const char *source, bool regex,
                   struct kv_err *e);
/* {"String": "..."} or {"Regex": "..."}. */
int kv_pattern_parse(struct kv_pattern **p, const json_t *j, struct kv_err *e);
void kv_pattern_free(struct kv_pattern *p);

/* Cuts a text, well-formed UTF-8, into matches and the parts between them.  p
 * is not changed, so threads may share it. */
struct kv_scan {
    const struct kv_pattern *p;
    const char *s;
    size_t n, at; /* the next part starts here */
    size_t next_start, next_end;
    bool found; /* the match at next_start has not been returned yet */
    struct kv_watch *watch;
    void *match_data, *context;
};

struct kv_part {
    size_t start, end; /* never empty */
    bool is_match;
};

void kv_scan_init(struct kv_scan *x, const struct kv_pattern *p, const char *s,
                  size_t n, struct kv_watch *w);
/* Returns 1 with the next part, 0 at the end, or -1 if the expression matches
 * an empty string, PCRE2 gives up, or a limit is exceeded. */
int kv_scan_next(struct kv_scan *x, struct kv_part *part, struct kv_err *e);
void kv_scan_clear(struct kv_scan *x);

/* Appends the text with every match replaced. */
int kv_pattern_replace(const struct kv_pattern *p, const char *s, size_t n,
                       const char *by, struct kv_text *out, struct kv_watch *w,
                       struct kv_err *e);

/* Rewrites an expression from Oniguruma's syntax to PCRE2's (compiled with
 * UTF, UCP and MULTILINE); fails on syntax that is not known to mean the same
 * in both. */
int kv_regex_translate(const char *source, struct kv_text *out,
                       struct kv_err *e);

#endif
