/* The tokens of a GGUF file that end a text. */
#ifndef KV_TOKENIZER_GGUF_ENDS_H
#define KV_TOKENIZER_GGUF_ENDS_H

#include "lib/model/gguf.h"

/* Finds the same tokens as llama.cpp: tokens that keys name (eos, eot, eom, and
 * fill-in-the-middle tokens), and tokens of any type with a known text
 * ("<|end|>", "<end_of_turn>").  *ids: each once, the caller's to free; returns
 * their number. */
size_t kv_gguf_ends(const struct kv_gguf *g, int32_t **ids);

#endif
