/* The options that every tool has, in the same words.
 *
 *   struct kv_common common = KV_COMMON_DEFAULT;
 *   const struct kv_opt opts[] = {
 *       KV_IN_FOLDER('m', "model", &model, kv_model_holds, "DIR", "a model"),
 *       KV_COMMON_OPTS(common),
 *       KV_OPT_DONE,
 *   };
 *   const struct kv_opt_about about = { .list = kv_common_list, ... };
 *
 *   kv_opt_parse(argc, argv, &about, opts);
 *   kv_common_start(&common); */
#ifndef KV_COMMON_H
#define KV_COMMON_H

#include "kernels/device.h"
#include "lib/base/opt.h"
#include "lib/columns.h"
#include "lib/mixed.h"
#include "lib/results.h"
#include "lib/seq/bits.h"
#include "lib/spec.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct kv_common {
    size_t threads, memory;
    uint64_t seed;
    const char *device, *level;  /* level NULL: the CPU's highest level */
    const char *output, *format; /* output NULL: stdout; format NULL: by the
                                  * suffix of output */
    const char *columns;         /* columns of results; NULL: all */
    bool safe_csv;
    bool append;                        /* KV_APPEND() */
    const struct kv_results_keys *keys; /* keys of the rows if the tool has
                                         * --append, else NULL */
    bool can_gpu; /* set by tools that can compute on a GPU */
    bool on_gpu;  /* set by kv_common_start(): computes on `gpu` */
    struct kv_device gpu;
};

#define KV_COMMON_DEFAULTS .memory = (size_t)1 << 30, .device = "auto"
#define KV_COMMON_DEFAULT  \
    {                      \
        KV_COMMON_DEFAULTS \
    }

#define KV_COMMON_OPTS(c)                                                      \
    KV_OUT('o', "output", &(c).output, "FILE",                                 \
           "output file (results: else stdout)"),                              \
        KV_STR(0, "format", &(c).format, "F",                                  \
               "csv, tsv, jsonl or md (as FILE is named; csv)"),               \
        KV_STR(0, "columns", &(c).columns, "A,B,...",                          \
               "columns of results, in this order (all; help:\n"               \
               "lists them); params: of specs' parameters"),                   \
        KV_FLAG(0, "safe-csv", &(c).safe_csv,                                  \
                "csv, tsv: a ' before text cells that a spreadsheet\n"         \
                "would take for formulas (= + - @ tab ...)"),                  \
        KV_SIZE('t', "threads", &(c).threads, "N",                             \
                "threads (0: as OpenMP says); no result depends\n"             \
                "on it"),                                                      \
        KV_STR(0, "device", &(c).device, "D",                                  \
               "cpu, cuda[:N], or auto: cpu (auto)"),                          \
        KV_STR(0, "level", &(c).level, "L",                                    \
               "c, avx2 or avx512 (the highest)"),                             \
        KV_SEED(0, "seed", &(c).seed, "N", "seed of every random choice (0)"), \
        KV_BYTES(0, "memory", &(c).memory, "SIZE",                             \
                 "room for tensors and caches (1G), not for weights\n"         \
                 "and texts")

/* --append, for a tool that measures all its rows, also the ones that FILE
 * already has. */
#define KV_APPEND(c)                                                         \
    KV_OUT_BESIDE(0, "append", &(c).append, &(c).output, KV_RESULTS_JOURNAL, \
                  "FILE's rows stay, of any model, dump or setting;\n"       \
                  "this run's that it lacks are added; csv, tsv")

/* -s: a list of specs, which may name a layer file. */
#define KV_SPECS(at, help) \
    KV_IN_LIST('s', "spec", at, kv_mixed_file, "mixed,file=FILE", "SPEC", help)

/* Checks the options, sets threads, level and device for the program, and
 * catches signals; ends the program with a sentence if one of them is
 * impossible.
 */
void kv_common_start(struct kv_common *c);

/* The help text about KV_SHARD() without a value. */
#define KV_SHARD_HELP                                                          \
    "--shard without a value: the part of this task of a Slurm array, of "     \
    "this rank of\nsrun or mpirun, or of both.  Each writes its own file, -o " \
    "rows.csv\nrows-I-of-N.csv; scripts/merge rows.csv joins them."

struct kv_model;

/* Puts the model on the GPU if the user asked for one; gemm: --gemm's value, or
 * NULL. */
int kv_common_place(const struct kv_common *c, struct kv_model *m,
                    const char *gemm, struct kv_err *e);

/* --pool-heads (kv_model_pool_heads()); 0: not given. */
#define KV_POOL_HEADS(at)                                      \
    KV_SIZE(0, "pool-heads", at, "G",                          \
            "the model with fewer KV heads: means of G that\n" \
            "follow each other (matrices and biases of K and V)")

/* Ends the program with a sentence, before anything is read, if the specs make
 * too many rows or have wrong braces.  Afterwards the commands that specs name
 * may run (lib/exec.h). */
void kv_common_specs(const struct kv_strings *specs);

/* Ends the program with a sentence when one of n operands is a spec that lost
 * its -s: the shell expands -s kivi:b{2,4}g32 unless it is quoted. */
void kv_common_no_specs(char *const *operand, int n);
/* Ends the program if llama.cpp's -ctk or -ctv is among the words, naming the
 * spec to write instead, or the known types.  For kv_opt_about's `before`. */
void kv_common_no_cache_types(int argc, char **argv);
/* Ends the program if n > 0. */
void kv_common_no_operands(char *const *operand, int n);

/* Notes that windows have fewer positions than --queries asks for, unless n is
 * the default, default_n. */
void kv_common_queries(size_t n, size_t default_n, size_t ctx);

/* Notes on stderr, once for each size, that a spec's Hadamard transform
 * consists of smaller blocks because the size is not a power of two.  The specs
 * are fitted to shape. */
void kv_common_hadamard(const struct kv_spec *specs, size_t n,
                        const struct kv_shape *shape);

/* Notes on stderr that the spec's row does not measure only its scheme: no
 * keys, no values or neither became codes, or some values were clipped. */
void kv_common_note_stored(const struct kv_spec *spec, const struct kv_bits *b);
/* Prints only the note about clipped values. */
void kv_common_note_clipped(const struct kv_spec *spec, double clipped);

/* The form of a table without specs, by -o, --append, --format and
 * --columns. */
struct kv_results_form kv_common_form(const struct kv_common *c);

/* Opens the table of rows that these specs have; path: -o's, or NULL. */
int kv_common_table(struct kv_results **r, const struct kv_common *c,
                    const char *path, const char *const *columns,
                    const struct kv_spec *specs, size_t n, struct kv_err *e);

/* Device, level, threads and seed as a row of results names them. */
void kv_common_conditions(const struct kv_common *c, struct kv_conditions *to);

/* --list: every scheme with its defaults, one line each; after -v also the
 * parameters. */
void kv_common_list(void);

#endif
