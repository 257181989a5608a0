#include "tests/fuzz/fuzz.h"
#include "lib/base/alloc.h"
#include "lib/base/file.h"
#include "tests/test.h"

static const char *seeds; /* the folder for seeds */

const char *fuzz_folder(void)
{
    static char path[sizeof(test_top) + 16];

    if (!*path)
        snprintf(path, sizeof(path), "%s", test_folder());
    return path;
}

static void put(const char *path, const void *data, size_t n)
{
    FILE *f = fopen(path, "wb");

    fuzz_expect(f && fwrite(data, 1, n, f) == n && !fclose(f), path);
}

const char *fuzz_file(const char *name, const uint8_t *data, size_t n)
{
    static char path[sizeof(test_top) + 64];

    snprintf(path, sizeof(path), "%s/%s", fuzz_folder(), name);
    put(path, data, n);
    return path;
}

void fuzz_expect(int holds, const char *what)
{
    if (holds)
        return;
    fprintf(stderr, "expected: %s\n", what);
    abort();
}

void fuzz_expect_sentence(int failed, const struct kv_err *e)
{
    if (failed)
        fuzz_expect(*e->msg != 0, "a sentence");
}

void fuzz_seed(const char *name, const void *data, size_t n)
{
    char *path = kv_path_join(seeds, name);

    put(path, data, n);
    free(path);
}

void fuzz_seed_file(const char *name, const char *path)
{
    struct kv_err e = {""};
    char *text;
    size_t n;

    fuzz_expect(!kv_file_read(path, &text, &n, &e), e.msg);
    fuzz_seed(name, text, n);
    free(text);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    static const char option[] = "--seeds=";

    if (*argc != 2 || strncmp((*argv)[1], option, sizeof(option) - 1))
        return 0;
    seeds = (*argv)[1] + sizeof(option) - 1;
    fuzz_make_seeds();
    exit(0);
}
