/* llama.cpp's file of base log-probabilities: a file that opens returns rows
 * that are distributions, or fails with a sentence. */
#include "eval/klbase.h"
#include "lib/base/file.h"
#include "tests/fuzz/fuzz.h"

#include <math.h>
#include <stdlib.h>

enum { CTX = 6, VOCAB = 5, CHUNKS = 2, ROWS = CTX - 1 - CTX / 2 };

static const int32_t tokens[CHUNKS * CTX] = {0, 1, 2, 3, 4, 0,
                                             1, 2, 3, 4, 0, 1};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct kv_klbase *b;
    struct kv_err e = {""};
    int rc = kv_klbase_open(&b, fuzz_file("base.kld", data, n), CTX, VOCAB,
                            CHUNKS, tokens, &e);

    fuzz_expect_sentence(rc, &e);
    if (rc)
        return 0;
    for (size_t i = 0; i < CHUNKS * ROWS && !rc; i++) {
        float log_p[VOCAB], p[VOCAB];
        double sum = 0;

        rc = kv_klbase_get(b, i / ROWS, i % ROWS, log_p, p, &e);
        fuzz_expect_sentence(rc, &e);
        for (size_t j = 0; j < VOCAB && !rc; j++)
            sum += exp((double)log_p[j]);
        fuzz_expect(rc || fabs(sum - 1) < 0.01, "probabilities sum to 1");
    }
    kv_klbase_close(b);
    return 0;
}

void fuzz_make_seeds(void)
{
    char *path = kv_path_join(fuzz_folder(), "seed.kld");
    struct kv_klbase *b;
    struct kv_err e = {""};

    fuzz_expect(!kv_klbase_create(&b, path, CTX, VOCAB, CHUNKS, tokens, &e),
                e.msg);
    for (size_t i = 0; i < CHUNKS * ROWS; i++) {
        const float logits[VOCAB] = {0, 1, (float)i, -30, 0.5f};

        fuzz_expect(!kv_klbase_put(b, logits, &e), e.msg);
    }
    fuzz_expect(!kv_klbase_commit(b, &e), e.msg);
    fuzz_seed_file("four-rows", path);
    free(path);
}
