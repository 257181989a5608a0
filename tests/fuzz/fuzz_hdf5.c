/* dump.h5 and calib.h5: if the file opens, every tensor and table can be read.
 *
 * HDF5's own checksums would stop nearly every change of a byte: the mutator
 * recomputes the checksums of the superblock and of object headers, so that the
 * fuzzer reaches their content (attributes, dimensions, types, layouts,
 * filters, links). */
#include "lib/base/alloc.h"
#include "lib/base/file.h"
#include "lib/calib.h"
#include "lib/dump.h"
#include "lib/shape.h"
#include "tests/fuzz/fuzz.h"
#include "tests/synthetic.h"

#include <stdlib.h>
#include <string.h>

size_t LLVMFuzzerMutate(uint8_t *data, size_t n, size_t max);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t n, size_t max,
                               unsigned seed);
/* libhdf5 exports this function */
uint32_t H5_checksum_metadata(const void *data, size_t n, uint32_t init);

static void sign(uint8_t *at, size_t n)
{
    const uint32_t sum = H5_checksum_metadata(at, n, 0);

    memcpy(at + n, &sum, sizeof(sum));
}

/* An object header of version 2: flags give the fields before its size. */
static void sign_header(uint8_t *at, size_t left)
{
    size_t prefix = 6, chunk = 0;

    if (left < 32)
        return;
    prefix += at[5] & 0x20 ? 16 : 0; /* times */
    prefix += at[5] & 0x10 ? 4 : 0;  /* phase change values */
    memcpy(&chunk, at + prefix, (size_t)1 << (at[5] & 3));
    prefix += (size_t)1 << (at[5] & 3);
    if (chunk <= left && prefix + chunk + 4 <= left)
        sign(at, prefix + chunk);
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t n, size_t max,
                               unsigned seed)
{
    enum { SUPERBLOCK = 44 };

    (void)seed;
    n = LLVMFuzzerMutate(data, n, max);
    if (n >= SUPERBLOCK + 4 && data[8] >= 2)
        sign(data, SUPERBLOCK);
    for (size_t i = 0; i + 4 <= n; i++)
        if (!memcmp(data + i, "OHDR", 4))
            sign_header(data + i, n - i);
    return n;
}

static void read_dump(const char *path)
{
    struct kv_dump *d;
    struct kv_err e = {""};
    const struct kv_dump_info *info;
    int rc = kv_dump_open(&d, path, &e);
    size_t n;

    fuzz_expect_sentence(rc, &e);
    if (rc)
        return;
    info = kv_dump_info(d);
    n = info->n_windows * info->ctx;
    n = n < 64 ? n : 64;

    int32_t *tokens = kv_alloc(n, sizeof(*tokens));
    float *x =
        kv_alloc(n * info->shape.n_heads, info->shape.head_dim * sizeof(*x));

    rc = kv_dump_tokens(d, 0, n, tokens, &e);
    fuzz_expect_sentence(rc, &e);
    for (size_t l = info->first_layer; l <= info->last_layer; l++)
        for (enum kv_tensor t = 0; t < KV_TENSORS; t++) {
            rc = kv_dump_read(d, l, t, 0, n, x, &e);
            fuzz_expect_sentence(rc, &e);
        }
    free(x);
    free(tokens);
    kv_dump_close(d);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    const char *path = fuzz_file("file.h5", data, n);
    struct kv_calib *c;
    struct kv_err e = {""};
    int rc;

    read_dump(path);
    rc = kv_calib_load(&c, path, &e);
    fuzz_expect_sentence(rc, &e);
    if (!rc)
        kv_calib_free(c);
    return 0;
}

void fuzz_make_seeds(void)
{
    struct kv_shape shape = synthetic_shape(2);
    struct kv_spec spec;
    struct kv_err e = {""};
    struct kv_calib *c;
    char *dump, *calib = kv_path_join(fuzz_folder(), "calib.h5");

    shape.n_layers = 1;
    shape.n_heads = shape.n_kv_heads = 1;
    synthetic_dump(&shape, 1, 2, fuzz_folder(), &dump);
    fuzz_seed_file("dump", dump);

    shape = synthetic_shape(8);
    fuzz_expect(!kv_spec_parse(&spec, "pq:d4b2", &e) &&
                    !kv_spec_fit(&spec, &shape, &e),
                e.msg);
    c = synthetic_calib(&shape, &spec, fuzz_folder());
    fuzz_expect(!kv_calib_save(c, calib, &e), e.msg);
    fuzz_seed_file("calib", calib);
    kv_calib_free(c);
    free(calib);
    free(dump);
}
