/* The decoding thread: jobs of a queue become answers of a generator. */
#ifndef KV_SERVE_DECODER_H
#define KV_SERVE_DECODER_H

#include "eval/generate.h"
#include "tools/serve/queue.h"

struct kv_decoding {
    struct kv_generation generation; /* without progress and ended */
    size_t memory; /* bytes of caches, each counted at its limit as
                    * kv_generate_cache_bytes() does; an answer whose cache is
                    * larger is alone */
};

/* Decodes until kv_queue_end() and its seconds, or an interrupt
 * (kv_catch_signals); jobs that are not over by then fail with 503.  A spec is
 * opened at its first job and stays open, up to a number of specs, the one used
 * longest ago giving way; what cannot run fails with 400. */
void kv_decode_queue(const struct kv_decoding *d, struct kv_queue *q);

#endif
