/* The journal of an interrupted run: only complete rows are taken. */
#include "lib/base/file.h"
#include "lib/journal.h"
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>

static const char run[] = "kvppl 0.1.0 a model, a text";
static const double value[3] = {1.5, -0x1.8p-30, 7};

/* (A checksum can be forged; a journal that is accepted once is accepted
 * again.) */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    const char *path = fuzz_file("a.csv.partial", data, n);
    struct kv_journal *j;
    struct kv_err e = {""};
    const int rc = kv_journal_open(&j, path, run, &e);
    double got[3];
    size_t items;

    fuzz_expect_sentence(rc, &e);
    if (rc)
        return 0;
    items = kv_journal_items(j);
    kv_journal_find(j, "kivi:b2g32", got, 3);
    fuzz_expect(!kv_journal_add(j, "f32", value, 3, &e), e.msg);
    kv_journal_close(j);
    fuzz_expect(!kv_journal_open(&j, path, run, &e), e.msg);
    fuzz_expect(kv_journal_items(j) == items + 1,
                "the same items, and one more");
    fuzz_expect(kv_journal_find(j, "f32", got, 3) || items, "what was added");
    kv_journal_close(j);
    return 0;
}

void fuzz_make_seeds(void)
{
    char *path = kv_path_join(fuzz_folder(), "seed.partial");
    struct kv_journal *j;
    struct kv_err e = {""};

    fuzz_expect(!kv_journal_open(&j, path, run, &e), e.msg);
    fuzz_expect(!kv_journal_add(j, "kivi:b2g32", value, 3, &e), e.msg);
    fuzz_expect(!kv_journal_add(j, "q4_0", value, 3, &e), e.msg);
    kv_journal_close(j);
    fuzz_seed_file("two-items", path);
    free(path);
}
