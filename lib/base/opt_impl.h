/* The files that a table of options names. */
#ifndef KV_BASE_OPT_IMPL_H
#define KV_BASE_OPT_IMPL_H

#include "lib/base/opt.h"

/* Ends the program with a sentence when an output would replace an input or an
 * input folder's file, when two outputs are one file, also by different names,
 * or when an output's name cannot be written to.  Pipes and devices are never
 * replaced.  Files that are read later stay inputs until the end
 * (kv_inputs_guard). */
void kv_opt_check_files(const struct kv_opt *opts, char *const *operand,
                        size_t n_operands);

/* Renames every output for the shard that the option `shard` has. */
void kv_opt_name_shard(const struct kv_opt *opts, const struct kv_opt *shard);

/* Reads the count of a KV_OPT_SIZE or KV_OPT_SIZES, or ends the program. */
size_t kv_opt_size(const struct kv_opt *o, const char *arg);

/* opt_lists.c.  Adds a string to a list; adds the values of a KV_OPT_WORDS or
 * KV_OPT_SIZES, which must all be different. */
void kv_opt_add_string(struct kv_strings *s, const char *item);
void kv_opt_add_values(const struct kv_opt *o, const char *arg);

/* Prints for --help which options and operands name files that are read or
 * written. */
void kv_opt_put_files(const struct kv_opt *opts, const char *operand);

#endif
