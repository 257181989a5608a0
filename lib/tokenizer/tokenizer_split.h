/* How a text is cut into pieces before BPE: "pre_tokenizer" in
 * tokenizer.json.
 *
 * ByteLevel, Split, Metaspace, Digits, Punctuation, and sequences of them. */
#ifndef KV_MODEL_TOKENIZER_SPLIT_H
#define KV_MODEL_TOKENIZER_SPLIT_H

#include "lib/base/err.h"
#include "lib/tokenizer/tokenizer_pattern.h"
#include "lib/tokenizer/tokenizer_text.h"

#include <jansson.h>
#include <stdbool.h>

struct kv_splitter;

/* j NULL or null: the text stays in one piece. */
int kv_splitter_new(struct kv_splitter **x, const json_t *j, struct kv_err *e);
void kv_splitter_free(struct kv_splitter *x);

/* Whether a space, or its replacement, is put before a text: 1, 0, or -1 if no
 * stage deals with spaces. */
int kv_splitter_prefix(const struct kv_splitter *x);

/* The function that receives the pieces, in order; no piece is empty. */
struct kv_piece_sink {
    int (*piece)(void *arg, const char *s, size_t n, struct kv_err *e);
    void *arg;
};

/* Cuts a text, well-formed UTF-8.  at_start: the text is the beginning of the
 * whole input. */
int kv_splitter_run(const struct kv_splitter *x, const char *s, size_t n,
                    bool at_start, const struct kv_piece_sink *sink,
                    struct kv_watch *w, struct kv_err *e);

#define KV_METASPACE_FIELDS \
    "type replacement str_rep add_prefix_space prepend_scheme split"

/* "prepend_scheme" of Metaspace, or the older "add_prefix_space". */
enum kv_prepend { KV_PREPEND_ALWAYS, KV_PREPEND_FIRST, KV_PREPEND_NEVER };
int kv_metaspace_parse(const json_t *j, const char **replacement,
                       enum kv_prepend *prepend, struct kv_err *e);

/* Which parts of a text between special tokens get a space. */
void kv_splitter_prepend(struct kv_splitter *x, enum kv_prepend prepend);

#endif
