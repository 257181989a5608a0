/* Layer files of mixed specs. */
#include "lib/mixed.h"
#include "tests/fuzz/fuzz.h"
#include "tests/synthetic.h"

#include <stdio.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    const struct kv_shape shape = synthetic_shape(32);
    char text[KV_SPEC_CHARS + 64];
    struct kv_spec s;
    struct kv_err e = {""};
    int rc;

    if (n > 1 << 14) /* mixed specs are kept */
        return 0;
    snprintf(text, sizeof(text), "mixed,file=%s",
             fuzz_file("layers.txt", data, n));
    rc = kv_spec_parse(&s, text, &e) || kv_spec_fit(&s, &shape, &e);
    fuzz_expect_sentence(rc, &e);
    if (rc)
        return 0;
    for (size_t layer = 0; layer < shape.n_layers; layer++)
        for (int side = 0; side < KV_SIDES; side++)
            fuzz_expect(kv_spec_at(&s, layer, (enum kv_side)side) != NULL,
                        "a spec for every place");
    return 0;
}

void fuzz_make_seeds(void)
{
    static const char *const files[] = {
        "# layers sides spec\n0-1 K kivi:b4g32\n0-1 V kivi:b2g32\n",
        "0 KV q4_0\n1 K pq:d4b4,rope=pre # why\n1 V vecinfer:d4b4r7\n",
        "\xef\xbb\xbf# a mark\n0-1 KV hack:b2p32\r\n"};

    for (size_t i = 0; i < sizeof(files) / sizeof(*files); i++)
        fuzz_seed((const char[]){(char)('a' + i), 0}, files[i],
                  strlen(files[i]));
}
