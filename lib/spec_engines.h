/* The names that inference engines have for cache types, as specs. */
#ifndef KV_SPEC_ENGINES_H
#define KV_SPEC_ENGINES_H

#include "lib/base/err.h"
#include "lib/spec.h"

#include <stddef.h>

/* ENGINE:TYPE at the start of a spec, such as vllm:fp8 or llama.cpp:q4_0; words
 * may follow.  *spec: the caller's to free; NULL if the text begins with no
 * engine.  Fails on an unknown type, listing the engine's types. */
int kv_spec_of_engine(char **spec, const char *text, struct kv_err *e);

/* *type: the engine's name for the cache type of one side under a spec of one
 * scheme.  The words rot and order do not change the name.  Fails, listing the
 * engine's types, if the engine has none for this spec. */
int kv_spec_engine_type(const char **type, const char *engine,
                        const struct kv_spec *s, enum kv_side side,
                        struct kv_err *e);

/* The end of an error message about a name of n bytes that is no scheme: which
 * spec to write instead.  NULL: no advice. */
const char *kv_spec_hint(const char *name, size_t n);

#endif
