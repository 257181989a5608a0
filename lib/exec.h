/* exec: the spec of a scheme whose codec is another process.
 *
 *   exec[:letters]{,word},cmd=COMMAND
 *
 *   -s "exec:b2g32,round=nearest,cmd=python3 my.py --fast"
 *
 * cmd= is the last word: a shell's command up to the text's end, or, for the
 * keys of K-exec:.../V-..., up to "/V-".  It may hold spaces, quotes and
 * commas, and braces in it are no sweep.  Letters and words before it are the
 * process's own: any letter with a number, any word with a number or a text,
 * and words alone, for yes and no.  K-b4/V-b2 and K-word= set one side.  All of
 * them, but for r, s, k_bias and massive, which every scheme has, are handed on
 * when a codec opens (docs/exec.md).  timeout=SECONDS is read here too.
 *
 * Nothing runs a command that the program's command line does not name:
 * parsing fails on others. */
#ifndef KV_EXEC_H
#define KV_EXEC_H

#include "lib/base/err.h"
#include "lib/scheme.h"

struct kv_exec_pool;

/* Specs are copied by value, so what they point to is kept until the program
 * ends: one for each command and list of parameters. */
struct kv_exec {
    struct kv_scheme scheme; /* with these parameters */
    const char *command;
    struct kv_exec_pool *pool; /* of the command's processes, one for all of
                                * its specs */
    struct kv_param param[KV_MAX_PARAMS + 1];
};

/* What all of them share (lib/schemes/exec.c), and the name in texts; it is in
 * no list of schemes. */
extern const struct kv_scheme kv_scheme_exec;

/* The scheme's exec, NULL of any other scheme. */
const struct kv_exec *kv_exec_of(const struct kv_scheme *k);

/* Reads what follows the name.  *words: the letters and words before the
 * command, the caller's to free.  Fails without a command, on one that the
 * command line does not name, and on what can be no parameter. */
int kv_exec_read(const struct kv_scheme **k, const char *rest, char **words,
                 struct kv_err *e);

/* After the parameters are set: fails where one side lacks one. */
int kv_exec_check(const struct kv_spec *s, struct kv_err *e);

/* The command that begins first in a text of specs, NULL without one; *end: its
 * end. */
const char *kv_exec_command(const char *text, const char **end);

/* The texts' commands may be run: only for specs of the command line. */
void kv_exec_allow(const char *const *texts, size_t n);

#endif
