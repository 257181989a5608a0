/* The files that a table of options names. */
#ifndef KV_BASE_OPT_IMPL_H
#define KV_BASE_OPT_IMPL_H

#include "lib/base/opt.h"

/* Ends the program with a sentence when an output would replace an input or an
 * input folder's file, when two outputs are one file, also by different names,
 * or when an output's name cannot be written to.  Pipes and devices are
 * replaced by nothing.  Files that are read from then on are inputs until the
 * end (kv_inputs_guard). */
void kv_opt_check_files(const struct kv_opt *opts, char *const *operand,
                        size_t n_operands);

/* Outputs get the name of the option's shard. */
void kv_opt_name_shard(const struct kv_opt *opts, const struct kv_opt *shard);

/* A count of a KV_OPT_SIZE or KV_OPT_SIZES; else ends the program. */
size_t kv_opt_size(const struct kv_opt *o, const char *arg);

/* opt_lists.c.  A string of a list; the values of a KV_OPT_WORDS or
 * KV_OPT_SIZES, of which none may come again. */
void kv_opt_add_string(struct kv_strings *s, const char *item);
void kv_opt_add_values(const struct kv_opt *o, const char *arg);

/* Which options they are, for --help. */
void kv_opt_put_files(const struct kv_opt *opts, const char *operand);

#endif
