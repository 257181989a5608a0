/* Tables of results, CSV and TSV, read as when rows are added. */
#include "lib/results_file.h"
#include "tests/fuzz/fuzz.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    const char *path = fuzz_file("table", data, n);

    for (int tsv = 0; tsv < 2; tsv++) {
        struct kv_results_file t;
        struct kv_err e = {""};
        const int rc = kv_results_file_read(&t, path, tsv ? '\t' : ',', &e);

        fuzz_expect_sentence(rc, &e);
        if (rc)
            continue;
        fuzz_expect(t.n_cells == (t.n ? (1 + t.n_rows) * t.n : 0),
                    "every row has the header's cells");
        fuzz_expect(kv_results_file_find(&t, "spec") <= t.n, "a column");
        kv_results_file_clear(&t);
    }
    return 0;
}

void fuzz_make_seeds(void)
{
    static const char *const files[] = {
        "spec,ppl\n\"kivi:b2,axis=paper\",1.5\nf32,\"a \"\"b\"\"\nc\"\n",
        "spec\tppl\r\nkivi:b2,axis=paper\t\\t\\\\\\n\r\n"};

    for (size_t i = 0; i < sizeof(files) / sizeof(*files); i++)
        fuzz_seed((const char[]){(char)('a' + i), 0}, files[i],
                  strlen(files[i]));
}
