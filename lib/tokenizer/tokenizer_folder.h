/* The files of a model's folder that hold its vocabulary. */
#ifndef KV_MODEL_TOKENIZER_FOLDER_H
#define KV_MODEL_TOKENIZER_FOLDER_H

#include "lib/base/err.h"

#include <jansson.h>

/* Their names, one or two and NULL behind them: of the kinds in the table, the
 * first that is there; tokenizer.json where there is none. */
const char *const *kv_tokenizer_files(const char *dir);

/* What tokenizer.json holds, or would hold; the caller's to json_decref, NULL
 * with a sentence. */
json_t *kv_tokenizer_folder_read(const char *dir, struct kv_err *e);

#endif
