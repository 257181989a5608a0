/* How a text was tokenized.  Runs that read a text differently have different
 * numbers. */
#ifndef KV_READING_H
#define KV_READING_H

#include <stdbool.h>

/* Where BOS tokens stand.  Files and tables store these numbers. */
enum kv_bos { KV_BOS_NONE = 0, KV_BOS_TEXT = 1, KV_BOS_WINDOWS = 2 };

struct kv_reading {
    bool known;      /* false: an older dump, which does not record it */
    enum kv_bos bos; /* before the text, or each of its windows */
    bool special; /* names of special tokens are read as the tokens, not text */
};

#endif
