/* lib/model: layers without attention.  Their state belongs to the sequence:
 * many passes give the bits of one pass, beside other sequences or alone.  Also
 * configs and tensors that must be refused. */
#include "eval/generate.h"
#include "lib/base/alloc.h"
#include "lib/base/file.h"
#include "lib/calib.h"
#include "lib/model/backward.h"
#include "lib/model/config.h"
#include "lib/model/model.h"
#include "lib/seq/seq.h"
#include "tests/test.h"

#include <math.h>
#include <unistd.h>

enum { N = 24, FEW = KV_FEW_ROWS, SEQUENCES = 2 };

static const char *const models[] = {"lfm2", "qwen3_next", "qwen3_5",
                                     "granite_hybrid", "nemotron_h_moe"};
enum { MODELS = sizeof(models) / sizeof(*models) };

/* Sequences of a model, in f32. */
struct setup {
    struct kv_model *model;
    struct kv_spec spec;
    struct kv_codecs *codecs;
    struct kv_seq *seq[SEQUENCES];
    size_t hidden;
};

static char *golden(const char *name)
{
    char *all = kv_path_join(getenv("KV_SOURCE_ROOT"), "tests/golden");
    char *path = kv_path_join(all, name);

    free(all);
    return path;
}

static int32_t token(size_t sequence, size_t i)
{
    return (int32_t)((i * i * 7 + 11 * sequence + i) % 53);
}

static void open_sequences(struct setup *s)
{
    const struct kv_shape *shape = &kv_model_info(s->model)->shape;
    const struct kv_seq_plan plan = {.n_layers = shape->n_layers,
                                     .n_states = shape->n_states,
                                     .state_floats = shape->state_floats};
    struct kv_err e = {""};

    for (size_t i = 0; i < SEQUENCES; i++) {
        s->seq[i] = kv_seq_new(&plan);
        for (size_t l = 0; l < shape->n_layers; l++)
            assert_int_equal(
                kv_seq_open(s->seq[i], kv_codecs_at(s->codecs, l), &e), 0);
        assert_int_equal(kv_seq_state_bytes(s->seq[i]),
                         kv_shape_state_bytes(shape));
    }
}

static void close_sequences(struct setup *s)
{
    for (size_t i = 0; i < SEQUENCES; i++)
        kv_seq_free(s->seq[i]);
}

static void open_setup(struct setup *s, const char *name)
{
    char *path = golden(name);
    struct kv_err e = {""};

    if (kv_model_open(&s->model, path, &e))
        fail_msg("%s", e.msg);

    const struct kv_shape *shape = &kv_model_info(s->model)->shape;

    if (kv_spec_parse(&s->spec, "f32", &e) ||
        kv_spec_fit(&s->spec, shape, &e) ||
        kv_codecs_new(&s->codecs, &s->spec, shape, 0, shape->n_layers, NULL,
                      &e))
        fail_msg("%s", e.msg);
    s->hidden = kv_model_info(s->model)->hidden;
    free(path);
}

static void clear_setup(struct setup *s)
{
    kv_codecs_free(s->codecs);
    kv_model_free(s->model);
}

static int attend(void *arg, const struct kv_qkv *x, struct kv_err *e)
{
    const struct setup *s = arg;
    const size_t row = x->shape->n_heads * x->shape->head_dim;

    for (size_t i = 0, at = 0; i < x->batch->n_spans; i++) {
        const struct kv_span *span = &x->batch->span[i];
        const struct kv_tokens t = kv_qkv_tokens(x, 0, at, span->n);

        if (kv_seq_step(s->seq[span->sequence], x->layer, &t, x->out + at * row,
                        e))
            return -1;
        at += span->n;
    }
    return 0;
}

static float *state_of(void *arg, size_t sequence)
{
    const struct setup *s = arg;

    return kv_seq_state(s->seq[sequence]);
}

/* hidden [SEQUENCES][N][hidden]: spans of up to `step` tokens of `together`
 * sequences in a pass. */
static void run(struct setup *s, size_t step, bool together, float *hidden)
{
    const struct kv_attention attention = {
        .run = attend, .arg = s, .state = state_of};
    const size_t most = together ? SEQUENCES : 1;
    float *out = kv_alloc(SEQUENCES * N, s->hidden * sizeof(*out));
    struct kv_err e = {""};

    open_sequences(s);
    for (size_t first = 0; first < SEQUENCES; first += most)
        for (size_t at = 0; at < N; at += step) {
            const size_t n = N - at < step ? N - at : step;
            int32_t tokens[SEQUENCES * N];
            struct kv_span span[SEQUENCES];

            for (size_t i = 0; i < most; i++) {
                span[i] = (struct kv_span){first + i, at, n};
                for (size_t t = 0; t < n; t++)
                    tokens[i * n + t] = token(first + i, at + t);
            }
            if (kv_model_forward_batch(s->model,
                                       &(struct kv_batch){most, span, tokens},
                                       &attention, out, &e))
                fail_msg("%s", e.msg);
            for (size_t i = 0; i < most; i++)
                memcpy(hidden + ((first + i) * N + at) * s->hidden,
                       out + i * n * s->hidden, n * s->hidden * sizeof(*out));
        }
    close_sequences(s);
    free(out);
}

/* Stored matrices give the same bits for any rows, so the state must too. */
static void test_steps(void **state)
{
    static const struct {
        size_t step;
        bool together, same;
    } ways[] = {{FEW, false, true},
                {1, true, true},
                {3, true, true},
                {N, true, false},
                {5, false, true}};

    (void)state;
    for (size_t i = 0; i < MODELS; i++) {
        struct setup s;
        size_t n;
        float *first, *other;

        open_setup(&s, models[i]);
        n = SEQUENCES * N * s.hidden;
        first = kv_alloc(n, sizeof(*first));
        other = kv_alloc(n, sizeof(*other));
        run(&s, 1, false, first);
        for (size_t w = 0; w < sizeof(ways) / sizeof(*ways); w++) {
            run(&s, ways[w].step, ways[w].together, other);
            if (ways[w].same)
                assert_memory_equal(other, first, n * sizeof(*first));
            for (size_t j = 0; j < n; j++)
                assert_true(fabsf(other[j] - first[j]) <= 1e-4F);
        }
        free(first);
        free(other);
        clear_setup(&s);
    }
}

/* A state as a message: damaged, it is refused, and nothing has changed. */
static void test_message(void **state)
{
    const struct kv_seq_plan plan = {
        .n_layers = 1, .n_states = 2, .state_floats = 5};
    struct kv_seq *from = kv_seq_new(&plan), *to = kv_seq_new(&plan);
    const size_t all = kv_seq_state_bytes(from);
    const float before[10] = {0};
    struct kv_err e = {""};
    uint8_t *bytes;
    size_t n;

    (void)state;
    for (size_t i = 0; i < 10; i++)
        kv_seq_state(from)[i] = (float)i + 1;
    kv_seq_write_state(from, &bytes, &n);
    assert_int_equal(n, 4 + all);
    assert_int_equal(kv_seq_load_state(to, bytes, n - 1, &e), -1);
    assert_says(e, "a state of 43 bytes, where 44 are expected");
    bytes[20] ^= 1;
    assert_int_equal(kv_seq_load_state(to, bytes, n, &e), -1);
    assert_says(e, "the state: ");
    assert_memory_equal(kv_seq_state(to), before, all);
    bytes[20] ^= 1;
    assert_int_equal(kv_seq_load_state(to, bytes, n, &e), 0);
    assert_memory_equal(kv_seq_state(to), kv_seq_state(from), all);
    free(bytes);
    kv_seq_free(from);
    kv_seq_free(to);
}

/* Two specs' answers to a prompt that runs once equal the answers of each spec
 * alone. */
static void test_shared_prompt(void **state)
{
    static const char *const text[SEQUENCES] = {"f32", "f16"};
    int32_t prompt[N];

    (void)state;
    for (size_t t = 0; t < N; t++)
        prompt[t] = token(0, t);
    for (size_t i = 0; i < MODELS; i++) {
        struct kv_answer together[SEQUENCES], alone[SEQUENCES];
        struct kv_generation how = {.batch = SEQUENCES};
        struct kv_spec spec[SEQUENCES];
        struct kv_err e = {""};
        struct setup s;

        open_setup(&s, models[i]);
        how.model = s.model;
        for (size_t j = 0; j < SEQUENCES; j++) {
            assert_int_equal(kv_spec_parse(&spec[j], text[j], &e), 0);
            assert_int_equal(
                kv_spec_fit(&spec[j], &kv_model_info(s.model)->shape, &e), 0);
            together[j] = (struct kv_answer){
                .spec = &spec[j], .prompt = prompt, .n_prompt = N, .most = 16};
            alone[j] = together[j];
            assert_int_equal(kv_generate(&how, &alone[j], 1, &e), 0);
        }
        assert_int_equal(kv_generate(&how, together, SEQUENCES, &e), 0);
        for (size_t j = 0; j < SEQUENCES; j++) {
            assert_int_equal(together[j].made, 16);
            assert_memory_equal(together[j].ids, alone[j].ids,
                                16 * sizeof(*alone[j].ids));
            kv_answer_clear(&together[j]);
            kv_answer_clear(&alone[j]);
        }
        clear_setup(&s);
    }
}

/* Windows begin with a state of zeros, in one pass, through a file, or one by
 * one; a pass that continues needs a state. */
static void test_windows(void **state)
{
    (void)state;
    for (size_t i = 0; i < MODELS; i++) {
        struct kv_err e = {""};
        int32_t tokens[SEQUENCES * N];
        float *together, *alone;
        struct setup s;
        FILE *f;

        open_setup(&s, models[i]);
        together = kv_alloc(SEQUENCES * N, s.hidden * sizeof(*together));
        alone = kv_alloc(SEQUENCES * N, s.hidden * sizeof(*alone));
        for (size_t t = 0; t < SEQUENCES * N; t++)
            tokens[t] = token(t / N, t % N);
        assert_int_equal(kv_model_forward(s.model, tokens, SEQUENCES, N, 0,
                                          NULL, together, &e),
                         0);
        for (size_t w = 0; w < SEQUENCES; w++)
            assert_int_equal(kv_model_forward(s.model, tokens + w * N, 1, N, 0,
                                              NULL, alone + w * N * s.hidden,
                                              &e),
                             0);
        assert_memory_equal(together, alone,
                            SEQUENCES * N * s.hidden * sizeof(*alone));
        f = kv_scratch_open(&e);
        assert_non_null(f);
        assert_int_equal(kv_model_forward_file(s.model, tokens, SEQUENCES, N, 1,
                                               NULL, f, &e),
                         0);
        assert_int_equal(
            kv_scratch_read(f, 0, alone,
                            SEQUENCES * N * s.hidden * sizeof(*alone), &e),
            0);
        assert_memory_equal(together, alone,
                            SEQUENCES * N * s.hidden * sizeof(*alone));
        fclose(f);
        assert_int_equal(
            kv_model_forward(s.model, tokens, 1, 4, N, NULL, alone, &e), -1);
        assert_says(e, "want the state of those before them");
        free(together);
        free(alone);
        clear_setup(&s);
    }
}

static int no_gradients(void *arg, const struct kv_gradient *g,
                        struct kv_err *e)
{
    (void)arg, (void)g, (void)e;
    return 0;
}

/* The shape counts only layers with attention. */
static void test_shape(void **state)
{
    const struct kv_gradient_sink sink = {.run = no_gradients};
    const int32_t tokens[4] = {1, 2, 3, 4};
    struct kv_err e = {""};
    struct setup s;

    (void)state;
    open_setup(&s, "lfm2"); /* conv, attention, conv, attention */

    const struct kv_shape *shape = &kv_model_info(s.model)->shape;

    assert_int_equal(shape->n_layers, 2);
    assert_int_equal(shape->n_states, 2);
    assert_int_equal(shape->state_floats, (3 - 1) * 18);
    assert_int_equal(kv_shape_state_bytes(shape), 2 * 2 * 18 * 4);
    assert_int_equal(kv_shape_own(shape, 0), 1);
    assert_int_equal(kv_shape_own(shape, 1), 3);
    assert_int_equal(
        kv_model_backward(s.model, tokens, 1, 4, 0, NULL, &sink, &e), -1);
    assert_says(e, "layers without attention, which a Lfm2ForCausalLM has");
    clear_setup(&s);
}

/* A config of small sizes, its quotes ', and more. */
static int read_arch(const char *arch, const char *model_type, const char *more,
                     struct kv_config *c, struct kv_err *e)
{
    char text[2048];
    json_t *json;
    int rc;

    snprintf(text, sizeof(text),
             "{'architectures': ['%s'], 'model_type': '%s', 'hidden_size': 48, "
             "'intermediate_size': 90, 'num_hidden_layers': 4, "
             "'num_attention_heads': 6, 'num_key_value_heads': 2, "
             "'vocab_size': 61, 'max_position_embeddings': 512%s%s}",
             arch, model_type, *more ? ", " : "", more);
    for (char *quote = text; (quote = strchr(quote, '\''));)
        *quote = '"';
    json = json_loads(text, 0, NULL);
    assert_non_null(json);
    rc = kv_config_parse(c, json, "config.json", e);
    json_decref(json);
    return rc;
}

static void read_lfm2(const char *more, struct kv_config *c)
{
    struct kv_err e = {""};

    if (read_arch("Lfm2ForCausalLM", "lfm2", more, c, &e))
        fail_msg("%s", e.msg);
}

#define SHARED "'shared_intermediate_size': 32"
#define TYPES SHARED ", 'layer_types': ['mamba', 'mamba', 'mamba', 'attention']"
#define GRANITE_MORE                                                       \
    "'num_local_experts': 0, 'mamba_n_heads': 8, 'mamba_d_head': 'auto', " \
    "'mamba_d_state': 16, " TYPES

static void test_fields(void **state)
{
    struct kv_config c;
    struct kv_err e = {""};

    (void)state;
    read_lfm2("", &c); /* all attend, as in transformers */
    assert_int_equal(c.shape.n_layers, 4);
    assert_int_equal(c.inter, 256); /* two thirds of 90, to whole steps */
    read_lfm2("'full_attn_idxs': [0, 3], 'block_multiple_of': 7", &c);
    assert_int_equal(c.shape.n_layers, 2);
    assert_int_equal(kv_shape_own(&c.shape, 1), 3);
    assert_int_equal(c.inter, 63);
    read_lfm2("'block_auto_adjust_ff_dim': false, 'conv_L_cache': 1, "
              "'full_attn_idxs': [1]",
              &c);
    assert_int_equal(c.inter, 90);
    assert_int_equal(c.shape.state_floats, 0);
    assert_int_equal(
        read_arch("Qwen3_5ForCausalLM", "qwen3_5_text", "", &c, &e), 0);
    assert_int_equal(c.shape.n_layers, 1);
    assert_int_equal(kv_shape_own(&c.shape, 0), 3);
    assert_int_equal(c.shape.state_floats,
                     3 * (2 * 16 * 128 + 32 * 128) + 32 * 128 * 128);
    for (int rope = 0; rope < 2; rope++) {
        assert_int_equal(
            read_arch("GraniteMoeHybridForCausalLM", "granitemoehybrid",
                      rope ? "'position_embedding_type': 'rope', " GRANITE_MORE
                           : "'position_embedding_type': 'nope', " GRANITE_MORE,
                      &c, &e),
            0);
        assert_int_equal(kv_shape_layer(&c.shape, 0).n_rot, rope ? 4 : 0);
        assert_int_equal(c.inter, 32);
        assert_int_equal(c.shape.state_floats, 3 * (96 + 2 * 16) + 8 * 12 * 16);
    }
}

#define NEMOTRON "'mamba_num_heads': 8, 'mamba_head_dim': 4, 'n_groups': 2, "
#define HALVES "'hybrid_override_pattern': 'M-*E'"
#define MOE                                                         \
    "'n_routed_experts': 4, 'num_experts_per_tok': 2, "             \
    "'moe_shared_expert_intermediate_size': 7, 'time_step_limit': " \
    "[0.0, 1.0e+308], "

/* Layers of one half: states of Mamba's alone, numbers of attention's. */
static void test_halves(void **state)
{
    struct kv_config c;
    struct kv_err e = {""};

    (void)state;
    assert_int_equal(
        read_arch("NemotronHForCausalLM", "nemotron_h",
                  NEMOTRON MOE "'moe_intermediate_size': 5, " HALVES, &c, &e),
        0);
    assert_int_equal(c.shape.n_layers, 1);
    assert_int_equal(c.shape.n_states, 1);
    assert_int_equal(kv_config_layers_of(&c), 4);
    assert_int_equal(kv_shape_own(&c.shape, 0), 2);
    assert_int_equal(kv_shape_layer(&c.shape, 0).n_rot, 0);
    assert_int_equal(kv_config_inter(&c, 1), 90);
    assert_int_equal(kv_config_inter(&c, 3), 5);
    assert_int_equal(kv_shape_state_bytes(&c.shape),
                     4 * (3 * (32 + 2 * 2 * 128) + 32 * 128));
}

static void test_bad_fields(void **state)
{
    static const struct {
        enum { LFM2, QWEN, GRANITE, HALF } of;
        const char *more, *says;
    } bad[] = {
        {LFM2, "'layer_types': ['conv', 'full_attention']",
         "field layer_types is not a list of 4 types"},
        {LFM2, "'layer_types': ['conv', 'conv', 'mamba', 'full_attention']",
         "layer 2 is mamba; only full_attention and conv are known"},
        {LFM2, "'layer_types': ['conv', 'conv', 7, 'full_attention']",
         "layer 2 is no name"},
        {LFM2, "'layer_types': ['conv', 'conv', 'conv', 'conv']",
         "none of 4 layers has attention"},
        {LFM2, "'full_attn_idxs': []", "none of 4 layers has attention"},
        {LFM2, "'full_attn_idxs': [4]", "entry 0 is no layer below 4"},
        {LFM2, "'full_attn_idxs': [-1]", "entry 0 is no layer below 4"},
        {LFM2,
         "'full_attn_idxs': [2], 'layer_types': ['conv', 'conv', 'conv', "
         "'full_attention']",
         "layer_types and full_attn_idxs contradict each other"},
        {LFM2, "'conv_bias': true", "conv_bias is true; only false"},
        {LFM2, "'conv_L_cache': 0",
         "conv_L_cache is not a whole number from 1"},
        {LFM2, "'block_ff_dim': 91", "contradict each other"},
        {LFM2, "'sliding_window': 8", "sliding_window is not null"},
        {QWEN,
         "'layer_types': ['linear_attention', 'linear_attention', "
         "'linear_attention', 'sliding_attention']",
         "only full_attention and linear_attention are known"},
        {QWEN,
         "'full_attention_interval': 2, 'layer_types': "
         "['linear_attention', 'linear_attention', 'linear_attention', "
         "'full_attention']",
         "layer_types and full_attention_interval contradict each other"},
        {QWEN, "'full_attention_interval': 5", "none of 4 layers"},
        {QWEN, "'linear_num_key_heads': 3",
         "linear_num_value_heads 32 is no multiple of linear_num_key_heads 3"},
        {QWEN, "'attention_bias': true", "attention_bias is true, but"},
        {QWEN, "'attn_output_gate': false", "attn_output_gate is false"},
        {GRANITE, "'num_local_experts': 8, " TYPES,
         "num_experts_per_tok is missing"},
        {GRANITE, TYPES, "num_local_experts is missing"},
        {GRANITE, "'num_local_experts': 0, 'mamba_n_heads': 8, " SHARED,
         "layer_types is missing"},
        {GRANITE,
         "'num_local_experts': 0, 'mamba_d_head': 7, "
         "'mamba_n_heads': 8, " TYPES,
         "8 heads of Mamba (mamba_n_heads) of 7 channels (mamba_d_head) are "
         "not 96"},
        {GRANITE,
         "'num_local_experts': 0, 'mamba_n_heads': 8, "
         "'mamba_n_groups': 3, " TYPES,
         "mamba_n_heads 8 is no multiple of mamba_n_groups 3"},
        {GRANITE, "'num_local_experts': 0, 'mamba_proj_bias': true, " TYPES,
         "mamba_proj_bias is true; only false"},
        {GRANITE,
         "'num_local_experts': 0, 'mamba_n_heads': 8, "
         "'position_embedding_type': 'alibi', " TYPES,
         "position_embedding_type is alibi; only rope and nope are known"},
        {HALF, NEMOTRON "'n_group': 1", "neither field layers_block_type nor"},
        {HALF, NEMOTRON "'hybrid_override_pattern': 'M-*'",
         "hybrid_override_pattern names 3 layers, num_hidden_layers 4"},
        {HALF, NEMOTRON "'hybrid_override_pattern': 'M-*X'",
         "layer 3 is neither Mamba, attention, an MLP nor experts"},
        {HALF,
         NEMOTRON "'layers_block_type': ['mamba', 'mlp', 'attention', 'mlp'], "
                  "'hybrid_override_pattern': 'M-*E'",
         "contradict each other"},
        {HALF, NEMOTRON MOE HALVES, "moe_intermediate_size is missing"},
        {HALF, NEMOTRON "'moe_latent_size': 4, " HALVES,
         "moe_latent_size is 4; only null is implemented"},
        {HALF, "'mamba_num_heads': 7, 'hybrid_override_pattern': 'M-*-'",
         "mamba_num_heads 7 is no multiple of n_groups 8"},
    };

    static const char *const arch[][2] = {
        [LFM2] = {"Lfm2ForCausalLM", "lfm2"},
        [QWEN] = {"Qwen3_5ForCausalLM", "qwen3_5_text"},
        [GRANITE] = {"GraniteMoeHybridForCausalLM", "granitemoehybrid"},
        [HALF] = {"NemotronHForCausalLM", "nemotron_h"}};

    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        struct kv_config c;
        struct kv_err e = {""};

        assert_int_equal(read_arch(arch[bad[i].of][0], arch[bad[i].of][1],
                                   bad[i].more, &c, &e),
                         -1);
        assert_says(e, bad[i].says);
    }
}

/* The golden with one word of its config.json another. */
static int open_changed(const char *name, const char *is, const char *becomes,
                        struct kv_err *e)
{
    const char *folder = test_folder();
    char *from = golden(name), *config = kv_path_join(from, "config.json");
    char *weights = kv_path_join(from, "model.safetensors");
    char *own = kv_path_join(folder, "config.json");
    char *link = kv_path_join(folder, "model.safetensors");
    struct kv_model *m = NULL;
    size_t bytes;
    char *text, *at;
    FILE *f;
    int rc;

    assert_int_equal(kv_file_read(config, &text, &bytes, e), 0);
    at = strstr(text, is);
    assert_non_null(at);
    unlink(own);
    unlink(link);
    f = fopen(own, "w");
    assert_non_null(f);
    fprintf(f, "%.*s%s%s", (int)(at - text), text, becomes, at + strlen(is));
    assert_int_equal(fclose(f), 0);
    assert_int_equal(symlink(weights, link), 0);
    rc = kv_model_open(&m, folder, e);
    kv_model_free(m);
    free(text);
    free(link);
    free(own);
    free(weights);
    free(config);
    free(from);
    return rc;
}

static void test_bad_tensors(void **state)
{
    struct kv_err e = {""};

    (void)state;
    assert_int_equal(
        open_changed("lfm2", "\"conv_L_cache\": 3", "\"conv_L_cache\": 4", &e),
        -1);
    assert_says(e, "layers.0.conv.conv.weight has shape [18, 1, 3]; "
                   "config.json says [18, 1, 4]");
    assert_int_equal(open_changed("qwen3_next", "\"linear_key_head_dim\": 6",
                                  "\"linear_key_head_dim\": 7", &e),
                     -1);
    assert_says(e, "linear_attn.in_proj_qkvz.weight has shape [64, 18]; "
                   "config.json says [68, 18]");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_steps),      cmocka_unit_test(test_windows),
        cmocka_unit_test(test_message),    cmocka_unit_test(test_shared_prompt),
        cmocka_unit_test(test_shape),      cmocka_unit_test(test_fields),
        cmocka_unit_test(test_halves),     cmocka_unit_test(test_bad_fields),
        cmocka_unit_test(test_bad_tensors)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
