/* Spec strings, one a line: an expanded spec, fitted to a model, prints a text
 * that parses to the same spec. */
#include "lib/base/alloc.h"
#include "lib/mixed.h"
#include "lib/scheme.h"
#include "lib/spec.h"
#include "tests/fuzz/fuzz.h"
#include "tests/synthetic.h"

#include <stdlib.h>
#include <string.h>

static void check(struct kv_spec *s)
{
    const struct kv_shape shape = synthetic_shape(96);
    struct kv_spec again;
    struct kv_err e = {""};
    const int rc = kv_spec_fit(s, &shape, &e);

    fuzz_expect_sentence(rc, &e);
    if (rc)
        return;
    fuzz_expect(!kv_spec_parse(&again, s->text, &e), e.msg);
    fuzz_expect(!kv_spec_fit(&again, &shape, &e), e.msg);
    fuzz_expect(!strcmp(again.text, s->text), "a canonical text is its own");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    char *text = kv_strndup((const char *)data, n);
    struct kv_spec *list;
    struct kv_err e = {""};
    size_t n_specs;

    for (char *at = text, *line; (line = strsep(&at, "\n"));) {
        const char *const one = line;
        int rc;

        if (strstr(line, "file=")) /* fuzz_layers is for those */
            continue;
        rc = kv_spec_expand(&one, 1, &list, &n_specs, &e);
        fuzz_expect_sentence(rc, &e);
        if (rc)
            continue;
        for (size_t i = 0; i < n_specs && i < 64; i++)
            check(&list[i]);
        free(list);
    }
    free(text);
    return 0;
}

/* Every scheme with every parameter written out. */
void fuzz_make_seeds(void)
{
    static const char sweeps[] = "kivi:b{2,3,4}g{32,64}\n"
                                 "vecinfer:K-d8b12/V-d8b8,t={S,H}\n"
                                 "hack:b2p64,nearest,no-se\n"
                                 "h2o+K-q8_0/V-kivi:b{2,4}g32,axis=token\n"
                                 "K-kivi:b4/V-kivi:b2";
    struct kv_spec s;
    struct kv_err e = {""};

    for (size_t i = 0; kv_schemes[i]; i++) {
        fuzz_expect(!kv_spec_parse(&s, kv_schemes[i]->name, &e), e.msg);
        fuzz_seed(kv_schemes[i]->name, s.text, strlen(s.text));
    }
    fuzz_seed("sweeps", sweeps, sizeof(sweeps) - 1);
}
