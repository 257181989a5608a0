/* Spec strings: parsing, canonical text, sweeps, and refusals. */
#include "lib/policy.h"
#include "lib/scheme.h"
#include "tests/synthetic.h"
#include "tests/test.h"

#include <math.h>

static void canonical(const char *text, const char *want)
{
    struct kv_spec s, again;
    struct kv_err e = {""};

    if (kv_spec_parse(&s, text, &e))
        fail_msg("%s", e.msg);
    assert_string_equal(s.text, want);
    if (kv_spec_parse(&again, s.text, &e))
        fail_msg("%s", e.msg);
    assert_string_equal(again.text, want);
}

static void test_canonical(void **state)
{
    (void)state;
    canonical("f32", "f32:r0s0");
    canonical("kivi", "kivi:b2g32r128s0,axis=paper");
    canonical("kivi:b4", "kivi:b4g32r128s0,axis=paper");
    canonical("kivi:r0g64b3s4", "kivi:b3g64r0s4,axis=paper");
    canonical("kivi:K-b4/V-b2", "kivi:K-b4g32r128s0/V-b2g32r128s0,axis=paper");
    canonical("kivi:K-b4/V-b4", "kivi:b4g32r128s0,axis=paper");
    canonical("q4_0:rot", "q4_0:r0s0,rot=yes");
    /* numbers are read back unchanged */
    canonical("gear:o0.00001", "gear:b2g64n256k4i3o0.00001r0s0,heads=all,"
                               "fill=mean");
    canonical("qjl,seed=1073741824", "qjl:m0o8t32b2g32r128s0,rows=orthogonal,"
                                     "seed=1073741824");
    canonical("qjl,seed=1000000001", "qjl:m0o8t32b2g32r128s0,rows=orthogonal,"
                                     "seed=1000000001");
    canonical("q4_0:rot=no,s=3", "q4_0:r0s3,rot=no");
    canonical("q4_0:r7,K-rot=yes", "q4_0:r7s0,K-rot=yes,V-rot=no");
    canonical("absmax:b4g32,axis=channel",
              "absmax:b4g32r0s0,axis=channel,heads=one");
    canonical("absmax,channel,heads=all",
              "absmax:b8g0r0s0,axis=channel,heads=all");
    canonical("absmax,K-axis=channel",
              "absmax:b8g0r0s0,K-axis=channel,V-axis=token,heads=one");
}

/* A scheme for K and one for V; if both are one scheme, the text is that
 * scheme's. */
static void test_sides(void **state)
{
    (void)state;
    canonical("K-q8_0/V-q4_0", "K-q8_0:r0s0,rot=no/V-q4_0:r0s0,rot=no");
    canonical("K-kivi:b4g32r64/V-q4_0:rot",
              "K-kivi:b4g32r64s0,axis=paper/V-q4_0:r0s0,rot=yes");
    canonical("K-absmax:b4,channel/V-f16",
              "K-absmax:b4g0r0s0,axis=channel,heads=one/V-f16:r0s0");
    canonical("K-q8_0/V-q8_0", "q8_0:r0s0,rot=no");
    canonical("K-kivi:b4/V-kivi:b2",
              "kivi:K-b4g32r128s0/V-b2g32r128s0,axis=paper");
    canonical("h2o:b0.5+K-q8_0/V-f16",
              "h2o:b0.5+K-q8_0:r0s0,rot=no/V-f16:r0s0");
}

static void refused(const char *text, const char *words)
{
    struct kv_spec s;
    struct kv_err e = {""};

    if (!kv_spec_parse(&s, text, &e))
        fail_msg("'%s' was taken as '%s'", text, s.text);
    assert_says(e, words);
}

static void test_refused(void **state)
{
    (void)state;
    refused("", "a spec is missing: expected a scheme");
    refused(":b2", "a spec is missing");
    refused("kivvi:b2", "did you mean 'kivi'?");
    refused("nonsense", "--list");
    refused("kivi:q2", "kivi has no 'q'; it has b (1 to 8)");
    refused("kivi:b9", "b=9 is out of range: expected 1 to 8");
    refused("kivi:b", "'b' wants a number");
    refused("kivi:bnan", "'b' wants a number, not 'nan'");
    refused("kivi:b2.5", "'b' wants a whole number");
    refused("kivi:b2b3", "'b' is given twice");
    refused("kivi:K-b2", "expected K-letters/V-letters");
    refused("kivi:V-b2/K-b2", "expected K-letters/V-letters");
    refused("absmax,axis=rows", "axis=rows: expected one of token|channel");
    refused("absmax,axes=token", "did you mean 'axis'?");
    refused("kivi:b2,vk", "kivi has no 'vk'; it has b (");
    refused("absmax,sideways", "absmax has no 'sideways'");
    refused("absmax:b4,", "absmax has no ''");
    refused("klt:metric=fisher",
            "words come after a comma, not after ':': klt,metric=fisher");
    refused("q4_0:tor", "q4_0 has no 't'");
    refused("q4_0:rot,rot", "'rot' is given twice");
    refused("f16:rot", "'r' wants a number");
    refused("absmax:b4channel", "after a comma, not after ':': absmax,channel");
    refused("K-q8_0", "expected a spec for each side, as in K-q8_0/V-kivi");
    refused("V-q8_0/K-q4_0", "expected a spec for each side");
    refused("K-q8_0/V-", "a spec is missing");
    refused("K-/V-q8_0", "a spec is missing");
    refused("K-b4/V-b2", "unknown scheme 'b4'");
    refused("K-kivi:b9/V-q8_0", "spec 'K-kivi:b9/V-q8_0': spec 'kivi:b9': b=9");
    refused("K-kivi:K-b4/V-b2/V-q8_0", "'kivi:K-b4' of K has sides of its own");
    refused("K-q8_0/V-q4_0,V-rot", "'q4_0,V-rot' of V has sides of its own");
    refused("K-q8_0/V-K-f16/V-q4_0", "'K-f16/V-q4_0' of V has sides");
    refused("K-h2o+q8_0/V-f16", "a policy is one for both sides");
    refused("K-q8_0/V-mixed,file=x", "mixed names both sides itself");
    refused("K-hack/V-q8_0", "hack takes the keys and values of a layer");
    refused("K-f16/V-zipcache", "zipcache takes the keys and values");
    refused("K-klt:b2,pred=1/V-q8_0", "is predicted from the layers below");
    refused("K-klt:b2,vk/V-q8_0", "or its own keys, K and V: both want it");
    refused("kivi:b2g32,vk", "kivi has no 'vk'");
    refused("klt:b2,pred=3", "pred=3: expected one of 0|1|2|vk");
    refused("pq:d4iters=3", "after a comma, not after ':': pq,iters=3");
}

/* A sentence keeps its reason however long the spec is. */
static void test_long(void **state)
{
    static const char *const starts[] = {"kivi:b", "kivi,",        "kivi:K-",
                                         "",       "absmax,axis=", "kivi:b{"};
    static const char *const reasons[] = {
        "'b' wants a number, not '1111",     "kivi has no '1111",
        "expected K-letters/V-letters, not", "(--list shows them all)",
        "expected one of token|channel",     "a brace has no partner"};
    char text[5000];

    (void)state;
    for (size_t i = 0; i < sizeof(starts) / sizeof(*starts); i++) {
        struct kv_spec *list;
        struct kv_err e = {""};
        const char *one = text;
        const size_t n = strlen(starts[i]);
        size_t n_specs;

        memset(text, '1', sizeof(text) - 1);
        text[sizeof(text) - 1] = 0;
        memcpy(text, starts[i], n);
        assert_int_equal(kv_spec_expand(&one, 1, &list, &n_specs, &e), -1);
        assert_says(e, reasons[i]);
        assert_says(e, "111...'");
        assert_true(strlen(e.msg) < 700);
    }
}

static void test_fit(void **state)
{
    const struct kv_shape shape = synthetic_shape(64);
    struct kv_spec s;
    struct kv_err e = {""};

    (void)state;
    assert_int_equal(kv_spec_parse(&s, "kivi:b2g128r128", &e), 0);
    assert_int_equal(kv_spec_fit(&s, &shape, &e), 0);
    assert_string_equal(s.text, "kivi:K-b2g128r128s0/V-b2g64r128s0,axis=paper");
    assert_int_equal(kv_spec_parse(&s, "kivi:b2g48", &e), 0);
    assert_int_equal(kv_spec_fit(&s, &shape, &e), -1);
    assert_says(e, "g=48 must divide head_dim 64");
    assert_int_equal(kv_spec_parse(&s, "kivi:g32r100", &e), 0);
    assert_int_equal(kv_spec_fit(&s, &shape, &e), -1);
    assert_says(e, "g=32 must divide r=100");
    assert_int_equal(kv_spec_parse(&s, "absmax:b4", &e), 0);
    assert_int_equal(kv_spec_fit(&s, &shape, &e), 0);
    assert_string_equal(s.text, "absmax:b4g64r0s0,axis=token,heads=one");
    assert_int_equal(kv_spec_parse(&s, "absmax,channel", &e), 0);
    assert_int_equal(kv_spec_fit(&s, &shape, &e), -1);
    assert_says(e, "axis=channel wants a group");
}

/* Engines' names are the same specs; what is not here is refused. */
static void test_engines(void **state)
{
    static const char *const same[][2] = {
        {"vllm:fp8", "fp8,none"},
        {"vllm:turboquant_3bit_nc",
         "turboquant:b3,rot=plain,nc,V-levels=uniform,skip=2"},
        {"sglang:fp4_e2m1", "fp4_e2m1"},
        {"llama.cpp:q4_0,rot", "q4_0:rot,ggml"},
        {"ik_llama.cpp:q8_KV", "q8_kv"},
        {"h2o:b0.2+vllm:nvfp4", "h2o:b0.2+nvfp4"},
        {"K-llama.cpp:q8_0/V-vLLM:int4_per_token_head",
         "K-q8_0:ggml/V-int4_per_token_head"}};
    static const char *const refused[][2] = {
        {"vllm:fp7", "'fp7' is no cache type of vllm that is here: fp8, "},
        {"vllm", "write vllm:fp8"},
        {"int4", "write int4_per_token_head (vLLM), kivi:b4"},
        {"turbo3", "write turboquant:b3,rot=plain"},
        {"KIVI:b2", "did you mean 'kivi'"},
        {"Kvi:b2", "did you mean 'kivi'"}};

    (void)state;
    for (size_t i = 0; i < sizeof(same) / sizeof(*same); i++) {
        struct kv_spec a, b;
        struct kv_err e = {""};

        if (kv_spec_parse(&a, same[i][0], &e) ||
            kv_spec_parse(&b, same[i][1], &e))
            fail_msg("%s", e.msg);
        assert_string_equal(a.text, b.text);
    }
    for (size_t i = 0; i < sizeof(refused) / sizeof(*refused); i++) {
        struct kv_spec s;
        struct kv_err e;

        assert_int_equal(kv_spec_parse(&s, refused[i][0], &e), -1);
        assert_says(e, refused[i][1]);
    }
}

static void test_sweep(void **state)
{
    const char *const texts[] = {"kivi:b{2,4}g{32,64}", "f16",
                                 "absmax:b4g32,axis={token,channel}"};
    const char *const want[] = {
        "kivi:b2g32r128s0,axis=paper",
        "kivi:b2g64r128s0,axis=paper",
        "kivi:b4g32r128s0,axis=paper",
        "kivi:b4g64r128s0,axis=paper",
        "f16:r0s0",
        "absmax:b4g32r0s0,axis=token,heads=one",
        "absmax:b4g32r0s0,axis=channel,heads=one",
    };
    const char *const bad[] = {"kivi:b{2,3", "kivi:b2}", "kivi:b{2,,3}",
                               "kivi:b{}"};
    struct kv_spec *list;
    struct kv_err e = {""};
    size_t n;

    (void)state;
    if (kv_spec_expand(texts, 3, &list, &n, &e))
        fail_msg("%s", e.msg);
    assert_int_equal(n, sizeof(want) / sizeof(*want));
    for (size_t i = 0; i < n; i++)
        assert_string_equal(list[i].text, want[i]);
    free(list);
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        assert_int_equal(kv_spec_expand(&bad[i], 1, &list, &n, &e), -1);
        assert_says(e, i < 2 ? "brace" : "empty choice");
    }
    assert_true(kv_spec_looks_like("kivi:b3"));
    assert_true(kv_spec_looks_like("kivi:b9"));
    assert_true(kv_spec_looks_like("absmax,axis=token"));
    assert_true(kv_spec_looks_like("f16"));
    assert_true(kv_spec_looks_like("K-q8_0:rot/V-q4_0"));
    assert_false(kv_spec_looks_like("K-dumps/V-1.h5"));
    assert_false(kv_spec_looks_like("f16.h5"));
    assert_false(kv_spec_looks_like("dump.h5"));
    assert_false(kv_spec_looks_like(""));
}

/* Specs are counted before any is made, so these cost no time. */
static void test_count(void **state)
{
    static const struct {
        size_t groups; /* this many specs, after kivi:b2 */
        const char *group, *says;
    } many[] = {
        {4, "{1,2,3,4,5,6,7,8,9,0}", NULL},
        {5, "{1,2,3,4,5,6,7,8,9,0}", "expand to 100000 rows: at most 10000"},
        {60, "{1,2}", "expand to 1152921504606846976 rows"},
        {64, "{1,2}", "expand to more than 18446744073709551615 rows"},
        {20000, "{1,2}", "expand to more than 18446744073709551615 rows"},
        {20000, "{1}", NULL},
        {1, "{{1,2},3}", "a brace stands in another's"},
        {1, "{1,{2,3}}", "a brace stands in another's"},
        {30000, "{", "a brace stands in another's"},
        {1, "{1,2}}", "a brace has no partner"},
        {1, "{1,2", "a brace has no partner"},
    };
    static char text[200000];
    const char *const texts[] = {text, text};
    struct kv_spec *list;
    size_t n;

    (void)state;
    for (size_t i = 0; i < sizeof(many) / sizeof(*many); i++) {
        struct kv_err e = {""};
        char *at = stpcpy(text, "kivi:b2");

        for (size_t j = 0; j < many[i].groups; j++)
            at = stpcpy(at, many[i].group);
        assert_int_equal(kv_spec_count(texts, 1, &n, &e),
                         many[i].says ? -1 : 0);
        assert_int_equal(kv_spec_expand(texts, 1, &list, &n, &e), -1);
        assert_says(e, many[i].says ? many[i].says : "spec 'kivi:b2");
        if (i == 0) { /* all texts together */
            assert_int_equal(n, 10000);
            assert_int_equal(kv_spec_count(texts, 2, &n, &e), -1);
            assert_says(e, "expand to 20000 rows");
        }
    }
}

/* Every scheme: defaults lie in their ranges, names are unique, the canonical
 * text reads back. */
static void test_every_scheme(void **state)
{
    (void)state;
    for (size_t i = 0; kv_schemes[i]; i++) {
        const struct kv_scheme *k = kv_schemes[i];
        struct kv_spec s;
        struct kv_err e = {""};
        char key[KV_SPEC_CHARS];

        assert_ptr_equal(kv_scheme_find(k->name), k);
        if (kv_spec_parse(&s, k->name, &e))
            fail_msg("%s", e.msg);
        canonical(k->name, s.text);
        kv_spec_calib_key(&s, key);
        for (const struct kv_param *p = k->params; p && p->name; p++) {
            assert_non_null(p->help);
            assert_true(strcmp(p->name, "s") && strcmp(p->name, "r"));
            if (!p->choices)
                assert_true(p->fallback >= p->min && p->fallback <= p->max);
        }
    }
}

static size_t longest_choice(const char *choices)
{
    size_t max = 0;

    for (const char *c = choices; *c; c += strcspn(c, "|"), c += *c == '|')
        max = strcspn(c, "|") > max ? strcspn(c, "|") : max;
    return max;
}

/* Max length of a parameter's value on one side. */
static size_t longest_value(const struct kv_param *p)
{
    char text[32];

    if (p->choices)
        return longest_choice(p->choices);
    if (p->min != floor(p->min) || p->max != floor(p->max))
        return strlen("0.123456789");
    return (size_t)snprintf(text, sizeof(text), "%.9g", p->max);
}

/* Max length of a policy's text. */
static size_t longest_policy(void)
{
    size_t max = 0;

    for (size_t i = 0; kv_policies[i]; i++) {
        size_t n = strlen(kv_policies[i]->name) + strlen(":+");

        for (const struct kv_param *p = kv_policies[i]->params; p->name; p++)
            n += 1 + longest_value(p);
        max = n > max ? n : max;
    }
    return max;
}

/* The canonical text has room for every spec, both sides written out, of one
 * scheme or of two. */
static void test_longest_text(void **state)
{
    const size_t policy = longest_policy();
    size_t max = 0; /* the longest text of one side */

    (void)state;
    for (size_t i = 0; kv_schemes[i]; i++) {
        const struct kv_param *p;
        size_t name = strlen(kv_schemes[i]->name) + 1, letters = 0, words = 0;

        for (size_t j = 0; (p = kv_spec_param(kv_schemes[i], j)); j++) {
            const bool word = p->choices || p->name[1];
            const size_t n = strlen(p->name) + longest_value(p);

            letters += word ? 0 : n;
            words += word ? n + strlen(",=") : 0;
            if (word)
                name += 2 * strlen("K-");
        }
        if (policy + name + 6 + 2 * (letters + words) >= KV_SPEC_CHARS)
            fail_msg("%s: %zu characters", kv_schemes[i]->name,
                     name + 2 * (letters + words));
        max = name + letters + words > max ? name + letters + words : max;
    }
    assert_true(policy + strlen("K-/V-") + 2 * max < KV_SPEC_CHARS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_canonical),
        cmocka_unit_test(test_sides),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_long),
        cmocka_unit_test(test_fit),
        cmocka_unit_test(test_engines),
        cmocka_unit_test(test_sweep),
        cmocka_unit_test(test_every_scheme),
        cmocka_unit_test(test_longest_text),
        cmocka_unit_test(test_count),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
