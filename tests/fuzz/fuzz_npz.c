/* A .npz: if the file opens, every array can be read or gives a sentence. */
#include "lib/arrays/npz.h"
#include "lib/base/alloc.h"
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

enum { MOST = 1 << 20 }; /* bytes of an array that are read */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct kv_npz *z;
    struct kv_array *list;
    struct kv_err e = {""};
    size_t n_arrays;
    const int rc =
        kv_npz_open(&z, fuzz_file("a.npz", data, n), &list, &n_arrays, &e);

    fuzz_expect_sentence(rc, &e);
    if (rc)
        return 0;
    for (size_t i = n_arrays; i-- > 0;) {
        const size_t value = list[i].type[2] == '2' ? 2 : 4;
        const size_t bytes =
            list[i].n * value < MOST ? list[i].n * value : MOST;
        uint8_t *x = kv_alloc(bytes, 1);

        if (list[i].floats)
            fuzz_expect_sentence(kv_npz_read(z, i, 0, bytes, x, &e), &e);
        if (list[i].floats && bytes > 8) /* the end, then back */
            fuzz_expect_sentence(kv_npz_read(z, i, 4, bytes - 4, x, &e), &e);
        free(x);
    }
    free(list);
    kv_npz_close(z);
    return 0;
}

/* Two arrays of few values, as kv_npz_write() stores them. */
void fuzz_make_seeds(void)
{
    const struct kv_array list[] = {
        {.name = "a", .n_dims = 2, .dims = {2, 3}, .n = 6},
        {.name = "layers.0.keys", .n_dims = 1, .dims = {4}, .n = 4}};
    const float x[10] = {1, -2, 3};
    struct kv_err e = {""};
    FILE *f = tmpfile();
    char path[5000];

    snprintf(path, sizeof(path), "%s/seed.npz", fuzz_folder());
    fuzz_expect(f && fwrite(x, sizeof(x), 1, f) == 1, "seeds");
    fuzz_expect(!kv_npz_write(path, path, list, 2, f, &e), e.msg);
    fuzz_seed_file("two", path);
    fclose(f);
}
