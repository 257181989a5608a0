/* lib/model/config: the effect of every field of config.json, alone and beside
 * fields of the same meaning. */
#include "lib/base/file.h"
#include "lib/model/config.h"
#include "tests/test.h"
#include "tests/tiny_model.h"

#include <math.h>

/* A field, its value as JSON. */
struct pair {
    const char *name, *value;
};

enum { MAX = 32 };

/* Whole configs, in which every field that has a default has it.  None of the
 * defaults changes when a number beside it does. */
static const struct pair llama[MAX] = {
    {"architectures", "[\"LlamaForCausalLM\"]"},
    {"model_type", "\"llama\""},
    {"hidden_size", "48"},
    {"intermediate_size", "40"},
    {"num_hidden_layers", "3"},
    {"num_attention_heads", "6"},
    {"num_key_value_heads", "6"},
    {"head_dim", "8"},
    {"vocab_size", "61"},
    {"max_position_embeddings", "512"},
    {"rms_norm_eps", "1e-5"},
    {"tie_word_embeddings", "false"},
    {"attention_bias", "false"},
    {"mlp_bias", "false"},
    {"rope_theta", "1e4"},
    {"rope_scaling", "null"},
    {0},
};

static const struct pair qwen3[MAX] = {
    {"architectures", "[\"Qwen3ForCausalLM\"]"},
    {"model_type", "\"qwen3\""},
    {"hidden_size", "64"},
    {"intermediate_size", "40"},
    {"num_hidden_layers", "3"},
    {"num_attention_heads", "32"},
    {"num_key_value_heads", "32"},
    {"head_dim", "128"},
    {"vocab_size", "61"},
    {"max_position_embeddings", "512"},
    {"rms_norm_eps", "1e-5"},
    {"tie_word_embeddings", "false"},
    {"attention_bias", "false"},
    {"use_sliding_window", "false"},
    {"sliding_window", "4096"},
    {"max_window_layers", "28"},
    {"layer_types",
     "[\"full_attention\", \"full_attention\", \"full_attention\"]"},
    {"rope_theta", "1e4"},
    {0},
};

/* Writes the fields a line each, but for one, and more; reads the file. */
static int read_text(const struct pair *base, const char *without,
                     const char *more, struct kv_config *c, struct kv_err *e)
{
    static char *path;
    char text[8192] = "{\"prefix\": null";
    FILE *f;

    if (!path)
        path = kv_path_join(test_folder(), "config.json");
    for (const struct pair *p = base; p->name; p++)
        if (strcmp(p->name, without))
            sprintf(text + strlen(text), ",\n\"%s\": %s", p->name, p->value);
    unlink(path); /* a new file: some disks write a file that replaces another
                     at once */
    f = fopen(path, "w");
    assert_non_null(f);
    fprintf(f, "%s%s%s}", text, *more ? ",\n" : "", more);
    assert_int_equal(fclose(f), 0);
    return kv_config_read(c, path, e);
}

/* One field has another value; NULL: is absent. */
static int read_with(const struct pair *base, const char *name,
                     const char *value, struct kv_config *c, struct kv_err *e)
{
    char more[2048] = "";

    if (value)
        snprintf(more, sizeof(more), "\"%s\": %s", name, value);
    return read_text(base, name, more, c, e);
}

static bool same(const struct kv_config *a, const struct kv_config *b)
{
    const struct kv_shape *s = &a->shape, *t = &b->shape;

    return a->arch == b->arch && a->hidden == b->hidden &&
           a->inter == b->inter && a->n_vocab == b->n_vocab &&
           a->n_ctx == b->n_ctx && a->norm_eps == b->norm_eps &&
           a->tied == b->tied && a->qkv_bias == b->qkv_bias &&
           a->o_bias == b->o_bias && a->mlp_bias == b->mlp_bias &&
           s->slide_window == t->slide_window && s->n_layers == t->n_layers &&
           s->n_heads == t->n_heads && s->n_kv_heads == t->n_kv_heads &&
           s->head_dim == t->head_dim && s->attn_scale == t->attn_scale &&
           s->n_rot == t->n_rot &&
           !memcmp(s->inv_freq, t->inv_freq, s->n_rot * sizeof(float)) &&
           !memcmp(s->slide_freq, t->slide_freq, s->n_rot * sizeof(float)) &&
           !memcmp(s->slides, t->slides, sizeof(s->slides)) &&
           s->cap == t->cap && a->logit_cap == b->logit_cap &&
           a->embed_scale == b->embed_scale;
}

/* Either the same numbers as without, or a sentence that names the field, or
 * the line where it is no JSON. */
static void check_walked(const struct pair *base, const char *name,
                         const char *value)
{
    struct kv_config is, should;
    struct kv_err e = {""};

    assert_int_equal(read_with(base, "", NULL, &should, &e), 0);
    if (read_with(base, name, value, &is, &e)
            ? !strstr(e.msg, name) && !strstr(e.msg, ": line ")
            : !same(&is, &should))
        fail_msg("%s: %s: %s", name, value ? value : "absent",
                 *e.msg ? e.msg : "another number, and no word");
}

/* Not a number, zero, negative, too huge, too small, of another type, absent.
 * Whole numbers that f32 holds are as good as any for a field of reals. */
static const char *const values[] = {
    "NaN",  "Infinity", "1e999",  "\"nan\"", "0",    "-1",
    "-0.0", "1e308",    "-1e308", "1e-300",  "1e39", "[]",
    "{}",   "[0]",      "\"\"",   "null",    NULL,
};

static const char *value_of(const struct pair *base, const char *name)
{
    for (; base->name; base++)
        if (!strcmp(base->name, name))
            return base->value;
    return "";
}

static void test_every_field(void **state)
{
    static const struct pair *const bases[] = {llama, qwen3};

    (void)state;
    for (size_t b = 0; b < 2; b++)
        for (const struct kv_field *f = kv_config_known; f->name; f++) {
            const char *now = value_of(bases[b], f->name);

            for (size_t v = 0; v < sizeof(values) / sizeof(*values); v++)
                check_walked(bases[b], f->name, values[v]);
            if (!strpbrk(now, "e."))
                check_walked(bases[b], f->name, "4611686018427387904");
        }
}

/* One value and no other; fields that are not known. */
static void test_only_values(void **state)
{
    struct kv_config is, should;
    struct kv_err e = {""};

    (void)state;
    assert_int_equal(read_with(llama, "", NULL, &should, &e), 0);
    for (const struct kv_field *f = kv_config_known; f->name; f++) {
        if (!f->only)
            continue;
        if (read_with(llama, f->name, f->only, &is, &e))
            fail_msg("%s", e.msg);
        assert_true(same(&is, &should));
        assert_int_equal(read_with(llama, f->name, "[7, {}]", &is, &e), -1);
        assert_says(e, "config.json: field ");
        assert_says(e, f->name);
        assert_says(e, "is [7, {}]; only ");
    }
    assert_int_equal(read_with(llama, "pretraining_tp", "1.0", &is, &e), 0);
    assert_int_equal(read_with(llama, "never_heard_of", "null", &is, &e), 0);
    assert_int_equal(read_with(llama, "never_heard_of", "false", &is, &e), -1);
    assert_says(e, "field never_heard_of is not known: it could change");
    assert_says(e, "take it out");
}

static const struct pair ropes[][8] = {
    {{"rope_type", "\"llama3\""},
     {"factor", "8.0"},
     {"low_freq_factor", "1.0"},
     {"high_freq_factor", "4.0"},
     {"original_max_position_embeddings", "64.0"},
     {"rope_theta", "1e4"},
     {0}},
    {{"rope_type", "\"linear\""},
     {"factor", "2.0"},
     {"rope_theta", "1e4"},
     {0}},
    {{"rope_type", "\"default\""}, {"rope_theta", "1e4"}, {0}},
};

/* The block with one field of another value; NULL: without it. */
static void write_block(char *text, const struct pair *block, const char *name,
                        const char *value)
{
    const char *comma = "";

    strcpy(text, "{");
    for (; block->name; block++)
        if (strcmp(block->name, name)) {
            sprintf(text + strlen(text), "%s\"%s\": %s", comma, block->name,
                    block->value);
            comma = ", ";
        }
    if (value)
        sprintf(text + strlen(text), "%s\"%s\": %s", comma, name, value);
    strcat(text, "}");
}

static void check_walked_block(const char *in, const char *form,
                               const struct pair *block, const char *name,
                               const char *value)
{
    struct kv_config is, should;
    struct kv_err e = {""};
    char text[1024], whole[1536];

    write_block(text, block, "", NULL);
    snprintf(whole, sizeof(whole), form, text);
    if (read_with(llama, in, whole, &should, &e))
        fail_msg("%s", e.msg);
    write_block(text, block, name, value);
    snprintf(whole, sizeof(whole), form, text);
    if (read_with(llama, in, whole, &is, &e)
            ? !strstr(e.msg, name) && !strstr(e.msg, ": line ") &&
                  !strstr(name, "type")
            : !same(&is, &should))
        fail_msg("%s: %s: %s", in, whole,
                 *e.msg ? e.msg : "another number, and no word");
}

/* The same walk inside a block, wherever it may stand. */
static void test_every_rope_field(void **state)
{
    static const char *const names[] = {
        "rope_type",        "type",
        "rope_theta",       "factor",
        "beta_fast",        "low_freq_factor",
        "mscale",           "short_factor",
        "high_freq_factor", "mrope_section",
        "truncate",         "original_max_position_embeddings",
        "attention_factor", "partial_rotary_factor"};
    static const char *const in[][2] = {
        {"rope_parameters", "%s"},
        {"rope_scaling", "%s"},
        {"rope_parameters", "{\"full_attention\": %s, "
                            "\"sliding_attention\": {\"type\": \"yarn\"}}"}};

    (void)state;
    for (size_t i = 0; i < sizeof(in) / sizeof(*in); i++)
        for (size_t r = 0; r < sizeof(ropes) / sizeof(*ropes); r++)
            for (size_t n = 0; n < sizeof(names) / sizeof(*names); n++)
                for (size_t v = 0; v < sizeof(values) / sizeof(*values); v++)
                    check_walked_block(in[i][0], in[i][1], ropes[r], names[n],
                                       values[v]);
}

#define LLAMA3(rest)                                                     \
    "\"rope_type\": \"llama3\", \"factor\": 8, \"low_freq_factor\": 1, " \
    "\"high_freq_factor\": 4" rest
#define OLD_CTX "\"original_max_position_embeddings\": 64"
#define THETA(x) "\"rope_theta\": " #x
#define MISTRAL "[\"MistralForCausalLM\"]"
#define QWEN2 "[\"Qwen2ForCausalLM\"]"
#define QWEN3 "[\"Qwen3ForCausalLM\"]"
#define GEMMA "[\"GemmaForCausalLM\"]"
#define GEMMA2 "[\"Gemma2ForCausalLM\"]"
#define GEMMA3 "[\"Gemma3ForCausalLM\"]"
#define TYPES(a, b, c) "\"layer_types\": [\"" a "\", \"" b "\", \"" c "\"]"
#define FULL "full_attention"
#define SLIDES "sliding_attention"

/* Sizes alone; the rest is each case's. */
static const struct pair sizes[MAX] = {
    {"hidden_size", "48"},
    {"intermediate_size", "40"},
    {"num_hidden_layers", "3"},
    {"num_attention_heads", "32"},
    {"vocab_size", "61"},
    {"max_position_embeddings", "512"},
    {"rms_norm_eps", "1e-5"},
    {"head_dim", "8"},
    {0},
};

static int read_case(const char *arch, const char *more, struct kv_config *c,
                     struct kv_err *e)
{
    char text[2048];

    snprintf(text, sizeof(text), "\"architectures\": %s%s%s",
             arch ? arch : "[\"LlamaForCausalLM\"]", *more ? ", " : "", more);
    return read_text(sizes, "", text, c, e);
}

/* Two ways to write the same numbers. */
static const struct {
    const char *arch, *a, *b;
} twins[] = {
    /* theta, wherever it stands */
    {NULL, "", THETA(1e4)},
    {NULL, THETA(5e5), "\"rope_scaling\": {" THETA(5e5) "}"},
    {NULL, THETA(5e5), "\"rope_parameters\": {" THETA(500000) "}"},
    {NULL, THETA(5e5), THETA(5e5) ", \"rope_parameters\": {" THETA(5e5) "}"},
    {NULL, THETA(5e5), THETA(5e5) ", \"rope_parameters\": {}"},
    {NULL, THETA(5e5) ", \"rope_scaling\": {" LLAMA3(", " OLD_CTX) "}",
     "\"rope_scaling\": {" LLAMA3(", " OLD_CTX ", " THETA(5e5)) "}"},
    {NULL, THETA(5e5) ", \"rope_scaling\": {" LLAMA3(", " OLD_CTX) "}",
     THETA(5e5) ", \"rope_scaling\": {" LLAMA3("") "}, " OLD_CTX},
    {NULL, THETA(5e5) ", \"rope_scaling\": {" LLAMA3(", " OLD_CTX) "}",
     "\"rope_parameters\": {\"full_attention\": {" LLAMA3(
         ", " OLD_CTX ", " THETA(5e5)) "}}"},
    /* both blocks, which agree */
    {NULL,
     THETA(5e5) ", \"rope_scaling\": {\"type\": \"linear\", \"factor\": 4}",
     "\"rope_scaling\": {\"type\": \"linear\", \"rope_type\": \"linear\", "
     "\"factor\": 4.0}, \"rope_parameters\": {\"rope_type\": \"linear\", "
     "\"factor\": 4, " THETA(5e5) "}"},
    /* each class's default of an absent field */
    {NULL, "\"num_key_value_heads\": 32", ""},
    {NULL, "\"num_key_value_heads\": 32", "\"num_key_value_heads\": null"},
    {MISTRAL, "\"num_key_value_heads\": 8", ""},
    {MISTRAL, "\"num_key_value_heads\": 32", "\"num_key_value_heads\": null"},
    {QWEN2, "\"num_key_value_heads\": 32", ""},
    {QWEN3, "\"num_key_value_heads\": 32", ""},
    {MISTRAL, "\"sliding_window\": 4096", ""},
    {QWEN2, "\"use_sliding_window\": true, \"max_window_layers\": 1",
     "\"use_sliding_window\": true, \"max_window_layers\": 1, "
     "\"sliding_window\": 4096"},
    {NULL, "\"hidden_act\": \"silu\"", ""},
    {NULL, "\"tie_word_embeddings\": false", ""},
    {QWEN2, "\"tie_word_embeddings\": false", ""},
    {QWEN3, "\"attention_bias\": false", ""},
    /* windows in which no layer slides */
    {MISTRAL, "\"sliding_window\": null",
     "\"sliding_window\": null, " TYPES(FULL, FULL, FULL)},
    {QWEN2, "", "\"sliding_window\": 16"},
    {QWEN2, "", "\"sliding_window\": 16, \"use_sliding_window\": false"},
    {QWEN2, "", "\"sliding_window\": 16, \"use_sliding_window\": true"},
    {QWEN2, "", "\"sliding_window\": null, \"use_sliding_window\": true"},
    {QWEN2, "",
     "\"sliding_window\": 16, \"use_sliding_window\": true, "
     "\"max_window_layers\": 3"},
    {QWEN2, "",
     "\"sliding_window\": 16, \"use_sliding_window\": true, "
     "\"max_window_layers\": 0, " TYPES(FULL, FULL, FULL)},
    {NULL, "",
     "\"use_sliding_window\": false, \"max_window_layers\": 0, "
     "\"sliding_window\": null, " TYPES(FULL, FULL, FULL)},
    /* by type of layer, of which the model has one, or both alike */
    {QWEN2, THETA(5e5),
     "\"rope_parameters\": {\"full_attention\": {" THETA(
         5e5) "}, \"sliding_attention\": {" THETA(1e4) "}}"},
    {QWEN2,
     THETA(5e5) ", \"use_sliding_window\": true, " TYPES(SLIDES, FULL, FULL),
     "\"rope_parameters\": {\"full_attention\": {" THETA(
         5e5) "}, \"sliding_attention\": {" THETA(5e5) "}}, "
                                                       "\"use_sliding_window\":"
                                                       " true, " TYPES(
                                                           SLIDES, FULL, FULL)},
    /* Gemma: caps, scale and RoPE by type, in both layouts */
    {GEMMA, "\"hidden_act\": \"gelu_pytorch_tanh\"",
     "\"tie_word_embeddings\": true, \"hidden_activation\": null"},
    {GEMMA2, TYPES(SLIDES, FULL, SLIDES),
     "\"attn_logit_softcapping\": 50.0, \"final_logit_softcapping\": 30, "
     "\"query_pre_attn_scalar\": 256, \"sliding_window\": 4096"},
    {GEMMA3, "\"sliding_window_pattern\": 2",
     TYPES(SLIDES, FULL,
           SLIDES) ", \"_sliding_window_pattern\": 6, "
                   "\"rope_local_base_freq\": 10000, " THETA(1e6)},
    {GEMMA3,
     "\"sliding_window_pattern\": 2, \"rope_local_base_freq\": 500, " THETA(
         5e5) ", \"rope_scaling\": {\"type\": \"linear\", \"factor\": 8}",
     "\"sliding_window_pattern\": 2, "
     "\"rope_parameters\": {\"full_attention\": {\"rope_type\": \"linear\", "
     "\"factor\": 8, " THETA(5e5) "}, \"sliding_attention\": {" THETA(
         500) "}}"},
};

static void test_twins(void **state)
{
    struct kv_config a, b;
    struct kv_err e = {""};

    (void)state;
    for (size_t i = 0; i < sizeof(twins) / sizeof(*twins); i++) {
        if (read_case(twins[i].arch, twins[i].a, &a, &e) ||
            read_case(twins[i].arch, twins[i].b, &b, &e))
            fail_msg("%s", e.msg);
        if (!same(&a, &b))
            fail_msg("%s and %s differ", twins[i].a, twins[i].b);
    }
    assert_int_equal(read_case(NULL, THETA(5e5), &a, &e), 0);
    assert_true(a.shape.inv_freq[3] == (float)pow(5e5, -0.75));
    assert_int_equal(read_case(MISTRAL, "", &a, &e), 0);
    assert_int_equal(a.shape.slide_window, 4096);
    assert_int_equal(
        read_text(sizes, "head_dim", "\"architectures\": " QWEN3, &a, &e), 0);
    assert_int_equal(a.shape.head_dim, 128);
}

/* Refusals, and the fields that the sentence names. */
static const struct {
    const char *arch, *more, *says[2];
} refusals[] = {
    {NULL, "\"model_type\": \"mistral\"", {"model_type", "architectures"}},
    {NULL, "\"model_type\": \"granite\"", {"model_type", "architectures"}},
    {QWEN3, "\"model_type\": \"qwen2\"", {"model_type", "architectures"}},
    {NULL,
     THETA(1e6) ", \"rope_scaling\": {" THETA(5e5) "}",
     {"field rope_scaling.rope_theta is 500000", "rope_theta is 1e+06"}},
    {NULL,
     "\"rope_parameters\": {" THETA(1e6) "}, \"rope_scaling\": {" THETA(
         5e5) "}",
     {"rope_scaling.rope_theta is", "rope_parameters.rope_theta is"}},
    {NULL,
     "\"rope_parameters\": {\"rope_type\": \"default\"}, "
     "\"rope_scaling\": {\"type\": \"linear\", \"factor\": 4}",
     {"rope_parameters and", "rope_scaling contradict"}},
    {NULL,
     "\"rope_parameters\": {\"rope_type\": \"default\"}, "
     "\"rope_scaling\": {\"type\": \"ntk\", \"factor\": 4}",
     {"rope_scaling.type", "ntk is not implemented"}},
    {NULL,
     "\"rope_scaling\": {\"type\": \"linear\", \"rope_type\": "
     "\"default\", \"factor\": 4}",
     {"rope_scaling.rope_type", "rope_scaling.type"}},
    {NULL,
     "\"rope_scaling\": {" LLAMA3(
         ", " OLD_CTX) "}, "
                       "\"original_max_position_embeddings\": 32",
     {"rope_scaling.original_max_position_embeddings is 64",
      "but original_max_position_embeddings is 32"}},
    {NULL,
     "\"rope_scaling\": {\"factor\": 1, \"beta_fast\": 32}",
     {"rope_scaling.beta_fast", "is not known"}},
    {NULL, "\"rope_scaling\": 4", {"rope_scaling", "is not an object"}},
    {NULL,
     "\"rope_parameters\": {\"sliding_attention\": {}}",
     {"rope_parameters.full_attention", "is not an object"}},
    {NULL,
     "\"rope_parameters\": {\"full_attention\": {}, " THETA(5) "}",
     {"rope_parameters.rope_theta", "is not known"}},
    {QWEN2,
     "\"use_sliding_window\": true, " TYPES(
         SLIDES, FULL,
         FULL) ", "
               "\"rope_parameters\": {\"full_attention\": {" THETA(
                   5e5) "}, \"sliding_attention\": {" THETA(1e4) "}}",
     {"rope_parameters.full_attention", "rope_parameters.sliding_attention"}},
    {NULL,
     THETA(1e-37) ", \"rope_scaling\": {\"type\": \"linear\", \"factor\": "
                  "1e-20}",
     {"rope_theta 1e-37", "which f32"}},
    {NULL,
     "\"rope_scaling\": {\"type\": \"linear\", \"factor\": 1e37}",
     {"scaling linear", "which f32"}},
    {NULL, "\"sliding_window\": 16", {"sliding_window", "has none"}},
    {NULL,
     "\"query_pre_attn_scalar\": 8",
     {"query_pre_attn_scalar", "has none"}},
    {GEMMA,
     "\"final_logit_softcapping\": 8",
     {"final_logit_softcapping", "GemmaForCausalLM has none"}},
    {GEMMA,
     "\"hidden_act\": \"gelu\"",
     {"hidden_act is \"gelu\"", "only \"gelu_pytorch_tanh\""}},
    {GEMMA2,
     "\"sliding_window_pattern\": 3",
     {"sliding_window_pattern", "has none"}},
    {GEMMA2,
     "\"rope_local_base_freq\": 3",
     {"rope_local_base_freq", "has none"}},
    {GEMMA2,
     "\"attn_logit_softcapping\": -1",
     {"attn_logit_softcapping", "above 0"}},
    {GEMMA3,
     "\"use_bidirectional_attention\": true",
     {"bidirectional", "only"}},
    {GEMMA3,
     "\"rope_parameters\": {" THETA(5e5) "}",
     {"rope_parameters is not by type", "Gemma3ForCausalLM"}},
    {NULL, "\"use_sliding_window\": true", {"use_sliding_window", "does not"}},
    {MISTRAL,
     "\"use_sliding_window\": false",
     {"use_sliding_window is false", "sliding_window this Mistral"}},
    {MISTRAL,
     TYPES(FULL, FULL, FULL),
     {"layer_types 0 layers slide", "sliding_window and use_sliding_window 3"}},
    {QWEN2,
     TYPES(FULL, FULL, SLIDES),
     {"layer_types 1 layers slide", "use_sliding_window 0"}},
    {NULL, TYPES(FULL, FULL, SLIDES), {"layer_types 1", "sliding_window"}},
    {QWEN2,
     TYPES(FULL, FULL, "chunked_attention"),
     {"layer_types: layer 2 is chunked_attention", "known"}},
    {QWEN2,
     "\"layer_types\": [\"full_attention\"]",
     {"layer_types is not a list of 3", ""}},
    {MISTRAL, "\"attention_bias\": true", {"attention_bias is true", "none"}},
    {QWEN2, "\"attention_bias\": true", {"attention_bias is true", "none"}},
    {QWEN3, "\"mlp_bias\": true", {"mlp_bias is true", "none"}},
    {NULL, "\"attention_multiplier\": 0.0156", {"attention_multiplier", ""}},
    {NULL,
     "\"final_logit_softcapping\": 30.0",
     {"final_logit_softcapping", ""}},
    {NULL, THETA(1e4) ", " THETA(1e4), {"duplicate", "rope_theta"}},
    {MISTRAL,
     "\"sliding_window\": 1000000000000000019884624838656",
     {"field sliding_window", "is not a whole number from 1"}},
};

static void test_refusals(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(refusals) / sizeof(*refusals); i++) {
        struct kv_config c;
        struct kv_err e = {""};

        if (!read_case(refusals[i].arch, refusals[i].more, &c, &e))
            fail_msg("%s was taken", refusals[i].more);
        assert_says(e, "config.json: ");
        assert_says(e, refusals[i].says[0]);
        assert_says(e, refusals[i].says[1]);
    }
}

/* Fields of well-known models that say nothing of the numbers. */
static void test_harmless(void **state)
{
    static const char more[] =
        "\"_name_or_path\": \"a/b\", \"attention_dropout\": 0.1, "
        "\"bos_token_id\": 128000, \"eos_token_id\": [1, 2], "
        "\"initializer_range\": 0.02, \"pretraining_tp\": 1, "
        "\"torch_dtype\": \"bfloat16\", \"dtype\": \"float16\", "
        "\"transformers_version\": \"4.46.0\", \"use_cache\": false, "
        "\"rope_interleaved\": false, \"is_llama_config\": true, "
        "\"transformers.js_config\": {\"dtype\": {}}, \"use_mrope\": false, "
        "\"unsloth_fixed\": true, \"pad_token_id\": -1, "
        "\"_attn_implementation_autoset\": true, \"temperature\": 0.6, "
        "\"top_p\": 0.9, \"do_sample\": true, \"max_length\": 4096, "
        "\"model_max_length\": 1000000000000000019884624838656, "
        "\"id2label\": {\"0\": \"A\"}, \"task_specific_params\": {}, "
        "\"quantization_config\": null, \"max_sequence_length\": 2048";
    struct kv_config is, should;
    struct kv_err e = {""};

    (void)state;
    assert_int_equal(read_case(NULL, "", &should, &e), 0);
    if (read_case(NULL, more, &is, &e))
        fail_msg("%s", e.msg);
    assert_true(same(&is, &should));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_field),
        cmocka_unit_test(test_only_values),
        cmocka_unit_test(test_every_rope_field),
        cmocka_unit_test(test_twins),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_harmless),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
