/* Command-line options as one table: names, pointers to the values, defaults
 * and help.
 *
 *   const char *text = NULL;
 *   size_t ctx = 0;
 *   const struct kv_opt opts[] = {
 *       KV_IN('f', "file", &text, "FILE", "a text"),
 *       KV_SIZE('c', "ctx", &ctx, "N", "tokens in a window"),
 *       KV_OPT_DONE,
 *   };
 *   int first = kv_opt_parse(argc, argv, &about, opts);
 *
 * An option that takes one value may be given only once.  -h --help --version
 * -v -q and --list are everywhere and are handled here.  A bad option ends the
 * program with exit code 2 and one sentence. */
#ifndef KV_BASE_OPT_H
#define KV_BASE_OPT_H

#include "lib/base/release.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum kv_exit { KV_EXIT_OK = 0, KV_EXIT_NO = 1, KV_EXIT_CANNOT = 2 };

enum kv_opt_kind {
    KV_OPT_STR,
    KV_OPT_LIST,  /* struct kv_strings, an item each time it is given */
    KV_OPT_WORDS, /* struct kv_strings, also items separated by commas */
    KV_OPT_SIZES, /* struct kv_sizes, counts in the same form */
    KV_OPT_SIZE,  /* size_t, a plain count up to KV_OPT_MAX */
    KV_OPT_BYTES, /* size_t with K, M, G (powers of 1024) */
    KV_OPT_SEED,  /* uint64_t */
    KV_OPT_REAL,  /* double, finite */
    KV_OPT_FLAG,  /* bool, set to true */
    KV_OPT_SHARD  /* struct kv_shard; its value is optional (KV_SHARD) */
};

/* A count above this is taken for a typing error. */
#define KV_OPT_MAX 1000000000000ull

/* Strings in the order given; item[i] live as long as the program. */
struct kv_strings {
    const char **item;
    size_t n;
};
void kv_strings_clear(struct kv_strings *s);

/* Counts in the order given. */
struct kv_sizes {
    size_t *item, n;
};
void kv_sizes_clear(struct kv_sizes *s);

/* The use of the file that an option names. */
enum kv_opt_file { KV_NO_FILE, KV_READS, KV_WRITES };

struct kv_opt {
    int letter; /* 0: long form only */
    const char *name;
    enum kv_opt_kind kind;
    void *at;
    const char *arg, *help;

    enum kv_opt_file file;
    const bool *reads; /* KV_WRITES: the file is read instead if *reads */
    bool once; /* KV_WRITES: a file that exists is read; shards share it */
    /* for a folder: whether the program reads a file of this name in it */
    bool (*holds)(const char *name);
    /* a list: the file that an item names, or NULL */
    const char *(*named)(const char *item);
    const char *const *beside; /* for a flag: the file written is *beside +
                                * suffix */
    const char *suffix;        /* for a list: how an item names a file */
    const char *const *shared; /* for a shard: the output that all shards write
                                * ... */
    const bool *shares;        /* ... if *shares; or NULL */
};

#define KV_OPT_ROW(l, n, k, a, arg_, help_)                            \
    .letter = (l), .name = (n), .kind = (k), .at = (a), .arg = (arg_), \
    .help = (help_)

#define KV_STR(l, n, at, arg, help)                 \
    {                                               \
        KV_OPT_ROW(l, n, KV_OPT_STR, at, arg, help) \
    }
#define KV_SIZE(l, n, at, arg, help)                 \
    {                                                \
        KV_OPT_ROW(l, n, KV_OPT_SIZE, at, arg, help) \
    }
#define KV_BYTES(l, n, at, arg, help)                 \
    {                                                 \
        KV_OPT_ROW(l, n, KV_OPT_BYTES, at, arg, help) \
    }
#define KV_SEED(l, n, at, arg, help)                 \
    {                                                \
        KV_OPT_ROW(l, n, KV_OPT_SEED, at, arg, help) \
    }
#define KV_REAL(l, n, at, arg, help)                 \
    {                                                \
        KV_OPT_ROW(l, n, KV_OPT_REAL, at, arg, help) \
    }
#define KV_LIST(l, n, at, arg, help)                 \
    {                                                \
        KV_OPT_ROW(l, n, KV_OPT_LIST, at, arg, help) \
    }
#define KV_WORDS(l, n, at, arg, help)                 \
    {                                                 \
        KV_OPT_ROW(l, n, KV_OPT_WORDS, at, arg, help) \
    }
#define KV_SIZES(l, n, at, arg, help)                 \
    {                                                 \
        KV_OPT_ROW(l, n, KV_OPT_SIZES, at, arg, help) \
    }
#define KV_FLAG(l, n, at, help)                       \
    {                                                 \
        KV_OPT_ROW(l, n, KV_OPT_FLAG, at, NULL, help) \
    }

/* Options that name files.  IN: reads a file ("-": standard input).  IN_FOLDER:
 * reads the files of a folder that holds() accepts, existing or not.  OUT:
 * writes a file.  OUT_ONCE: writes it unless it exists.  OUT_OR_IN: reads it if
 * *reads, else writes it.  IN_LIST: texts, some of which name a file to read
 * (how: as in "word=FILE").  The last macro is a flag that also writes the file
 * *beside + suffix. */
#define KV_IN(l, n, at, arg, help)                                    \
    {                                                                 \
        KV_OPT_ROW(l, n, KV_OPT_STR, at, arg, help), .file = KV_READS \
    }
#define KV_IN_FOLDER(l, n, at, holds_, arg, help)                      \
    {                                                                  \
        KV_OPT_ROW(l, n, KV_OPT_STR, at, arg, help), .file = KV_READS, \
                                                     .holds = (holds_) \
    }
/* KV_IN and KV_IN_FOLDER for options that name several files. */
#define KV_INS(l, n, at, arg, help)                                     \
    {                                                                   \
        KV_OPT_ROW(l, n, KV_OPT_WORDS, at, arg, help), .file = KV_READS \
    }
#define KV_INS_FOLDER(l, n, at, holds_, arg, help)                       \
    {                                                                    \
        KV_OPT_ROW(l, n, KV_OPT_WORDS, at, arg, help), .file = KV_READS, \
                                                       .holds = (holds_) \
    }
#define KV_OUT(l, n, at, arg, help)                                    \
    {                                                                  \
        KV_OPT_ROW(l, n, KV_OPT_STR, at, arg, help), .file = KV_WRITES \
    }
#define KV_OUT_ONCE(l, n, at, arg, help)                                \
    {                                                                   \
        KV_OPT_ROW(l, n, KV_OPT_STR, at, arg, help), .file = KV_WRITES, \
                                                     .once = true       \
    }
#define KV_OUT_OR_IN(l, n, at, reads_, arg, help)                       \
    {                                                                   \
        KV_OPT_ROW(l, n, KV_OPT_STR, at, arg, help), .file = KV_WRITES, \
                                                     .reads = (reads_)  \
    }
#define KV_IN_LIST(l, n, at, named_, how, arg, help)             \
    {                                                            \
        KV_OPT_ROW(l, n, KV_OPT_LIST, at, arg, help),            \
            .file = KV_READS, .named = (named_), .suffix = (how) \
    }
#define KV_OUT_BESIDE(l, n, at, beside_, suffix_, help)                 \
    {                                                                   \
        KV_OPT_ROW(l, n, KV_OPT_FLAG, at, NULL, help),                  \
            .file = KV_WRITES, .beside = (beside_), .suffix = (suffix_) \
    }

/* --shard [I/N].  A value begins with a digit; without a value the launcher
 * gives the part (lib/base/shard.h).  Every output that is a regular file, or
 * new, then gets the name of its shard (kv_shard_path), except *shared_ if
 * *shares_. */
#define KV_SHARD(at, shared_, shares_, help)                     \
    {                                                            \
        KV_OPT_ROW(0, "shard", KV_OPT_SHARD, at, "[I/N]", help), \
            .shared = (shared_), .shares = (shares_)             \
    }

#define KV_OPT_DONE  \
    {                \
        .name = NULL \
    }

struct kv_opt_about {
    const char *usage;     /* after the program's name */
    const char *brief;     /* the program's purpose, a paragraph */
    const char *more;      /* after the options: units, examples; or NULL */
    void (*list)(void);    /* --list; or NULL */
    void (*columns)(void); /* --columns help; or NULL */
    /* Sees all words before they are read; or NULL. */
    void (*before)(int argc, char **argv);
    const char *operand; /* name of the operands, which are files; or NULL */
};

/* Options may stand anywhere; "--" ends them.  Returns the index of the first
 * operand, after moving the operands to the end of argv.
 *
 * Afterwards descriptors 0 to 2 are open, so that stderr never goes to another
 * file; using one that was closed fails.  The program ends if an output would
 * replace an input or an operand, if it would become a file of an input folder,
 * or if two outputs are one file. */
int kv_opt_parse(int argc, char **argv, const struct kv_opt_about *about,
                 const struct kv_opt *opts);

/* Reads a size such as "1.5G", "64M", "100k" or "12", in bytes.  Returns -1 if
 * the text is not a size. */
int kv_parse_bytes(const char *text, size_t *bytes);

/* "prog: sentence" on stderr, exit code 2.  If an input was changed while it
 * was read, the sentence says this instead, as it caused the error. */
_Noreturn void kv_die(const char *fmt, ...)
    __attribute__((format(printf, 1, 2)));

/* Prints the same line, also when quiet, but does not end the program. */
void kv_say_error(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* "prog: sentence" on stderr, also when quiet. */
void kv_warn(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* Closes stdout.  Ends the program when stdout did not take everything, or when
 * an input was changed while it was read. */
void kv_close_stdout(void);

/* The program's name, the prefix of its sentences. */
const char *kv_program(void);

#endif
