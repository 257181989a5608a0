#include "lib/spec_engines.h"
#include "lib/base/alloc.h"
#include "lib/spec_impl.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

struct type {
    const char *engine, *name, *spec;
};

/* Only specs that give exactly the engine's format, value for value. */
static const struct type types[] = {
    {"vllm", "fp8", "fp8,none"},
    {"vllm", "fp8_e4m3", "fp8,none"},
    {"vllm", "fp8_e5m2", "fp8:e5m2,none"},
    {"vllm", "fp8_per_token_head", "fp8_per_token_head"},
    {"vllm", "int8_per_token_head", "int8_per_token_head"},
    {"vllm", "int4_per_token_head", "int4_per_token_head"},
    {"vllm", "int2_per_token_head", "int2_per_token_head"},
    {"vllm", "nvfp4", "nvfp4"},
    {"vllm", "fp8_ds_mla", "fp8_ds_mla"},
    {"vllm", "turboquant_k8v4",
     "turboquant:K-b8/V-b4,K-levels=fp8,V-levels=uniform,skip=2"},
    {"vllm", "turboquant_4bit_nc",
     "turboquant:b4,rot=plain,nc,V-levels=uniform,skip=2"},
    {"vllm", "turboquant_k3v4_nc",
     "turboquant:K-b3/V-b4,rot=plain,nc,V-levels=uniform,skip=2"},
    {"vllm", "turboquant_3bit_nc",
     "turboquant:b3,rot=plain,nc,V-levels=uniform,skip=2"},
    {"sglang", "fp8_e4m3", "fp8,none"},
    {"sglang", "fp8_e5m2", "fp8:e5m2,none"},
    {"sglang", "fp4_e2m1", "fp4_e2m1"},
    {"llama.cpp", "f32", "f32"},
    {"llama.cpp", "f16", "f16"},
    {"llama.cpp", "bf16", "bf16"},
    {"llama.cpp", "q8_0", "q8_0:ggml"},
    {"llama.cpp", "q5_1", "q5_1:ggml"},
    {"llama.cpp", "q5_0", "q5_0:ggml"},
    {"llama.cpp", "q4_1", "q4_1:ggml"},
    {"llama.cpp", "q4_0", "q4_0:ggml"},
    {"llama.cpp", "iq4_nl", "iq4_nl:ggml"},
    {"ik_llama.cpp", "q8_0", "q8_0:ggml"},
    {"ik_llama.cpp", "q6_0", "q6_0"},
    {"ik_llama.cpp", "q8_KV", "q8_kv"},
};
enum { TYPES = sizeof(types) / sizeof(*types) };

/* Names that several engines use for different formats. */
static const struct {
    const char *name, *hint;
} hints[] = {
    {"int8", "int8_per_token_head (vLLM), kivi:b8g64,axis=token "
             "(transformers) or zeropoint:b8"},
    {"int4", "int4_per_token_head (vLLM), kivi:b4g64,axis=token "
             "(transformers) or zeropoint:b4"},
    {"int2", "int2_per_token_head (vLLM), kivi:b2g64,axis=token "
             "(transformers) or kivi:b2g32"},
    {"fp8_e4m3", "fp8,none (vllm:fp8_e4m3) or fp8:e4m3"},
    {"fp8_e5m2", "fp8:e5m2,none (vllm:fp8_e5m2) or fp8:e5m2"},
    {"turbo4", "turboquant:b4,rot=plain; turbo4 of llama.cpp's forks is not "
               "here"},
    {"turbo3", "turboquant:b3,rot=plain; turbo3 of llama.cpp's forks is not "
               "here"},
    {"turbo2", "turboquant:b2,rot=plain; turbo2 of llama.cpp's forks is not "
               "here"},
    {"vllm", "vllm:fp8, a cache type behind the engine"},
    {"sglang", "sglang:fp8_e4m3, a cache type behind the engine"},
    {"llama.cpp", "llama.cpp:q4_0, a cache type behind the engine"},
};

const char *kv_spec_hint(const char *name, size_t n)
{
    for (size_t i = 0; i < sizeof(hints) / sizeof(*hints); i++)
        if (strlen(hints[i].name) == n && !strncasecmp(hints[i].name, name, n))
            return hints[i].hint;
    return NULL;
}

static bool is(const char *name, const char *text, size_t n)
{
    return strlen(name) == n && !strncasecmp(name, text, n);
}

/* A list of types: "fp8, fp8_e4m3". */
struct names {
    char text[512];
};

static struct names types_of(const char *engine, size_t n)
{
    struct names known = {""};
    size_t at = 0;

    for (size_t i = 0; i < TYPES && at < sizeof(known.text); i++)
        if (is(types[i].engine, engine, n))
            at += (size_t)snprintf(known.text + at, sizeof(known.text) - at,
                                   "%s%s", at ? ", " : "", types[i].name);
    return known;
}

static int unknown_type(const char *engine, size_t n, const char *type,
                        size_t bytes, struct kv_err *e)
{
    return kv_fail(e, "'%.*s%s' is no cache type of %.*s that is here: %s",
                   KV_SHOWN(type, bytes), (int)n, engine,
                   types_of(engine, n).text);
}

int kv_spec_of_engine(char **spec, const char *text, struct kv_err *e)
{
    const size_t n = strcspn(text, ":,");
    const char *type = text + n + 1;
    bool known = false;
    size_t bytes;

    *spec = NULL;
    for (size_t i = 0; i < TYPES; i++)
        known = known || is(types[i].engine, text, n);
    if (!known || text[n] != ':')
        return 0;
    bytes = strcspn(type, ",");
    for (size_t i = 0; i < TYPES; i++)
        if (is(types[i].engine, text, n) && is(types[i].name, type, bytes)) {
            const char *words = type + bytes;
            const size_t room = strlen(types[i].spec) + strlen(words) + 1;

            *spec = kv_alloc(room, 1);
            snprintf(*spec, room, "%s%s", types[i].spec, words);
            return 0;
        }
    return unknown_type(text, n, type, bytes, e);
}

/* ---- from a spec to an engine's type ------------------------------------- */

/* Whether an engine's type name leaves the parameter open. */
static bool is_unsaid(const struct kv_param *p)
{
    return !strcmp(p->name, "rot") || !strcmp(p->name, "order");
}

static bool is_same(const struct kv_spec *a, const struct kv_spec *b,
                    enum kv_side side)
{
    const struct kv_param *p;

    if (a->scheme != b->scheme)
        return false;
    for (size_t i = 0; (p = kv_spec_param(a->scheme, i)); i++)
        if (a->value[side][i] != b->value[side][i] && !is_unsaid(p))
            return false;
    return true;
}

int kv_spec_engine_type(const char **type, const char *engine,
                        const struct kv_spec *s, enum kv_side side,
                        struct kv_err *e)
{
    for (size_t i = 0; i < TYPES; i++) {
        struct kv_spec own;

        if (strcmp(types[i].engine, engine) != 0)
            continue;
        if (kv_spec_parse(&own, types[i].spec, e))
            return -1;
        if (is_same(&own, s, side)) {
            *type = types[i].name;
            return 0;
        }
    }
    return kv_fail(e,
                   "%s has no cache type for %s: for all tokens alike it "
                   "has %s",
                   engine, s->text, types_of(engine, strlen(engine)).text);
}
