/* How a text was tokenized: runs that differ in this differ in their
 * numbers. */
#ifndef KV_READING_H
#define KV_READING_H

#include <stdbool.h>

/* Where BOS tokens stand; the numbers are those of files and tables. */
enum kv_bos { KV_BOS_NONE = 0, KV_BOS_TEXT = 1, KV_BOS_WINDOWS = 2 };

struct kv_reading {
    bool known;      /* false: a dump from before it was written down */
    enum kv_bos bos; /* before the text, or each of its windows */
    bool special; /* names of special tokens in it are those tokens, not text */
};

#endif
