/* Temporary files that a killed run left beside its outputs. */
#ifndef KV_BASE_LEFTOVERS_H
#define KV_BASE_LEFTOVERS_H

/* Behind an output's name, the name of its temporary file; the last six are
 * replaced (mkstemp). */
#define KV_TEMPORARY ".kvtools-XXXXXX"

/* Marks a temporary file as in use until this descriptor and its duplicates are
 * closed, also by the end of the program.  Returns 1 when another run took the
 * file away before, else 0: also where the file system has no locks, and
 * leftovers stay. */
int kv_leftover_hold(int fd);

/* Removes, with a note, the temporary files of this output that are this user's
 * and in no program's use. */
void kv_leftovers_remove(const char *target);

#endif
