/* The training of an exec scheme: the process gets the dump's tokens of a layer
 * and side, and answers f32 values.  The process gets these values back at each
 * OPEN. */
#ifndef KV_EXEC_TRAIN_H
#define KV_EXEC_TRAIN_H

#include "lib/scheme.h"

/* The table of a layer and side, f32 [n]. */
#define KV_EXEC_TABLES "tables"

extern const struct kv_training kv_exec_training;

#endif
