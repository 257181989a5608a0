/* A model's hash: a byte changed anywhere in what is read gives another hash,
 * or the model is refused. */
#include "lib/base/alloc.h"
#include "lib/base/file.h"
#include "lib/base/hash.h"
#include "lib/model/model.h"
#include "tests/test.h"
#include "tests/tiny_gguf.h"
#include "tests/tiny_model.h"

#include <dirent.h>
#include <fcntl.h>

enum { LEAF = 256 << 10 }; /* lib/file_hash.h */

/* False if the model is refused. */
static bool hash_of(const char *model, char hex[KV_HASH_CHARS])
{
    struct kv_err e = {""};
    struct kv_model *m;

    if (kv_model_open(&m, model, &e)) {
        assert_true(*e.msg);
        return false;
    }
    snprintf(hex, KV_HASH_CHARS, "%s", kv_model_info(m)->hash);
    kv_model_free(m);
    return true;
}

static size_t size_of(const char *path)
{
    struct stat st;

    assert_int_equal(stat(path, &st), 0);
    return (size_t)st.st_size;
}

static void flip(const char *path, size_t at, uint8_t bits)
{
    const int fd = open(path, O_RDWR);
    uint8_t byte;

    assert_int_equal(pread(fd, &byte, 1, (off_t)at), 1);
    byte ^= bits;
    assert_int_equal(pwrite(fd, &byte, 1, (off_t)at), 1);
    close(fd);
}

/* Returns whether the model is still taken. */
static bool check_flip(const char *model, const char *path, size_t at,
                       uint8_t bits)
{
    char was[KV_HASH_CHARS], is[KV_HASH_CHARS];
    bool taken;

    if (!hash_of(model, was))
        fail_msg("%s is refused as it was made", model);
    flip(path, at, bits);
    taken = hash_of(model, is);
    flip(path, at, bits);
    if (taken && !strcmp(was, is))
        fail_msg("%s: byte %zu does not count", path, at);
    return taken;
}

/* At places all over the file, the ends and the leaves' among them. */
static void check_file(const char *model, const char *path)
{
    enum { PLACES = 23 };
    const size_t n = size_of(path);

    for (size_t i = 0; i <= PLACES; i++)
        check_flip(model, path, (n - 1) * i / PLACES, (uint8_t)(1 << i % 8));
    for (size_t at = LEAF; at <= n; at += LEAF)
        for (size_t i = at - 1; i <= at + 1 && i < n; i++)
            check_flip(model, path, i, 1);
}

/* Every file of the folder; returns how many. */
static size_t check_folder(const char *model, const char *folder)
{
    DIR *d = opendir(folder);
    size_t n = 0;

    assert_non_null(d);
    for (const struct dirent *f; (f = readdir(d));) {
        char *path;

        if (f->d_name[0] == '.')
            continue;
        path = kv_path_join(folder, f->d_name);
        check_file(model, path);
        free(path);
        n++;
    }
    closedir(d);
    return n;
}

/* Pads a file with spaces to this size. */
static void pad(const char *folder, const char *name, size_t bytes)
{
    char *path = kv_path_join(folder, name);
    FILE *f = fopen(path, "ab");

    for (size_t n = size_of(path); n < bytes; n++)
        fputc(' ', f);
    fclose(f);
    free(path);
}

/* ---- folders ------------------------------------------------------------- */

static const char *const beside[] = {
    "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
    "chat_template.jinja", "generation_config.json"};
enum { N_BESIDE = sizeof(beside) / sizeof(*beside) };

/* The first two of a kind of vocabulary. */
static const char *const vocabularies[][2] = {
    {"tokenizer.json"},
    {"tokenizer.model"},
    {"vocab.json", "merges.txt"},
    {"qwen.tiktoken"},
};
enum { N_VOCABULARIES = sizeof(vocabularies) / sizeof(*vocabularies) };

/* bytes: the size of each file except the weights. */
static const char *make_folder(const struct tiny_model *m, size_t vocabulary,
                               size_t bytes)
{
    const char *dir = test_folder();

    tiny_write(m, dir);
    pad(dir, "config.json", bytes);
    for (size_t i = 0; i < N_BESIDE; i++) {
        tiny_write_text(dir, beside[i], "{}");
        pad(dir, beside[i], bytes);
    }
    for (size_t i = 0; i < 2 && vocabularies[vocabulary][i]; i++) {
        tiny_write_text(dir, vocabularies[vocabulary][i], "{}");
        pad(dir, vocabularies[vocabulary][i], bytes);
    }
    return dir;
}

static void every_file_of_a_folder(void **state)
{
    static const size_t sizes[] = {LEAF - 1, LEAF, LEAF + 1, 3};
    struct tiny_model m = tiny_llama;

    (void)state;
    tiny_init(&m);
    for (size_t i = 0; i < N_VOCABULARIES; i++) {
        const char *dir = make_folder(&m, i, sizes[i]);

        assert_int_equal(check_folder(dir, dir),
                         2 + N_BESIDE + (vocabularies[i][1] ? 2 : 1));
    }
    tiny_clear(&m);
}

static void every_shard(void **state)
{
    struct tiny_model m = tiny_llama;
    const char *dir;

    (void)state;
    m.n_shards = 3;
    tiny_init(&m);
    dir = make_folder(&m, 0, 0);
    assert_int_equal(check_folder(dir, dir), 5 + N_BESIDE + 1);
    tiny_clear(&m);
}

/* A file that comes, goes, or has another's content; what is not read does not
 * count. */
static void files_count_by_name(void **state)
{
    static const char *const unread[] = {
        "README.md",         "tokenizer.model",
        "merges.txt",        "model.safetensors.index.json",
        "pytorch_model.bin", "trainer_state.json"};
    struct tiny_model m = tiny_llama;
    char was[KV_HASH_CHARS], is[KV_HASH_CHARS];
    const char *dir;

    (void)state;
    tiny_init(&m);
    dir = make_folder(&m, 0, 0);
    assert_true(hash_of(dir, was));
    for (size_t i = 0; i < sizeof(unread) / sizeof(*unread); i++)
        tiny_write_text(dir, unread[i], "{}");
    assert_true(hash_of(dir, is));
    assert_string_equal(was, is);
    for (size_t i = 0; i < N_BESIDE; i++) {
        char *path = kv_path_join(dir, beside[i]);

        unlink(path);
        assert_true(hash_of(dir, is));
        assert_string_not_equal(was, is);
        snprintf(was, sizeof(was), "%s", is);
        free(path);
    }
    tiny_write_text(dir, beside[0], "{}");
    assert_true(hash_of(dir, is));
    for (size_t i = 1; i < N_BESIDE; i++) {
        char *from = kv_path_join(dir, beside[i - 1]);
        char *to = kv_path_join(dir, beside[i]);

        snprintf(was, sizeof(was), "%s", is);
        rename(from, to);
        assert_true(hash_of(dir, is));
        assert_string_not_equal(was, is);
        free(from);
        free(to);
    }
    tiny_clear(&m);
}

/* ---- files of weights ---------------------------------------------------- */

/* A safetensors file of this many bytes, its header filled up with spaces:
 * these count as well. */
static void safetensors_of_any_size(void **state)
{
    struct tiny_model m = tiny_llama;

    (void)state;
    tiny_init(&m);
    for (size_t want = LEAF - 1; want <= LEAF + 1; want++) {
        const char *dir = test_folder();
        char *path = kv_path_join(dir, "model.safetensors");
        size_t bytes;
        uint64_t n;
        char *file, *header;

        tiny_write(&m, dir);
        bytes = size_of(path);
        if (kv_file_read(path, &file, &bytes, &(struct kv_err){""}))
            fail_msg("%s", path);
        memcpy(&n, file, sizeof(n));
        assert_true(bytes < want);
        header = kv_alloc(n + want - bytes + 1, 1);
        memset(header, ' ', n + want - bytes);
        memcpy(header, file + 8, n);
        tiny_write_safetensors(path, n + want - bytes, header, file + 8 + n,
                               bytes - 8 - n);
        assert_int_equal(size_of(path), want);
        check_file(dir, path);
        assert_true(check_flip(dir, path, 8 + n, ' ' ^ '\t'));
        free(header);
        free(file);
        free(path);
    }
    tiny_clear(&m);
}

/* Tensors of 335 MB, nearly all of them a hole. */
static void large_tensors(void **state)
{
    static const size_t hidden = 80, n_vocab = 1 << 21;
    struct tiny_model m = tiny_llama;
    const char *dir = test_folder();
    char *path = kv_path_join(dir, "model.safetensors");
    size_t n, bytes = 2 * hidden * n_vocab, first;
    char header[4096];

    (void)state;
    m.dtype = "BF16";
    m.hidden = hidden;
    m.n_vocab = 1;
    m.tied = true;
    tiny_init(&m);
    tiny_config(&m, "\"vocab_size\": 1", "\"vocab_size\": 2097152");
    tiny_write_text(dir, "config.json", m.config);
    n = (size_t)sprintf(header,
                        "{\"%s\": {\"dtype\": \"BF16\", \"shape\": [%zu, %zu], "
                        "\"data_offsets\": [0, %zu]}",
                        m.tensor[0].name, n_vocab, hidden, bytes);
    for (size_t i = 1; i < m.n_tensors; i++) {
        const struct tiny_tensor *t = &m.tensor[i];
        const size_t end = bytes + 2 * t->rows * (t->cols ? t->cols : 1);

        n += (size_t)sprintf(header + n, ", \"%s\": {\"dtype\": \"BF16\", ",
                             t->name);
        n += (size_t)sprintf(header + n,
                             t->cols ? "\"shape\": [%zu, %zu], "
                                     : "\"shape\": [%zu], ",
                             t->rows, t->cols);
        n += (size_t)sprintf(header + n, "\"data_offsets\": [%zu, %zu]}", bytes,
                             end);
        bytes = end;
    }
    n += (size_t)sprintf(header + n, "}");
    tiny_write_safetensors(path, n, header, "", 0);
    first = size_of(path);
    assert_int_equal(truncate(path, (off_t)(first + bytes)), 0);
    for (size_t i = 0; i <= 4; i++)
        assert_true(check_flip(dir, path, first + 77777 + bytes / 5 * i, 1));
    unlink(path);
    free(path);
    tiny_clear(&m);
}

/* Adds tensors [first, end) of a Llama with one layer. */
static void add_tensors(struct tiny_gguf *g, size_t first, size_t end)
{
    enum { VOCAB = 41, HIDDEN = 20, INNER = 36 };
    static const struct {
        const char *name;
        size_t rows, cols;
    } tensor[] = {
        {"token_embd.weight", VOCAB, HIDDEN},
        {"output_norm.weight", HIDDEN, 0},
        {"blk.0.attn_norm.weight", HIDDEN, 0},
        {"blk.0.attn_q.weight", HIDDEN, HIDDEN},
        {"blk.0.attn_k.weight", HIDDEN, HIDDEN},
        {"blk.0.attn_v.weight", HIDDEN, HIDDEN},
        {"blk.0.attn_output.weight", HIDDEN, HIDDEN},
        {"blk.0.ffn_norm.weight", HIDDEN, 0},
        {"blk.0.ffn_gate.weight", INNER, HIDDEN},
        {"blk.0.ffn_up.weight", INNER, HIDDEN},
        {"blk.0.ffn_down.weight", HIDDEN, INNER},
    };
    static const float zeros[VOCAB * HIDDEN];

    for (size_t i = first; i < end; i++) {
        const size_t cols = tensor[i].cols ? tensor[i].cols : 1;

        tiny_tensor(g, tensor[i].name, 0, tensor[i].cols ? 2 : 1,
                    (size_t[]){tensor[i].rows, tensor[i].cols}, zeros,
                    tensor[i].rows * cols * sizeof(float));
    }
}
enum { GGUF_TENSORS = 11 };

/* unread: the length of a text that no number comes from. */
static void add_keys(struct tiny_gguf *g, size_t unread)
{
    static const struct {
        const char *key;
        uint32_t value;
    } keys[] = {
        {"llama.block_count", 1},          {"llama.context_length", 64},
        {"llama.embedding_length", 20},    {"llama.feed_forward_length", 36},
        {"llama.attention.head_count", 2}, {"llama.attention.head_count_kv", 2},
        {"llama.rope.dimension_count", 10}};
    char *text = kv_alloc(unread + 1, 1);

    memset(text, 'a', unread);
    tiny_key_text(g, "general.architecture", "llama");
    for (size_t i = 0; i < sizeof(keys) / sizeof(*keys); i++)
        tiny_key_u32(g, keys[i].key, keys[i].value);
    tiny_key_f32(g, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
    tiny_key_text(g, "general.description", text);
    free(text);
}

/* Padding between tensors, and keys that are not read, count as well. */
static void gguf_of_any_size(void **state)
{
    char *path = kv_path_join(test_folder(), "m.gguf");
    size_t bytes = 0;

    (void)state;
    for (size_t unread = 100; unread < LEAF; unread += LEAF - bytes) {
        struct tiny_gguf g = {0};

        add_keys(&g, unread);
        add_tensors(&g, 0, GGUF_TENSORS);
        tiny_gguf_write(&g, path);
        tiny_gguf_clear(&g);
        bytes = size_of(path);
        check_file(path, path);
        /* zeros between the norm and the three last tensors */
        assert_true(check_flip(path, path, bytes - 3 * 4 * 36 * 20 - 1, 1));
        if (bytes >= LEAF)
            break;
    }
    assert_int_equal(bytes, LEAF);
    free(path);
}

static void every_part_of_a_gguf(void **state)
{
    const char *dir = test_folder();
    char *path = kv_path_join(dir, "m-00001-of-00002.gguf");

    (void)state;
    for (uint16_t p = 0; p < 2; p++) {
        const uint16_t count = 2;
        const int32_t all = GGUF_TENSORS;
        struct tiny_gguf g = {0};
        char *part;

        tiny_key(&g, "split.no", TINY_U16, &p, 2);
        tiny_key(&g, "split.count", TINY_U16, &count, 2);
        tiny_key(&g, "split.tensors.count", TINY_I32, &all, 4);
        if (!p)
            add_keys(&g, 100);
        add_tensors(&g, p ? 5 : 0, p ? GGUF_TENSORS : 5);
        part = kv_path_join(dir, p ? "m-00002-of-00002.gguf"
                                   : "m-00001-of-00002.gguf");
        tiny_gguf_write(&g, part);
        tiny_gguf_clear(&g);
        free(part);
    }
    assert_int_equal(check_folder(path, dir), 2);
    free(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_file_of_a_folder),
        cmocka_unit_test(every_shard),
        cmocka_unit_test(files_count_by_name),
        cmocka_unit_test(safetensors_of_any_size),
        cmocka_unit_test(large_tensors),
        cmocka_unit_test(gguf_of_any_size),
        cmocka_unit_test(every_part_of_a_gguf),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
