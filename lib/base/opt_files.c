#include "lib/base/alloc.h"
#include "lib/base/file.h"
#include "lib/base/file_impl.h"
#include "lib/base/opt_impl.h"
#include "lib/base/shard.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* A list of paths, which owns each path. */
struct paths {
    char **path;
    size_t n;
};

static void add(struct paths *p, char *path)
{
    p->path = kv_realloc(p->path, p->n + 1, sizeof(*p->path));
    p->path[p->n++] = path;
}

static void clear(struct paths *p)
{
    for (size_t i = 0; i < p->n; i++)
        free(p->path[i]);
    free(p->path);
}

/* Adds all files of the folder that holds() accepts, links too. */
static void add_folder(struct paths *p, const char *folder,
                       bool (*holds)(const char *name))
{
    DIR *d = opendir(folder);

    if (!d)
        return; /* reported when the folder is read */
    for (const struct dirent *f; (f = readdir(d));) {
        char *path = holds(f->d_name) ? kv_path_join(folder, f->d_name) : NULL;

        if (!path || kv_is_dir(path))
            free(path);
        else
            add(p, path);
    }
    closedir(d);
}

static void add_list(struct paths *p, const struct kv_opt *o)
{
    const struct kv_strings *list = o->at;

    for (size_t i = 0; i < list->n; i++) {
        const char *path = o->named(list->item[i]);

        if (path)
            add(p, kv_strdup(path));
    }
}

/* Whether an earlier option, which is also given, writes the same file. */
static bool is_known(const struct kv_opt *opts, const struct kv_opt *o)
{
    for (; opts < o; opts++)
        if (opts->beside && opts->beside == o->beside &&
            !strcmp(opts->suffix, o->suffix) && *(const bool *)opts->at)
            return true;
    return false;
}

static void add_beside(struct paths *p, const struct kv_opt *o)
{
    const char *path = *o->beside;
    size_t capacity;
    char *beside;

    if (!*(const bool *)o->at || !path)
        return;
    capacity = strlen(path) + strlen(o->suffix) + 1;
    beside = kv_alloc(capacity, 1);
    snprintf(beside, capacity, "%s%s", path, o->suffix);
    add(p, beside);
}

/* Adds an input file, or the inputs in a folder. */
static void add_input(struct paths *in, const struct kv_opt *o,
                      const char *path)
{
    if (o->holds && kv_is_dir(path))
        add_folder(in, path, o->holds);
    else
        add(in, kv_strdup(path));
}

/* The values of an option that names files, *n of them. */
static const char *const *values(const struct kv_opt *o, size_t *n)
{
    const struct kv_strings *list = o->at;

    if (o->kind == KV_OPT_WORDS) {
        *n = list->n;
        return list->item;
    }
    *n = o->kind == KV_OPT_STR && *(const char **)o->at;
    return o->at;
}

static void add_option(struct paths *in, struct paths *out,
                       const struct kv_opt *opts, const struct kv_opt *o)
{
    const bool reads = o->file == KV_READS || (o->reads && *o->reads);
    const char *const *path;
    size_t n;

    if (o->named)
        add_list(in, o);
    else if (o->beside && !is_known(opts, o))
        add_beside(out, o);
    if (o->named || o->beside || o->file == KV_NO_FILE)
        return;
    path = values(o, &n);
    for (size_t i = 0; i < n; i++)
        if (reads)
            add_input(in, o, path[i]);
        else
            add(out, kv_strdup(path[i]));
}

/* Whether both paths are the same name in the same folder; the files need not
 * exist yet. */
static bool same_place(const char *a, const char *b)
{
    char *end_a = kv_out_target(a), *end_b = kv_out_target(b);
    const char *name_a, *name_b;
    char *folder_a, *folder_b;
    bool same = false;

    if (end_a && end_b) {
        folder_a = kv_path_folder(end_a, &name_a);
        folder_b = kv_path_folder(end_b, &name_b);
        same = !strcmp(name_a, name_b) && kv_same_file(folder_a, folder_b);
        free(folder_a);
        free(folder_b);
    }
    free(end_a);
    free(end_b);
    return same;
}

static bool is_special(const char *path)
{
    struct stat st;

    return !stat(path, &st) && !S_ISREG(st.st_mode);
}

static bool collide(const char *a, const char *b)
{
    return !is_special(a) && (kv_same_file(a, b) || same_place(a, b));
}

/* Whether fd, standard input or output, is this file. */
static bool is_standard(int fd, const char *path)
{
    struct stat x, y;

    return !fstat(fd, &x) && S_ISREG(x.st_mode) && !stat(path, &y) &&
           x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

static bool reads_over(const char *input, const char *output)
{
    return strcmp(input, "-") ? collide(output, input)
                              : is_standard(STDIN_FILENO, output);
}

/* Whether an output that does not exist yet would become one of the folder's
 * inputs. */
static bool joins(const char *output, const struct kv_opt *o,
                  const char *folder)
{
    char *target = kv_out_target(output), *place;
    const char *name;
    bool held;

    if (!target || is_special(target)) {
        free(target);
        return false;
    }
    place = kv_path_folder(target, &name);
    held = o->holds(name) && kv_same_file(place, folder);
    free(place);
    free(target);
    return held;
}

static void check_output(const char *output, const struct paths *in,
                         const struct kv_opt *opts)
{
    struct kv_err e;

    if (!*output || !strcmp(output, "-"))
        kv_die("an output is named '%s': expected a file (tables go to stdout "
               "without -o)",
               output);
    if (kv_out_check(output, &e))
        kv_die("%s", e.msg);
    for (size_t i = 0; i < in->n; i++)
        if (reads_over(in->path[i], output))
            kv_die("the output %s would replace the input %s", output,
                   kv_input_name(in->path[i]));
    for (const struct kv_opt *o = opts; o->name; o++) {
        size_t n = 0;
        const char *const *folder = o->holds ? values(o, &n) : NULL;

        for (size_t i = 0; i < n; i++)
            if (joins(output, o, folder[i]))
                kv_die("the output %s would become a file of the %s %s", output,
                       o->name, folder[i]);
    }
}

void kv_opt_check_files(const struct kv_opt *opts, char *const *operand,
                        size_t n_operands)
{
    struct paths in = {0}, out = {0};

    for (size_t i = 0; opts[i].name; i++)
        add_option(&in, &out, opts, &opts[i]);
    for (size_t i = 0; i < n_operands; i++)
        add(&in, kv_strdup(operand[i]));
    for (size_t i = 0; i < out.n; i++) {
        check_output(out.path[i], &in, opts);
        for (size_t j = 0; j < i; j++)
            if (collide(out.path[i], out.path[j]))
                kv_die("two outputs are one file: %s and %s", out.path[j],
                       out.path[i]);
    }
    for (size_t i = 0; i < in.n; i++)
        if (is_standard(STDOUT_FILENO, in.path[i]))
            kv_die("standard output would replace the input %s", in.path[i]);
    clear(&in);
    clear(&out);
    kv_inputs_guard();
}

/* ---- shards -------------------------------------------------------------- */

/* Names that live as long as the program. */
static struct paths shard_names;

void kv_opt_name_shard(const struct kv_opt *opts, const struct kv_opt *shard)
{
    for (const struct kv_opt *o = opts; o->name; o++) {
        const char **path = o->kind == KV_OPT_STR ? o->at : NULL;
        const bool writes =
            o->file == KV_WRITES && !o->once && !(o->reads && *o->reads);
        const bool shared = shard->shares && *shard->shares &&
                            (const char *const *)path == shard->shared;

        if (!path || !*path || !writes || shared || is_special(*path))
            continue;
        add(&shard_names, kv_shard_path(shard->at, *path));
        *path = shard_names.path[shard_names.n - 1];
    }
}

/* ---- --help ------------------------------------------------------------ */

enum { FIRST = sizeof("Writes:") }; /* the column where a list begins */

/* Adds an option to a list, in lines of at most 80 columns.  note: a text in
 * brackets after the option, or NULL. */
static void put_file(size_t *column, const struct kv_opt *o, const char *note)
{
    enum { MAX = 80 };
    char item[128];
    int n = o->letter ? snprintf(item, sizeof(item), " -%c", o->letter)
                      : snprintf(item, sizeof(item), " --%s", o->name);

    if (note)
        n += snprintf(item + n, sizeof(item) - (size_t)n, " (%s)", note);
    if (*column > FIRST)
        putchar(',');
    if (*column + (size_t)n + 2 > MAX) { /* a comma, the line's end */
        printf("\n ");
        *column = 2;
    }
    fputs(item, stdout);
    *column += (size_t)n + 1;
}

/* The name of the flag that sets *at. */
static const char *switch_name(const struct kv_opt *opts, const bool *at)
{
    while (opts->at != at)
        opts++;
    return opts->name;
}

static void put_reads(const struct kv_opt *opts, const char *operand)
{
    size_t column = FIRST;
    char note[64];

    printf("Reads:");
    for (const struct kv_opt *o = opts; o->name; o++) {
        if (o->reads)
            snprintf(note, sizeof(note), "--%s", switch_name(opts, o->reads));
        else if (o->holds)
            snprintf(note, sizeof(note), "%s files", o->name);
        if (o->reads || o->holds)
            put_file(&column, o, note);
        else if (o->file == KV_READS)
            put_file(&column, o, o->named ? o->suffix : NULL);
    }
    if (operand)
        printf("%s%s%s", column > FIRST ? "," : "",
               column + strlen(operand) + 2 > 80 ? "\n  " : " ", operand);
    printf("\n");
}

static void put_writes(const struct kv_opt *opts)
{
    size_t column = FIRST;
    char note[64];

    printf("Writes:");
    for (const struct kv_opt *o = opts; o->name; o++) {
        if (o->beside)
            snprintf(note, sizeof(note), "FILE%s", o->suffix);
        if (o->file == KV_WRITES)
            put_file(&column, o, o->beside ? note : NULL);
    }
    printf("; never over inputs\n");
}

void kv_opt_put_files(const struct kv_opt *opts, const char *operand)
{
    putchar('\n');
    put_reads(opts, operand);
    put_writes(opts);
}
