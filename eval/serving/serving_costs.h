/* Times and bytes of a cluster, from shapes and data sheets (rooflines with
 * efficiencies) and HACK's counts of operations. */
#ifndef KV_SERVING_COSTS_H
#define KV_SERVING_COSTS_H

#include "eval/serving/cluster.h"
#include "eval/serving/serving_params.h"

/* One setting: a model on prefill and decode instances. */
struct kv_serving {
    struct kv_serving_model model;
    struct kv_serving_gpu prefill, decode;
    struct kv_serving_parallel prefill_at, decode_at;
    struct kv_serving_settings set;
    size_t prefills, decodes; /* replicas; 0: what the instances make */
    double mean_input;        /* tokens, of activations */
};

/* Fails when a replica cannot hold the weights, when an instance type has too
 * few GPUs for one replica, and when there is no room for caches. */
int kv_serving_cluster(const struct kv_serving *s,
                       const struct kv_serving_scheme *scheme,
                       struct kv_cluster *c, struct kv_err *e);

/* Bits of a stored value; HACK's from its partition: codes of 2 bits, minimum
 * and step in fp16, and with kept_sums the sums, whose size is whole bytes. */
double kv_serving_bits(const struct kv_serving_scheme *s, bool kept_sums);

/* Share of the decode replica's memory: weights and activations. */
double kv_serving_memory(const struct kv_serving *s);
double kv_serving_replica_bytes(const struct kv_serving *s);

/* Requests/s that each part can take, of requests like a[n]; decode with its
 * memory full of requests. */
struct kv_serving_capacity {
    double prefill, network, decode;
};
struct kv_serving_capacity kv_serving_capacity(const struct kv_serving *s,
                                               const struct kv_cluster *c,
                                               const struct kv_arrival *a,
                                               size_t n);

#endif
