/* Words and numbers of kvdump's options; a wrong one ends the program with a
 * sentence. */
#ifndef KV_KVDUMP_WORDS_H
#define KV_KVDUMP_WORDS_H

#include "lib/dump.h"

/* Reads words separated by commas into bits: bit i for words[i]. */
unsigned kvdump_words(const char *option, const char *list,
                      const char *const *words);

enum kv_dtype kvdump_dtype(const char *name);

/* --layers: "3" or "3-5"; NULL is all.  some: the model also has layers without
 * attention, which do not count. */
void kvdump_layers(const char *text, size_t n_layers, bool some, size_t *first,
                   size_t *last);

#endif
