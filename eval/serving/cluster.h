/* A cluster of prefill and decode replicas under a stream of requests, by
 * discrete events:
 *
 *   arrive -> queue -> prefill, quantize -> (wait in CPU memory) -> transfer
 *          -> unpack -> decode
 *
 * A request goes to the prefill replica with the fewest tokens, then to the
 * decode replica with the fewest among those that have room for it; ties break
 * at random.  Without room it waits in the prefill instance's CPU memory, first
 * come first served. */
#ifndef KV_SERVING_CLUSTER_H
#define KV_SERVING_CLUSTER_H

#include "eval/serving/arrivals.h"
#include "eval/serving/batching.h"

#include <stdbool.h>

struct kv_cluster {
    size_t prefills, stages,
        decodes; /* replicas; stages of a prefill replica */
    /* Prefill of L tokens takes fixed + token L + square L^2 seconds. */
    double prefill_fixed, prefill_token, prefill_square;
    /* Quantizing L tokens, in the same stages, takes fixed + token L seconds;
     * so does unpacking (decoding the arrived cache), if attention does not
     * read codes. */
    double quantize_fixed, quantize_token, unpack_fixed, unpack_token;
    double up, down;       /* bytes/s of a prefill and of a decode replica */
    double transfer_fixed; /* s */
    double sent, kept;     /* bytes per token */
    size_t layers;         /* a pipelined transfer sends the last layer after
                            * prefill */
    bool pipelined;        /* layers are sent while others are computed */
    struct kv_step_cost step;
    double room; /* a decode replica's memory for caches, bytes */
};

struct kv_request {
    struct kv_arrival is;
    double service;   /* s of prefill and quantizing */
    double quantize;  /* the seconds of quantizing in `service` */
    double prefilled; /* s: when prefill and quantizing ended */
    double sent;      /* when the transfer began */
    double landed;    /* when the transfer ended */
    double unpacked;  /* when the arrived codes were decoded */
    double joined;    /* when its first decode step began */
    double end;
    double part[KV_STEP_PARTS]; /* s of decoding */
    uint32_t prefill, decode;
    bool reserved, done;
};

/* Sums over a run. */
struct kv_cluster_use {
    double end;                      /* s: the last event */
    double prefill, network, decode; /* share of time in use, up to 1: means
                                      * over replicas */
    double batch;                    /* requests per step */
    double peak;                     /* bytes of caches on the fullest
                                      * replica */
    double waiting;                  /* most requests in CPU memory at a time */
    double bytes_asked, bytes_sent, bytes_received, bytes_left;
};

/* Seconds of prefill, and of quantizing after it. */
double kv_cluster_prefill(const struct kv_cluster *c, double tokens);
double kv_cluster_quantize(const struct kv_cluster *c, double tokens);

/* request: [n], with `is` filled, in order of time; the other members are
 * written.  seed: for breaking ties.  Fails if a single request has no room on
 * a decode replica. */
int kv_cluster_run(const struct kv_cluster *c, uint64_t seed,
                   struct kv_request *request, size_t n,
                   struct kv_cluster_use *use, struct kv_err *e);

#endif
