/* The tokens of a GGUF file that end a text. */
#ifndef KV_TOKENIZER_GGUF_ENDS_H
#define KV_TOKENIZER_GGUF_ENDS_H

#include "lib/model/gguf.h"

/* As llama.cpp has them: those that keys name (eos, eot, eom, and those of
 * filling in the middle), and those whose text says so ("<|end|>",
 * "<end_of_turn>"), of any type.  *ids: each once, the caller's to free;
 * returns their number. */
size_t kv_gguf_ends(const struct kv_gguf *g, int32_t **ids);

#endif
