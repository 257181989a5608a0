/* lib/model/config: the effect of every field of config.json, alone; fields of
 * the same meaning are in test_config_twins.c. */
#include "tests/config_setup.h"

/* Whole configs, in which every field with a default has its default value.  No
 * default depends on another number. */
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
    {"max_position_embeddings", "2048"},
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

static const struct pair gemma3[MAX] = {
    {"architectures", "[\"Gemma3ForCausalLM\"]"},
    {"model_type", "\"gemma3_text\""},
    {"hidden_size", "48"},
    {"intermediate_size", "40"},
    {"num_hidden_layers", "6"},
    {"num_attention_heads", "6"},
    {"num_key_value_heads", "6"},
    {"head_dim", "8"},
    {"vocab_size", "61"},
    {"max_position_embeddings", "512"},
    {"rms_norm_eps", "1e-5"},
    {"rope_theta", "1e4"},
    {0},
};

/* One field has another value; NULL: is absent. */
static int read_with(const struct pair *base, const char *name,
                     const char *value, struct kv_config *c, struct kv_err *e)
{
    char more[2048] = "";

    if (value)
        snprintf(more, sizeof(more), "\"%s\": %s", name, value);
    return read_text(base, name, more, c, e);
}

/* The result is either the same numbers as without the change, or a sentence
 * that names the field, or the line if the text is no JSON. */
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

/* Values that are not a number, zero, negative, too large, too small, of
 * another type, or absent.  Whole numbers that f32 holds are valid for a real
 * field. */
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
    assert_int_equal(read_with(llama, "logit_scale", "1.0", &is, &e), 0);
    assert_int_equal(read_with(llama, "never_heard_of", "null", &is, &e), 0);
    assert_int_equal(read_with(llama, "never_heard_of", "false", &is, &e), 0);
    assert_true(same(&is, &should));
    assert_int_equal(read_with(llama, "kv_lora_rank", "null", &is, &e), 0);
    assert_int_equal(read_with(llama, "kv_lora_rank", "512", &is, &e), -1);
    assert_says(e, "field kv_lora_rank is not known: it could change");
    assert_says(e, "take it out");

    /* a class of somebody's own may read it */
    struct pair derived[MAX];

    memcpy(derived, llama, sizeof(derived));
    derived[0].value = "[\"MyOwnForCausalLM\"]";
    assert_int_equal(read_with(derived, "", NULL, &is, &e), 0);
    assert_int_equal(read_with(derived, "never_heard_of", "1", &is, &e), -1);
    assert_says(e, "field never_heard_of is not known");
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

static void check_walked_block(const struct pair *base, const char *in,
                               const char *form, const struct pair *block,
                               const char *name, const char *value)
{
    struct kv_config is, should;
    struct kv_err e = {""};
    char text[1024], whole[1536];

    write_block(text, block, "", NULL);
    snprintf(whole, sizeof(whole), form, text);
    if (read_with(base, in, whole, &should, &e))
        fail_msg("%s", e.msg);
    write_block(text, block, name, value);
    snprintf(whole, sizeof(whole), form, text);
    if (read_with(base, in, whole, &is, &e)
            ? !strstr(e.msg, name) && !strstr(e.msg, ": line ") &&
                  !strstr(name, "type")
            : !same(&is, &should))
        fail_msg("%s: %s: %s", in, whole,
                 *e.msg ? e.msg : "another number, and no word");
}

/* The same walk inside a block, in every place where it may be. */
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
    static const struct {
        const struct pair *base;
        const char *in, *form;
    } in[] = {{llama, "rope_parameters", "%s"},
              {llama, "rope_scaling", "%s"},
              {gemma3, "rope_scaling", "%s"},
              {gemma3, "rope_parameters",
               "{\"full_attention\": %s, "
               "\"sliding_attention\": {\"type\": \"default\"}}"}};

    (void)state;
    for (size_t i = 0; i < sizeof(in) / sizeof(*in); i++)
        for (size_t r = 0; r < sizeof(ropes) / sizeof(*ropes); r++)
            for (size_t n = 0; n < sizeof(names) / sizeof(*names); n++)
                for (size_t v = 0; v < sizeof(values) / sizeof(*values); v++)
                    check_walked_block(in[i].base, in[i].in, in[i].form,
                                       ropes[r], names[n], values[v]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_field),
        cmocka_unit_test(test_only_values),
        cmocka_unit_test(test_every_rope_field),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
