/* A safetensors file: if it opens, every tensor can be read whole. */
#include "lib/base/alloc.h"
#include "lib/model/safetensors.h"
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct kv_safetensors f;
    struct kv_err e = {""};
    const int rc =
        kv_safetensors_open(&f, fuzz_file("m.safetensors", data, n), &e);

    fuzz_expect_sentence(rc, &e);
    if (rc)
        return 0;
    for (size_t i = 0; i < f.n_weights; i++) {
        const struct kv_weight *w = &f.weight[i];
        float *x;

        if (w->type == KV_STORED_OTHER)
            continue;
        fuzz_expect(w->n <= n, "no more values than bytes");
        x = kv_alloc(w->n, sizeof(*x));
        kv_weight_dequantize(w, 0, w->n, x);
        free(x);
    }
    kv_safetensors_clear(&f);
    return 0;
}

static void seed(const char *name, const char *header, size_t data_bytes)
{
    const uint64_t n = strlen(header);
    uint8_t bytes[512] = {0};

    memcpy(bytes, &n, sizeof(n));
    memcpy(bytes + 8, header, n);
    for (size_t i = 0; i < data_bytes; i++)
        bytes[8 + n + i] = (uint8_t)(37 * i);
    fuzz_seed(name, bytes, 8 + n + data_bytes);
}

void fuzz_make_seeds(void)
{
    seed("two",
         "{\"__metadata__\":{\"format\":\"pt\"},\"a\":{\"dtype\":\"F32\","
         "\"shape\":[2,3],\"data_offsets\":[0,24]},\"b\":{\"dtype\":\"BF16\","
         "\"shape\":[4],\"data_offsets\":[24,32]}}",
         32);
    seed("half",
         "{\"a\":{\"dtype\":\"F16\",\"shape\":[1,8],\"data_offsets\":[0,16]}}",
         16);
    seed("empty",
         "{\"a\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":"
         "[0,0]},\"c\":{\"dtype\":\"I8\",\"shape\":[],"
         "\"data_offsets\":[0,1]}}",
         1);
}
