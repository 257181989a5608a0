/* Engines' names of cache types, in specs. */
#ifndef KV_SPEC_ENGINES_H
#define KV_SPEC_ENGINES_H

#include "lib/base/err.h"

#include <stddef.h>

/* ENGINE:TYPE at the start of a spec, as vllm:fp8 or llama.cpp:q4_0, where
 * words may follow.  *spec: the caller's to free; NULL where the text begins
 * with no engine.  Fails, listing the engine's types, on a type that is not
 * here. */
int kv_spec_of_engine(char **spec, const char *text, struct kv_err *e);

/* For a name of n bytes that is no scheme: what to write, as the end of a
 * sentence; NULL: nothing is known. */
const char *kv_spec_hint(const char *name, size_t n);

#endif
