/* Computes times and bytes of a cluster from shapes, data sheets (rooflines
 * with efficiencies) and HACK's counts of operations. */
#ifndef KV_SERVING_COSTS_H
#define KV_SERVING_COSTS_H

#include "eval/serving/cluster.h"
#include "eval/serving/measured_rows.h"
#include "eval/serving/serving_params.h"

/* Measured times of a scheme on one GPU of a replica.  If a fit has no rows, or
 * rest is NaN, the parameters' formula is used. */
struct kv_serving_times {
    struct kv_measured_law step;           /* attention of one layer */
    double rest;                           /* s of a step without attention */
    struct kv_measured_law encode, decode; /* encoding, decoding one layer's
                                            * tokens */
    bool unpacked; /* decoded on arrival, so steps read fp16 */
};

/* A setting to simulate: a model on prefill and decode instances. */
struct kv_serving {
    struct kv_serving_model model;
    struct kv_serving_gpu prefill, decode;
    struct kv_serving_parallel prefill_at, decode_at;
    struct kv_serving_settings set;
    size_t prefills, decodes; /* numbers of replicas; 0: as many as the
                               * instances allow */
    double mean_input;        /* tokens that the memory for activations is sized
                               * for */
};

/* Fails if a replica cannot hold the weights, if an instance type has too few
 * GPUs for one replica, and if there is no room for caches. */
int kv_serving_cluster(const struct kv_serving *s,
                       const struct kv_serving_scheme *scheme,
                       struct kv_cluster *c, struct kv_err *e);

/* Seconds to encode and to decode tokens of all layers: fixed + token L.  The
 * stages of a pipeline work side by side, each on its own layers. */
struct kv_serving_coding {
    double fixed, token;
};
struct kv_serving_coding
kv_serving_coding(const struct kv_serving_model *m,
                  const struct kv_measured_law *law,
                  const struct kv_serving_parallel *at);

/* The size of a token's fp16 cache in all layers, bytes. */
double kv_serving_token_bytes(const struct kv_serving_model *m);

/* Bits per stored value.  HACK's are computed from its partition: codes of 2
 * bits, minimum and step in fp16, and with kept_sums the sums, in whole
 * bytes. */
double kv_serving_bits(const struct kv_serving_scheme *s, bool kept_sums);

/* The share of the decode replica's memory that weights and activations
 * take. */
double kv_serving_memory(const struct kv_serving *s);
double kv_serving_replica_bytes(const struct kv_serving *s);

/* The requests/s that each part of the cluster can serve if requests are like
 * a[n]; decoding is computed with full memory. */
struct kv_serving_capacity {
    double prefill, network, decode;
};
struct kv_serving_capacity kv_serving_capacity(const struct kv_serving *s,
                                               const struct kv_cluster *c,
                                               const struct kv_arrival *a,
                                               size_t n);

#endif
