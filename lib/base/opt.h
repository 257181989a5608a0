/* Command-line options as one table: names, places, defaults and help.
 *
 *   const char *model = NULL;
 *   struct kv_strings specs = { 0 };
 *   const struct kv_opt opts[] = {
 *       KV_STR('m', "model", &model, "DIR", "model directory"),
 *       KV_LIST('s', "spec", &specs, "SPEC", "scheme (repeatable)"),
 *       KV_OPT_DONE,
 *   };
 *   int first = kv_opt_parse(argc, argv, &about, opts);
 *
 * -h --help --version -v -q and --list are everywhere and are handled here.  A
 * bad option ends the program with exit code 2 and one sentence. */
#ifndef KV_BASE_OPT_H
#define KV_BASE_OPT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum kv_exit { KV_EXIT_OK = 0, KV_EXIT_NO = 1, KV_EXIT_CANNOT = 2 };

enum kv_opt_kind {
    KV_OPT_STR,
    KV_OPT_LIST,
    KV_OPT_SIZE,  /* size_t, a plain count up to KV_OPT_MOST */
    KV_OPT_BYTES, /* size_t with K, M, G (powers of 1024) */
    KV_OPT_SEED,  /* uint64_t */
    KV_OPT_FLAG   /* bool, set to true */
};

/* Counts beyond it are slips of the keyboard. */
#define KV_OPT_MOST 1000000000000ull

/* Strings in the order given; item[i] point into argv. */
struct kv_strings {
    const char **item;
    size_t n;
};
void kv_strings_add(struct kv_strings *s, const char *item);
void kv_strings_clear(struct kv_strings *s);

struct kv_opt {
    int letter; /* 0: long form only */
    const char *name;
    enum kv_opt_kind kind;
    void *at;
    const char *arg, *help;
};

#define KV_STR(l, n, at, arg, help)     \
    {                                   \
        l, n, KV_OPT_STR, at, arg, help \
    }
#define KV_LIST(l, n, at, arg, help)     \
    {                                    \
        l, n, KV_OPT_LIST, at, arg, help \
    }
#define KV_SIZE(l, n, at, arg, help)     \
    {                                    \
        l, n, KV_OPT_SIZE, at, arg, help \
    }
#define KV_BYTES(l, n, at, arg, help)     \
    {                                     \
        l, n, KV_OPT_BYTES, at, arg, help \
    }
#define KV_SEED(l, n, at, arg, help)     \
    {                                    \
        l, n, KV_OPT_SEED, at, arg, help \
    }
#define KV_FLAG(l, n, at, help)           \
    {                                     \
        l, n, KV_OPT_FLAG, at, NULL, help \
    }
#define KV_OPT_DONE                            \
    {                                          \
        0, NULL, KV_OPT_FLAG, NULL, NULL, NULL \
    }

struct kv_opt_about {
    const char *usage;  /* after the program's name */
    const char *brief;  /* what it does, a paragraph */
    const char *more;   /* after the options: units, examples; or NULL */
    void (*list)(void); /* --list; or NULL */
};

/* Options may stand anywhere; "--" ends them.  Returns the index of the first
 * operand, after moving the operands to the end of argv. */
int kv_opt_parse(int argc, char **argv, const struct kv_opt_about *about,
                 const struct kv_opt *opts);

/* "1.5G", "64M", "100k", "12": bytes.  -1 when it is none of that. */
int kv_parse_bytes(const char *text, size_t *bytes);

/* "prog: sentence" on stderr, exit code 2. */
_Noreturn void kv_die(const char *fmt, ...)
    __attribute__((format(printf, 1, 2)));

/* The same line, also when quiet, and the run goes on. */
void kv_warn(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* Closes stdout and dies when it did not take everything. */
void kv_close_stdout(void);

const char *kv_version(void);

#endif
