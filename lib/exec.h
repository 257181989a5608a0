/* exec: the spec of a scheme whose codec is another process.
 *
 *   exec[:letters]{,word},cmd=COMMAND
 *
 *   -s "exec:b2g32,round=nearest,cmd=python3 my.py --fast"
 *
 * cmd= is the last word.  Its value is a shell command up to the text's end or,
 * for the keys of K-exec:.../V-..., up to "/V-".  It may hold spaces, quotes
 * and commas, and braces in it are no sweep.  Letters and words before it are
 * the process's own: any letter with a number, any word with a number or a
 * text, and words alone, for yes and no.  K-b4/V-b2 and K-word= set one side.
 * All of them are passed to the process when a codec opens (docs/exec.md),
 * except r, s, k_bias and massive, which every scheme has.  timeout=SECONDS is
 * read here too.
 *
 * A command runs only if the program's command line names it; parsing fails on
 * any other command. */
#ifndef KV_EXEC_H
#define KV_EXEC_H

#include "lib/base/err.h"
#include "lib/scheme.h"

struct kv_exec_pool;

/* Specs are copied by value, so this object, one for each command and list of
 * parameters, lives until the program ends. */
struct kv_exec {
    struct kv_scheme scheme; /* with these parameters */
    const char *command;
    struct kv_exec_pool *pool; /* the command's processes, shared by all its
                                * specs */
    struct kv_param param[KV_MAX_PARAMS + 1];
};

/* The hooks that all exec schemes share (lib/schemes/exec.c) and their name in
 * specs; it is in no list of schemes. */
extern const struct kv_scheme kv_scheme_exec;

/* The struct kv_exec that holds this scheme; NULL for any other scheme. */
const struct kv_exec *kv_exec_of(const struct kv_scheme *k);

/* Reads a spec's text after the name.  *words: the letters and words before the
 * command, the caller's to free.  Fails if there is no command, if the command
 * line does not name it, and on a part that cannot be a parameter. */
int kv_exec_read(const struct kv_scheme **k, const char *rest, char **words,
                 struct kv_err *e);

/* Called after the parameters are set; fails if one side lacks a parameter. */
int kv_exec_check(const struct kv_spec *s, struct kv_err *e);

/* The first command in a text of specs, or NULL if there is none; *end: the
 * command's end. */
const char *kv_exec_command(const char *text, const char **end);

/* Allows the commands of these texts to run; called only for specs of the
 * command line. */
void kv_exec_allow(const char *const *texts, size_t n);

#endif
