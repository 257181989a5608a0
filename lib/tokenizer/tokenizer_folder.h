/* The files of a model's folder that hold its vocabulary. */
#ifndef KV_MODEL_TOKENIZER_FOLDER_H
#define KV_MODEL_TOKENIZER_FOLDER_H

#include "lib/base/err.h"

#include <jansson.h>
#include <stdbool.h>

struct kv_tokenizer_kind {
    const char *files[3]; /* NULL ends them */
    /* A class that tokenizer_config.json may call the model's own, as it is
     * what is read here; or NULL. */
    const char *own;
    /* What tokenizer.json holds, or would hold; the caller's to json_decref,
     * NULL with a sentence. */
    json_t *(*read)(const char *dir, struct kv_err *e);
};

/* Whether a vocabulary of any kind may be in a file of this name. */
bool kv_tokenizer_reads(const char *name);

/* The first in the table that is there; tokenizer.json where there is none. */
const struct kv_tokenizer_kind *kv_tokenizer_kind(const char *dir);

#endif
