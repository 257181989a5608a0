/* The operations that tests/check_ops.c compares and times.  A family of
 * operations is a file in tests/ops/, with a line here and in check_ops.c; an
 * operation is a line in its family's array and the function that calls it.
 * Families without a table of versions (float, levels) are made of the
 * operations of others. */
#ifndef KV_TESTS_OPS_H
#define KV_TESTS_OPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The bit of a member of a table of versions, whose members are one word. */
#define RUNS(table, member) \
    (UINT64_C(1) << offsetof(table, member) / sizeof(void *))
/* The number of members of a table. */
#define MEMBERS(table) (sizeof(table) / sizeof(void *))

#define COUNT(array) (sizeof(array) / sizeof(*(array)))

/* run()'s result if an operation does not take this input. */
#define CHECK_NONE SIZE_MAX
enum { CHECK_MAX_OUT = 1 << 22 }; /* bytes */

/* Runs an operation at the level in use; returns the bytes written to out. */
typedef size_t check_run_fn(const void *in, void *out);

/* Defines name(), the run() of a check_op: calls the operation on r, the input
 * in its type, and returns the number of bytes written. */
#define CHECK_RUN(name, type, bytes, call)        \
    static size_t name(const void *in, void *out) \
    {                                             \
        const type *r = in;                       \
                                                  \
        call;                                     \
        return bytes;                             \
    }

struct check_op {
    const char *name;
    uint64_t runs; /* members of the table: RUNS() */
    /* 0: every version writes the same bytes as plain C.  Else the output is
     * floats; the largest difference to plain C's, relative to its largest
     * float. */
    double tolerance;
    check_run_fn *run;
};

struct check_size {
    char label[64];
    bool timed; /* --bench times this case: a realistic one */
};

struct check_family {
    const char *name;
    size_t members; /* members of the family's table */
    const struct check_op *op;
    size_t n_ops;
    bool pairs; /* the family asks kv_level_pairs() */
    /* Makes the input of size i, the same bytes at every call; NULL past the
     * last size. */
    void *(*open)(size_t i, struct check_size *size);
    void (*close)(void *in);
};

extern const struct check_family check_vecops, check_tiles, check_nearest,
    check_trellis, check_hack, check_integers, check_scaled, check_scaled_int8,
    check_codebook, check_transform, check_weights;

#endif
