#include "lib/scheme.h"
#include "tests/test.h"

#include "lib/base/alloc.h"
#include "lib/base/half.h"
#include "lib/base/rng.h"
#include "lib/calib.h"
#include "lib/dump.h"
#include "lib/h5.h"
#include "tests/synthetic.h"

#include <math.h>
#include <stdbool.h>

static char path[5000], other_path[5000];

static int make_paths(void **state)
{
    const char *folder = test_folder();

    (void)state;
    snprintf(path, sizeof(path), "%s/calib.h5", folder);
    snprintf(other_path, sizeof(other_path), "%s/other.h5", folder);
    return 0;
}

static void add(struct kv_calib_set *set, const char *name, int side, int layer,
                int head, size_t n_dims, const size_t *dims)
{
    struct kv_table *t =
        kv_calib_add(set, name, side, layer, head, n_dims, dims);
    size_t n = 1;

    for (size_t i = 0; i < n_dims; i++)
        n *= dims[i];
    assert_int_equal(t->type, KV_TABLE_F32);
    t->type = strcmp(name, "codebook") ? KV_TABLE_F32 : KV_TABLE_F16;
    for (size_t i = 0; i < n; i++) {
        assert_true(t->data[i] == 0);
        t->data[i] = (float)kv_random_normal(set->n_tables, i);
        if (t->type == KV_TABLE_F16)
            t->data[i] = kv_f16_to_f32(kv_f16_clamp(t->data[i]));
    }
    t->error = (double)set->n_tables / 7;
}

static void start_set(struct kv_calib_set *set, const char *text)
{
    struct kv_spec spec;
    struct kv_err e = {""};

    *set = (struct kv_calib_set){.seed = UINT64_MAX};
    if (kv_spec_parse(&spec, text, &e))
        fail_msg("%s", e.msg);
    snprintf(set->spec, sizeof(set->spec), "%s", spec.text);
    kv_spec_calib_key(&spec, set->key);
}

/* Two sets; the first with every kind of scope. */
static struct kv_calib *some_calib(void)
{
    static const size_t dims[] = {2, 3, 1, 5};
    struct kv_calib *c = kv_alloc(1, sizeof(*c));

    c->shape = (struct kv_shape){.n_layers = 3,
                                 .n_heads = 4,
                                 .n_kv_heads = 2,
                                 .head_dim = 8,
                                 .attn_scale = 0.25f,
                                 .n_rot = 4,
                                 .inv_freq = {1, 0.1f, 0.01f, 0.001f}};
    strcpy(c->model, "toy");
    strcpy(c->model_hash, "0123456789abcdef");
    strcpy(c->text, "toy.txt");
    strcpy(c->text_hash, "fedcba9876543210");
    c->n_windows = 2;
    c->ctx = 64;
    c->n_sets = 2;
    c->set = kv_alloc(2, sizeof(*c->set));
    start_set(&c->set[0], "kivi");
    start_set(&c->set[1], "f32");
    add(&c->set[0], "smooth", KV_K, 2, 1, 1, dims);
    add(&c->set[0], "codebook", KV_ALL, KV_ALL, KV_ALL, 4, dims);
    add(&c->set[0], "book", KV_V, KV_ALL, 0, 2, dims);
    add(&c->set[0], "book", KV_V, KV_ALL, 1, 2, dims);
    add(&c->set[0], "book", KV_K, 0, KV_ALL, 3, dims);
    add(&c->set[1], "only", KV_K, 1, KV_ALL, 2, dims);
    return c;
}

static void add_text(struct kv_sketch *s, uint64_t key, size_t first, size_t n)
{
    int32_t *ids = kv_alloc(n, sizeof(*ids));

    for (size_t i = 0; i < n; i++)
        ids[i] = (int32_t)(kv_random(key, first + i) % 500);
    kv_sketch_add(s, ids, n);
    free(ids);
}

static struct kv_calib *load(const char *from)
{
    struct kv_calib *c = NULL;
    struct kv_err e = {""};

    if (kv_calib_load(&c, from, &e))
        fail_msg("%s", e.msg);
    return c;
}

static void tables_are_found_by_scope(void **state)
{
    struct kv_calib *c = some_calib();
    const struct kv_calib_set *s = &c->set[0];
    struct kv_spec spec;
    struct kv_err e = {""};

    (void)state;
    assert_ptr_equal(kv_calib_table(s, "smooth", KV_K, 2, 1), &s->table[0]);
    assert_null(kv_calib_table(s, "smooth", KV_V, 2, 1));
    assert_null(kv_calib_table(s, "smooth", KV_K, 1, 1));
    assert_null(kv_calib_table(s, "smooth", KV_K, 2, 0));
    assert_ptr_equal(kv_calib_table(s, "codebook", KV_V, 2, 1), &s->table[1]);
    assert_ptr_equal(kv_calib_table(s, "book", KV_V, 2, 1), &s->table[3]);
    assert_ptr_equal(kv_calib_table(s, "book", KV_K, 0, 1), &s->table[4]);
    assert_null(kv_calib_table(s, "boo", KV_K, 0, 1));
    assert_int_equal(kv_table_bytes(&s->table[0]), 4 * 2);
    assert_int_equal(kv_table_bytes(&s->table[1]), 2 * 30);
    assert_int_equal(kv_calib_set_bytes(s), 4 * (2 + 6 + 6 + 6) + 2 * 30);
    assert_int_equal(kv_spec_parse(&spec, "f32", &e), 0);
    assert_ptr_equal(kv_calib_find(c, &spec), &c->set[1]);
    assert_int_equal(kv_spec_parse(&spec, "bf16", &e), 0);
    assert_null(kv_calib_find(c, &spec));
    kv_calib_free(c);
}

static void check_same_set(const struct kv_calib_set *a,
                           const struct kv_calib_set *b)
{
    assert_string_equal(a->spec, b->spec);
    assert_string_equal(a->key, b->key);
    assert_true(a->seed == b->seed);
    assert_int_equal(a->n_tables, b->n_tables);
    for (size_t i = 0; i < a->n_tables; i++) {
        const struct kv_table *x = &a->table[i], *y = &b->table[i];
        size_t n = 1;

        assert_string_equal(x->name, y->name);
        assert_int_equal(x->side, y->side);
        assert_int_equal(x->layer, y->layer);
        assert_int_equal(x->head, y->head);
        assert_int_equal(x->n_dims, y->n_dims);
        assert_true(x->error == y->error);
        assert_true(x->type == y->type);
        for (size_t j = 0; j < x->n_dims; j++) {
            assert_int_equal(x->dims[j], y->dims[j]);
            n *= x->dims[j];
        }
        assert_memory_equal(x->data, y->data, n * sizeof(*x->data));
    }
}

static void what_is_saved_is_loaded(void **state)
{
    struct kv_calib *c = some_calib(), *back;
    struct kv_err e = {""};

    (void)state;
    add_text(&c->sketch, 1, 0, 2000);
    kv_sketch_sort(&c->sketch);
    assert_int_equal(kv_calib_save(c, path, &e), 0);
    back = load(path);
    assert_string_equal(back->hash, c->hash);
    assert_int_equal(strlen(back->hash), 16);
    assert_string_equal(back->model, c->model);
    assert_string_equal(back->model_hash, c->model_hash);
    assert_string_equal(back->text, c->text);
    assert_string_equal(back->text_hash, c->text_hash);
    assert_memory_equal(&back->shape, &c->shape, sizeof(c->shape));
    assert_int_equal(back->n_windows, 2);
    assert_int_equal(back->ctx, 64);
    assert_int_equal(back->sketch.n, c->sketch.n);
    assert_memory_equal(back->sketch.hash, c->sketch.hash,
                        c->sketch.n * sizeof(*c->sketch.hash));
    assert_int_equal(back->n_sets, 2);
    check_same_set(&back->set[0], &c->set[0]); /* sorted by the save */
    check_same_set(&back->set[1], &c->set[1]);
    assert_int_equal(kv_calib_save(back, other_path, &e), 0);
    kv_calib_free(back);
    kv_calib_free(c);

    char command[10100];

    snprintf(command, sizeof(command), "cmp '%s' '%s'", path, other_path);
    assert_int_equal(system(command), 0);
}

static void an_empty_sketch_and_no_sets_are_fine(void **state)
{
    struct kv_calib *c = some_calib();
    struct kv_err e = {""};

    (void)state;
    kv_calib_set_clear(&c->set[0]);
    kv_calib_set_clear(&c->set[1]);
    c->n_sets = 0;
    assert_int_equal(kv_calib_save(c, path, &e), 0);
    kv_calib_free(c);
    c = load(path);
    assert_int_equal(c->n_sets, 0);
    assert_int_equal(c->sketch.n, 0);
    kv_calib_free(c);
}

static void two_tables_of_one_name_are_refused(void **state)
{
    const size_t one = 1;
    struct kv_calib *c = some_calib();
    struct kv_err e = {""};

    (void)state;
    unlink(path);
    add(&c->set[0], "book", KV_V, KV_ALL, 1, 1, &one);
    assert_int_equal(kv_calib_save(c, path, &e), -1);
    assert_says(e, "two tables book_V_h01");
    assert_int_equal(access(path, F_OK), -1);
    kv_calib_free(c);
}

static void the_hash_names_the_tables(void **state)
{
    struct kv_calib *c = some_calib();
    struct kv_err e = {""};
    char was[32];

    (void)state;
    assert_int_equal(kv_calib_save(c, path, &e), 0);
    strcpy(was, c->hash);
    strcpy(c->model, "renamed");
    assert_int_equal(kv_calib_save(c, path, &e), 0);
    assert_string_equal(was, c->hash);
    c->set[1].table[0].data[5] = nextafterf(c->set[1].table[0].data[5], 9);
    assert_int_equal(kv_calib_save(c, path, &e), 0);
    assert_string_not_equal(was, c->hash);
    strcpy(was, c->hash);
    c->set[1].seed--;
    assert_int_equal(kv_calib_save(c, path, &e), 0);
    assert_string_not_equal(was, c->hash);
    kv_calib_free(c);
}

static void another_model_is_refused(void **state)
{
    struct kv_calib *c = some_calib();
    struct kv_shape shape = c->shape;
    struct kv_err e = {""};

    (void)state;
    assert_int_equal(
        kv_calib_check_model(c, "c.h5", "0123456789abcdef", &shape, &e), 0);
    assert_int_equal(kv_calib_check_model(c, "c.h5", NULL, &shape, &e), 0);
    assert_int_equal(kv_calib_check_model(c, "c.h5", "00", &shape, &e), -1);
    assert_says(e, "c.h5 was made for another model (toy, hash 0123456789abcd");
    shape.head_dim = 16;
    assert_int_equal(kv_calib_check_model(c, "c.h5", NULL, &shape, &e), -1);
    assert_says(e, "c.h5 was made for another model: it has 8 channels per "
                   "head, expected 16");
    kv_calib_free(c);
}

static void expect_load_fails(const char *says)
{
    struct kv_calib *c;
    struct kv_err e = {""};

    assert_int_equal(kv_calib_load(&c, path, &e), -1);
    assert_says(e, says);
}

#define TABLE "/set_000/t_K_l000"

/* A well-formed file whose tables do not match its hash. */
static void write_with_hash(const char *hash, double value)
{
    const size_t none = 0, one = 1;
    const char *const texts[] = {"model", "model_hash", "text", "text_hash"};
    const char *const ones[] = {"n_layers", "n_heads", "n_kv_heads",
                                "n_windows", "ctx"};
    const float x = (float)value;
    struct kv_err e = {""};
    struct kv_h5 *h;

    assert_int_equal(kv_h5_create(&h, path, &e), 0);
    kv_h5_put_text(h, "/", "kind", "kvtools-calib");
    kv_h5_put_int(h, "/", "format", 1);
    for (size_t i = 0; i < 4; i++)
        kv_h5_put_text(h, "/", texts[i], "x");
    for (size_t i = 0; i < 5; i++)
        kv_h5_put_int(h, "/", ones[i], 1);
    kv_h5_put_int(h, "/", "head_dim", 4);
    kv_h5_put_real(h, "/", "attn_scale", 1);
    kv_h5_put_text(h, "/", "hash", hash);
    kv_h5_dataset(h, "/inv_freq", KV_H5_F32, 1, &none);
    kv_h5_dataset(h, "/sketch", KV_H5_U64, 1, &none);
    kv_h5_group(h, "/set_000");
    kv_h5_put_text(h, "/set_000", "spec", "x");
    kv_h5_put_text(h, "/set_000", "key", "x");
    kv_h5_put_u64(h, "/set_000", "seed", 0);
    kv_h5_dataset(h, TABLE, KV_H5_F32, 1, &one);
    kv_h5_put_text(h, TABLE, "name", value < 0 ? "u" : "t");
    kv_h5_put_text(h, TABLE, "side", "K");
    kv_h5_put_int(h, TABLE, "layer", value > 5 ? 1 : 0);
    kv_h5_put_int(h, TABLE, "head", -1);
    kv_h5_put_real(h, TABLE, "error", 0);
    kv_h5_write(h, TABLE, KV_H5_F32, NULL, NULL, &x, &e);
    if (kv_h5_commit(h, &e))
        fail_msg("%s", e.msg);
}

static void a_wrong_file_is_named(void **state)
{
    struct kv_err e = {""};
    struct kv_h5 *h;

    (void)state;
    assert_int_equal(kv_h5_create(&h, path, &e), 0);
    kv_h5_put_text(h, "/", "kind", "kvtools-dump");
    kv_h5_put_int(h, "/", "format", 1);
    assert_int_equal(kv_h5_commit(h, &e), 0);
    expect_load_fails("is a kvtools-dump file, expected a kvtools-calib");
    write_with_hash("0123456789abcdef", 1);
    expect_load_fails(
        "calib.h5: its tables are not those it was written with (hash");
    write_with_hash("0123456789abcdef", INFINITY);
    expect_load_fails(
        "attribute layer of /set_000/t_K_l000 is 1, expected -1 to 0");
    write_with_hash("0123456789abcdef", NAN);
    expect_load_fails("calib.h5: /set_000/t_K_l000 holds a value that is not");
    write_with_hash("0123456789abcdef", -1);
    expect_load_fails("/set_000/t_K_l000 says that it is u_K_l000");
}

static void what_hides_or_cannot_be_is_refused(void **state)
{
    struct kv_calib *c = some_calib();
    struct kv_err e = {""};

    (void)state;
    strcpy(c->set[1].key, c->set[0].key);
    assert_int_equal(kv_calib_save(c, path, &e), 0);
    expect_load_fails("calib.h5: /set_000 and /set_001 are both for");
    kv_calib_free(c);
    c = some_calib();
    kv_sketch_clear(&c->sketch);
    c->sketch.hash = kv_alloc(1, sizeof(*c->sketch.hash));
    c->sketch.hash[c->sketch.n++] = UINT64_MAX;
    assert_int_equal(kv_calib_save(c, path, &e), 0);
    expect_load_fails("/sketch holds ffffffffffffffff, which is not sampled");
    kv_calib_free(c);
}

static void overlap_is_a_share(void **state)
{
    enum { N = 40000 };
    struct kv_sketch train = {0}, same = {0}, other = {0}, half = {0};
    struct kv_sketch short_run = {0}, empty = {0};

    (void)state;
    add_text(&train, 1, 0, N);
    add_text(&same, 1, 7777, N / 4); /* inside train, wherever it starts */
    add_text(&other, 2, 0, N);
    add_text(&half, 1, 0, N / 2);
    add_text(&half, 3, 0, N / 2);
    add_text(&short_run, 1, 0, 31);
    kv_sketch_sort(&train);
    kv_sketch_sort(&same);
    kv_sketch_sort(&other);
    kv_sketch_sort(&half);
    kv_sketch_sort(&short_run);
    kv_sketch_sort(&empty);
    /* one shingle in 16, give or take 5 standard deviations */
    assert_true(fabs((double)train.n - N / 16.0) < 5 * sqrt(N / 16.0));
    assert_true(kv_sketch_overlap(&train, &same) == 1);
    assert_true(kv_sketch_overlap(&train, &train) == 1);
    assert_true(kv_sketch_overlap(&train, &other) == 0);
    assert_true(fabs(kv_sketch_overlap(&train, &half) - 0.5) < 0.05);
    assert_true(isnan(kv_sketch_overlap(&train, &empty))); /* too short */
    assert_true(kv_sketch_overlap(&empty, &train) == 0);
    assert_int_equal(short_run.n, 0);
    for (size_t i = 1; i < train.n; i++)
        assert_true(train.hash[i - 1] < train.hash[i]);
    kv_sketch_clear(&train);
    kv_sketch_clear(&same);
    kv_sketch_clear(&other);
    kv_sketch_clear(&half);
}

static void a_repeated_text_counts_once(void **state)
{
    struct kv_sketch once = {0}, twice = {0};

    (void)state;
    add_text(&once, 5, 0, 1000);
    add_text(&twice, 5, 0, 1000);
    add_text(&twice, 5, 0, 1000);
    kv_sketch_sort(&once);
    kv_sketch_sort(&twice);
    assert_int_equal(once.n, twice.n);
    assert_memory_equal(once.hash, twice.hash, once.n * sizeof(*once.hash));
    kv_sketch_clear(&once);
    kv_sketch_clear(&twice);
}

/* check_dump() fails exactly if calibrate() would.  train: also trains complete
 * dumps, which takes a while. */
static void check_trainable(const char *text, struct kv_dump *dump, bool train)
{
    struct kv_calib_set set = {.seed = 1};
    struct kv_spec s;
    struct kv_err e = {""}, before = {""};
    int rc;

    if (kv_spec_parse(&s, text, &e) ||
        kv_spec_fit(&s, &kv_dump_info(dump)->shape, &e))
        return;                         /* choices that do not go together */
    if (!strcmp(s.scheme->name, "klt")) /* a trellis takes long */
        kv_spec_set(&s, KV_K, "code", 0), kv_spec_set(&s, KV_V, "code", 0);
    rc = s.scheme->training->check_dump(&s, dump, &before);
    if (!rc && !train)
        return;
    if (s.scheme->training->calibrate(&s, dump, 1, &set, &e) != rc)
        fail_msg("%s: '%s' beforehand, then '%s'", text, before.msg, e.msg);
    if (rc && !strstr(e.msg, strstr(before.msg, ": ")))
        fail_msg("%s: '%s' beforehand, then '%s'", text, before.msg, e.msg);
    kv_calib_set_clear(&set);
}

/* The scheme with its defaults and with each choice of each word. */
static void check_every_choice(const struct kv_scheme *k, struct kv_dump *dump,
                               bool train)
{
    const struct kv_param *p;

    check_trainable(k->name, dump, train);
    for (size_t i = 0; (p = kv_spec_param(k, i)); i++)
        for (const char *c = p->choices; c && *c; c += *c == '|') {
            const int n = (int)strcspn(c, "|");
            char text[256];

            snprintf(text, sizeof(text), "%s,%s=%.*s", k->name, p->name, n, c);
            check_trainable(text, dump, false);
            c += n;
        }
}

/* Removes each tensor in turn, and none; windows have enough points for all
 * codebooks, or for few. */
static void what_a_dump_lacks_is_known_beforehand(void **state)
{
    const struct kv_shape shape = synthetic_shape(16);
    struct kv_err e = {""};

    (void)state;
    for (size_t ctx = 8; ctx <= 72; ctx += 64) {
        struct kv_dump *dump;
        char *from;

        synthetic_dump(&shape, 1, ctx, test_folder(), &from);
        if (kv_dump_open(&dump, from, &e))
            fail_msg("%s", e.msg);

        bool *have =
            ((struct kv_dump_info *)(uintptr_t)kv_dump_info(dump))->have;

        for (int lost = 0; lost <= KV_TENSORS; lost++) {
            if (lost < KV_TENSORS)
                have[lost] = false;
            for (size_t i = 0; kv_schemes[i]; i++) {
                if (kv_schemes[i]->training)
                    check_every_choice(kv_schemes[i], dump, lost == KV_TENSORS);
            }
            if (lost < KV_TENSORS)
                have[lost] = true;
        }
        kv_dump_close(dump);
        free(from);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tables_are_found_by_scope),
        cmocka_unit_test(what_is_saved_is_loaded),
        cmocka_unit_test(an_empty_sketch_and_no_sets_are_fine),
        cmocka_unit_test(two_tables_of_one_name_are_refused),
        cmocka_unit_test(the_hash_names_the_tables),
        cmocka_unit_test(another_model_is_refused),
        cmocka_unit_test(a_wrong_file_is_named),
        cmocka_unit_test(what_hides_or_cannot_be_is_refused),
        cmocka_unit_test(overlap_is_a_share),
        cmocka_unit_test(a_repeated_text_counts_once),
        cmocka_unit_test(what_a_dump_lacks_is_known_beforehand),
    };

    return cmocka_run_group_tests(tests, make_paths, NULL);
}
