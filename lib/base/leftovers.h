/* Temporary files that a killed run left beside its outputs. */
#ifndef KV_BASE_LEFTOVERS_H
#define KV_BASE_LEFTOVERS_H

/* The suffix that turns an output's name into its temporary file's name; the
 * last six characters are replaced (mkstemp). */
#define KV_TEMPORARY ".kvtools-XXXXXX"

/* Marks a temporary file as in use until this descriptor and its duplicates are
 * closed, also by the end of the program.  Returns 1 if another run has removed
 * the file before, else 0.  Also returns 0 if the file system has no locks;
 * leftovers then stay. */
int kv_leftover_hold(int fd);

/* Removes, with a note, the temporary files of this output that belong to this
 * user and that no program uses. */
void kv_leftovers_remove(const char *target);

#endif
