/* The files of a model's folder that hold its vocabulary. */
#ifndef KV_MODEL_TOKENIZER_FOLDER_H
#define KV_MODEL_TOKENIZER_FOLDER_H

#include "lib/base/err.h"

#include <jansson.h>
#include <stdbool.h>

struct kv_tokenizer_kind {
    const char *files[3]; /* ends with NULL */
    /* The model's own class that tokenizer_config.json may name, because this
     * code implements it; or NULL. */
    const char *own;
    /* The folder's tokenizer.json, or an equivalent made from other files; the
     * caller's to json_decref; NULL with a sentence. */
    json_t *(*read)(const char *dir, struct kv_err *e);
};

/* Whether a file of this name may hold a vocabulary. */
bool kv_tokenizer_reads(const char *name);

/* The first entry of the table whose file exists; tokenizer.json if none
 * exists. */
const struct kv_tokenizer_kind *kv_tokenizer_kind(const char *dir);

#endif
