/* lib/model/relay.h: layers in parts of about the same bytes. */
#include "lib/base/alloc.h"
#include "lib/model/model_impl.h"
#include "tests/test.h"

#include <string.h>

static const char llama[] =
    "{\"architectures\": [\"LlamaForCausalLM\"], \"hidden_size\": 8192,"
    " \"intermediate_size\": 28672, \"num_hidden_layers\": 80,"
    " \"num_attention_heads\": 64, \"num_key_value_heads\": 8,"
    " \"vocab_size\": 128256, \"max_position_embeddings\": 8192,"
    " \"rms_norm_eps\": 1e-5, \"hidden_act\": \"silu\","
    " \"rope_theta\": 500000.0}";

static struct kv_model *open_llama(void)
{
    struct kv_model *m = kv_alloc(1, sizeof(*m));
    json_t *json = json_loads(llama, 0, NULL);
    struct kv_err e = {""};

    if (!json || kv_config_parse(&m->config, json, "here", &e))
        fail_msg("%s", e.msg);
    json_decref(json);
    strcpy(m->info.name, "llama");
    kv_tensor_map_random(&m->weights, &m->config, 1);
    return m;
}

static void close_llama(struct kv_model *m)
{
    kv_tensor_unmap(&m->weights);
    free(m);
}

/* A quarter of 70 billion weights on each of four ranks; the head, which lies
 * with the last, counts as 1.2 layers. */
static void test_quarters(void **state)
{
    static const size_t ends[] = {20, 41, 61, 80};
    struct kv_model *m = open_llama();
    const double all = (double)kv_model_part_bytes(m, 0, 80);
    size_t first = 0, end = 0, before = 0;
    struct kv_err e = {""};

    (void)state;
    for (size_t i = 0; i < 4; i++, before = end) {
        assert_int_equal(kv_model_split(m, i, 4, &first, &end, &e), 0);
        assert_int_equal(first, before);
        assert_int_equal(end, ends[i]);
        assert_in_range(
            (size_t)(1000 * (double)kv_model_part_bytes(m, first, end) / all),
            245, 259);
    }
    close_llama(m);
}

/* Any number of parts up to one a layer: each has some, and all are had. */
static void test_every_number(void **state)
{
    struct kv_model *m = open_llama();
    size_t first = 0, end = 0;
    struct kv_err e = {""};

    (void)state;
    for (size_t n = 1; n <= 80; n++) {
        size_t before = 0;

        for (size_t i = 0; i < n; i++, before = end) {
            assert_int_equal(kv_model_split(m, i, n, &first, &end, &e), 0);
            assert_int_equal(first, before);
            assert_true(end > first);
        }
        assert_int_equal(end, 80);
    }
    assert_int_equal(kv_model_split(m, 0, 81, &first, &end, &e), -1);
    assert_says(e, "81 parts of 80 layers");
    close_llama(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_quarters),
        cmocka_unit_test(test_every_number),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
