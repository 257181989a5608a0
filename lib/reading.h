/* How a text was tokenized: runs that differ in this differ in their
 * numbers. */
#ifndef KV_READING_H
#define KV_READING_H

#include <stdbool.h>

struct kv_reading {
    bool known;   /* false: a dump from before it was written down */
    bool bos;     /* a BOS precedes the text */
    bool special; /* names of special tokens in it are those tokens, not text */
};

#endif
