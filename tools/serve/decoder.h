/* The decoding thread: jobs of a queue become answers of a generator. */
#ifndef KV_SERVE_DECODER_H
#define KV_SERVE_DECODER_H

#include "eval/generate.h"
#include "tools/serve/queue.h"

struct kv_decoding {
    struct kv_generation generation; /* without progress and ended */
    size_t memory; /* limit for the bytes of caches, each counted by
                    * kv_generate_cache_bytes() at its full length; an answer
                    * with a larger cache runs alone */
};

/* Decodes until the seconds of kv_queue_end() are over, or an interrupt
 * (kv_catch_signals); jobs that are not over by then fail with 503.  A spec is
 * opened at its first job and stays open until too many are open; then the
 * unused spec that was used longest ago is closed.  Jobs that cannot run fail
 * with 400. */
void kv_decode_queue(const struct kv_decoding *d, struct kv_queue *q);

#endif
