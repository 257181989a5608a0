#include "lib/base/opt.h"
#include "lib/base/alloc.h"
#include "lib/base/child.h"
#include "lib/base/end.h"
#include "lib/base/file.h"
#include "lib/base/file_impl.h"
#include "lib/base/opt_impl.h"
#include "lib/base/progress.h"
#include "lib/base/release.h"
#include "lib/base/shard.h"
#include "lib/base/waits.h"

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <math.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *prog = "kvtools";

const char *kv_program(void)
{
    return prog;
}

static atomic_bool memory_ended;

/* The last of our exit handlers.  After running out of memory, it ends the
 * process before the libraries' exit handlers free memory that other threads
 * still use. */
static void leave(void)
{
    if (!memory_ended)
        return;
    fflush(stdout);
    _exit(KV_EXIT_CANNOT);
}

__attribute__((constructor)) static void leave_last(void)
{
    atexit(leave);
}

static void end_without_memory(void)
{
    memory_ended = true;
    exit(KV_EXIT_CANNOT);
}

/* Ends the process without exit(), whose handlers free memory that other
 * threads still compute with. */
static void end_amid_threads(void)
{
    kv_temporaries_remove();
    kv_children_kill();
    kv_children_end();
    _exit(KV_EXIT_CANNOT);
}

static void vsay_error(const char *fmt, va_list ap)
{
    struct kv_err changed;

    fflush(stdout);
    if (kv_inputs_unchanged(&changed))
        kv_warn("%s", changed.msg);
    else
        kv_vsay(prog, fmt, ap);
}

void kv_say_error(const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    vsay_error(fmt, ap);
    va_end(ap);
}

void kv_die(const char *fmt, ...)
{
    va_list ap;

    kv_wait_begin(); /* until the program has ended */
    va_start(ap, fmt);
    vsay_error(fmt, ap);
    va_end(ap);
    exit(KV_EXIT_CANNOT);
}

void kv_warn(const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    kv_vsay(prog, fmt, ap);
    va_end(ap);
}

void kv_close_stdout(void)
{
    const bool bad = ferror(stdout) != 0;
    struct kv_err e;

    if (kv_inputs_unchanged(&e))
        kv_die("%s", e.msg);
    errno = 0;
    if (fclose(stdout) || bad)
        kv_die("cannot write the results to standard output: %s",
               errno ? strerror(errno) : "write error");
}

int kv_parse_bytes(const char *text, size_t *bytes)
{
    char *end;
    double x;

    errno = 0;
    x = strtod(text, &end);
    if (end == text || errno || !(x >= 0))
        return -1;
    switch (tolower((unsigned char)*end)) {
    case 'g':
        x *= 1024;
        /* fall through */
    case 'm':
        x *= 1024;
        /* fall through */
    case 'k':
        x *= 1024;
        end++;
    }
    if (!strcasecmp(end, "ib") || !strcasecmp(end, "b"))
        end += strlen(end);
    if (*end || x >= 0x1p63)
        return -1;
    *bytes = (size_t)x;
    return 0;
}

static void help(const struct kv_opt_about *about, const struct kv_opt *opts)
{
    printf("Usage: %s %s\n\n%s\n\nOptions:\n", prog, about->usage,
           about->brief);
    for (const struct kv_opt *o = opts; o->name; o++) {
        char head[64], name[48];
        const char *text = o->help;

        snprintf(name, sizeof(name), "--%s%s%s", o->name, o->arg ? " " : "",
                 o->arg ? o->arg : "");
        if (o->letter)
            snprintf(head, sizeof(head), "-%c, %s", o->letter, name);
        else
            snprintf(head, sizeof(head), "    %s", name);
        printf("  %-28s", head);
        if (strlen(head) > 27)
            printf("\n%30s", "");
        for (const char *nl; (nl = strchr(text, '\n')); text = nl + 1)
            printf("%.*s\n%30s", (int)(nl - text), text, "");
        printf("%s\n", text);
    }
    printf("  -v, --verbose               say more on stderr\n"
           "  -q, --quiet                 no progress, no words on stderr\n");
    if (about->list)
        printf("      --list                  the schemes, one line each; "
               "after -v "
               "their\n                              parameters\n");
    printf("      --version               version and exit\n"
           "  -h, --help                  this text\n");
    kv_opt_put_files(opts, about->operand);
    printf("\nExit: 0 done, 1 ran and the answer is no, 2 could not run.\n");
    if (about->more)
        printf("\n%s\n", about->more);
    kv_close_stdout();
    exit(KV_EXIT_OK);
}

static unsigned long long count(const struct kv_opt *o, const char *arg)
{
    char *end = NULL;
    unsigned long long x;

    errno = 0;
    x = strtoull(arg, &end, 10);
    if (!isdigit((unsigned char)*arg) || *end || errno)
        kv_die("--%s %s: expected a whole number from 0 on", o->name, arg);
    return x;
}

size_t kv_opt_size(const struct kv_opt *o, const char *arg)
{
    const unsigned long long x = count(o, arg);

    if (x > KV_OPT_MAX)
        kv_die("--%s %s: expected at most %llu", o->name, arg, KV_OPT_MAX);
    return (size_t)x;
}

static void set(const struct kv_opt *o, const char *arg)
{
    struct kv_err e = {""};
    char *end = NULL;

    errno = 0;
    switch (o->kind) {
    case KV_OPT_FLAG:
        *(bool *)o->at = true;
        return;
    case KV_OPT_STR:
        *(const char **)o->at = arg;
        return;
    case KV_OPT_LIST:
        kv_opt_add_string(o->at, arg);
        return;
    case KV_OPT_WORDS:
    case KV_OPT_SIZES:
        kv_opt_add_values(o, arg);
        return;
    case KV_OPT_BYTES:
        if (kv_parse_bytes(arg, o->at))
            kv_die("--%s %s: expected a size such as 512M or 2G", o->name, arg);
        return;
    case KV_OPT_REAL:
        *(double *)o->at = strtod(arg, &end);
        if (end == arg || *end || !isfinite(*(double *)o->at))
            kv_die("--%s %s: expected a number", o->name, arg);
        return;
    case KV_OPT_SHARD:
        *(struct kv_shard *)o->at = (struct kv_shard){0, 0}; /* the launcher's
                                                              * part */
        if (arg && kv_shard_parse(o->at, arg, &e))
            kv_die("%s", e.msg);
        return;
    case KV_OPT_SIZE:
        *(size_t *)o->at = kv_opt_size(o, arg);
        return;
    case KV_OPT_SEED:
        *(uint64_t *)o->at = count(o, arg);
        return;
    }
}

/* Lists and flags may be given again; other options only with the same value,
 * so that no value is silently dropped. */
static void set_once(const struct kv_opt *o, const char *arg,
                     const char **before)
{
    const bool many = o->kind == KV_OPT_FLAG || o->kind == KV_OPT_LIST ||
                      o->kind == KV_OPT_WORDS || o->kind == KV_OPT_SIZES;

    if (!many && *before && arg && strcmp(*before, arg))
        kv_die("--%s is given twice, %s and %s: expected one value", o->name,
               *before, arg);
    *before = arg;
    set(o, arg);
}

/* Handles --columns help, which needs no other option. */
static void say_columns(const struct kv_opt_about *about,
                        const struct kv_opt *o, const char *arg)
{
    if (!about->columns || !arg || strcmp(o->name, "columns") ||
        strcmp(arg, "help"))
        return;
    about->columns();
    kv_close_stdout();
    exit(KV_EXIT_OK);
}

/* Opens /dev/null for closed standard descriptors, so that no other file gets
 * their numbers.  The direction is wrong, so that using them fails. */
static void open_standard(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0 &&
            open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY) != fd)
            _exit(KV_EXIT_CANNOT);
}

enum { MAX_OPTIONS = 64, VERSION = 256, LIST, FIRST };

/* Describes the options to getopt_long(): the tool's own, then those that all
 * tools have. */
static void describe(const struct kv_opt_about *about,
                     const struct kv_opt *opts, size_t n, struct option *longs,
                     char *shorts)
{
    const struct option common[] = {
        {"help", 0, NULL, 'h'},    {"version", 0, NULL, VERSION},
        {"verbose", 0, NULL, 'v'}, {"quiet", 0, NULL, 'q'},
        {"list", 0, NULL, LIST},
    };

    *shorts++ = ':';
    for (size_t i = 0; i < n; i++) {
        longs[i] =
            (struct option){opts[i].name,
                            opts[i].kind == KV_OPT_SHARD ? optional_argument
                                                         : opts[i].arg != NULL,
                            NULL, FIRST + (int)i};
        if (opts[i].letter) {
            *shorts++ = (char)opts[i].letter;
            if (opts[i].arg)
                *shorts++ = ':';
        }
    }
    memcpy(shorts, "hvq", 3);
    memcpy(longs + n, common, (about->list ? 5 : 4) * sizeof(*common));
}

static _Noreturn void say_and_exit(const struct kv_opt_about *about, int c)
{
    if (c == VERSION)
        printf("%s (kvtools) %s\n", prog, kv_version());
    else
        about->list();
    kv_close_stdout();
    exit(KV_EXIT_OK);
}

/* The value of an option.  The value of --shard may be the next word. */
static const char *value(const struct kv_opt *o, int argc, char **argv)
{
    return o->kind == KV_OPT_SHARD && !optarg && optind < argc &&
                   isdigit((unsigned char)*argv[optind])
               ? argv[optind++]
               : optarg;
}

/* Takes the shard from the launcher.  Called once it is known whether the
 * program is quiet, since it prints a note. */
static void launch(const struct kv_opt *opts)
{
    struct kv_err e = {""};

    for (const struct kv_opt *o = opts; o->name; o++) {
        struct kv_shard *s = o->kind == KV_OPT_SHARD ? o->at : NULL;

        if (!s || s->n)
            continue;
        if (kv_shard_launched(s, &e))
            kv_die("%s", e.msg);
        if (s->n > 1)
            kv_opt_name_shard(opts, o);
    }
}

/* Ends the program on an option for which getopt_long() returned c.  word: the
 * last word that it read to the end; an unknown letter may be inside the next
 * word. */
static void refuse(int c, const char *shorts, const char *word)
{
    const char letter[] = {'-', (char)optopt, '\0'};

    if (c == '?' && optopt > ' ' && optopt < 127 && !strchr(shorts, optopt))
        word = letter;
    kv_die("%s %s (try --help)", word,
           c == '?' ? "is not an option" : "wants a value");
}

int kv_opt_parse(int argc, char **argv, const struct kv_opt_about *about,
                 const struct kv_opt *opts)
{
    const char *slash = strrchr(argv[0], '/');
    struct option longs[MAX_OPTIONS + 6] = {0};
    char shorts[2 * MAX_OPTIONS + 8] = "";
    const char *given[MAX_OPTIONS] = {NULL};
    size_t n = 0;
    int said = 0; /* 'q' or 'v' */

    open_standard();
    prog = slash ? slash + 1 : argv[0];
    kv_memory_end_by(end_without_memory);
    kv_end_by(end_amid_threads);
    kv_verbosity_set(1);
    while (opts[n].name)
        n++;
    assert(n <= MAX_OPTIONS);
    describe(about, opts, n, longs, shorts);
    opterr = 0;
    if (about->before)
        about->before(argc, argv);
    for (int c; (c = getopt_long(argc, argv, shorts, longs, NULL)) != -1;) {
        if (c == 'h')
            help(about, opts);
        if (c == VERSION || c == LIST)
            say_and_exit(about, c);
        if (c == 'v' || c == 'q') {
            if (said && said != c)
                kv_die("-q and -v contradict each other");
            said = c;
            kv_verbosity_set(c == 'v' ? 2 : 0);
            continue;
        }
        if (c == '?' || c == ':')
            refuse(c, shorts, argv[optind - 1]);
        for (size_t i = 0; i < n; i++) {
            if (c != FIRST + (int)i && c != opts[i].letter)
                continue;
            set_once(&opts[i], value(&opts[i], argc, argv), &given[i]);
            say_columns(about, &opts[i], given[i]);
        }
    }
    launch(opts);
    kv_opt_check_files(opts, argv + optind, (size_t)(argc - optind));
    return optind;
}
