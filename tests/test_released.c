/* lib/model/config: the config.json of released models (tests/released.json,
 * written by hand after their public pages) open, except those named here. */
#include "lib/base/alloc.h"
#include "lib/base/file.h"
#include "lib/json_file.h"
#include "lib/model/config.h"
#include "tests/test.h"

#include <string.h>

static const struct {
    const char *name, *says;
} refused[] = {
    {"mpt-7b-storywriter", "attn_config.alibi_bias_max is 16; only 8 is"},
    {"Llama-4-Scout-17B-16E", "unknown architecture Llama4ForConditional"},
    {"Apertus-8B-Instruct-2509", "unknown architecture ApertusForCausalLM"},
    {"GLM-5", "unknown architecture GlmMoeDsaForCausalLM"},
    {"Olmo-Hybrid-7B", "unknown architecture OlmoHybridForCausalLM"},
};

enum { N_REFUSED = sizeof(refused) / sizeof(*refused) };

/* NULL: it opens. */
static const char *sentence_of(const char *name)
{
    for (size_t i = 0; i < N_REFUSED; i++)
        if (!strcmp(refused[i].name, name))
            return refused[i].says;
    return NULL;
}

static void test_all(void **state)
{
    char *path = kv_path_join(getenv("KV_SOURCE_ROOT"), "tests/released.json");
    struct kv_config *c = kv_alloc(1, sizeof(*c));
    struct kv_err e = {""};
    json_t *all = kv_json_read(path, &e), *json;
    size_t n_open = 0, n_refused = 0;
    const char *name;

    (void)state;
    assert_non_null(all);
    json_object_foreach(all, name, json)
    {
        const char *says = sentence_of(name);
        const bool opens = !kv_config_parse(c, json, name, &e);

        if (says && !opens)
            assert_says(e, says);
        if (opens != !says)
            fail_msg("%s", opens ? name : e.msg);
        n_open += opens;
        n_refused += !opens;
    }
    print_message("%zu of %zu open\n", n_open, n_open + n_refused);
    assert_int_equal(n_refused, N_REFUSED);
    json_decref(all);
    free(c);
    free(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_all)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
