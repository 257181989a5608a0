#include "eval/serving/serving_costs.h"

#include <math.h>

static const double GIB = 1024. * 1024 * 1024;

double kv_serving_bits(const struct kv_serving_scheme *s, bool kept_sums)
{
    const double p = s->partition;

    if (s->bits > 0 || p == 0)
        return s->bits;

    const double sum = 8 * ceil((2 + ceil(log2(p))) / 8);

    return 2 + 32 / p + (kept_sums && s->se != 0 ? sum / p : 0);
}

static double replica_gpus(const struct kv_serving_parallel *p)
{
    return p->tp * p->pp;
}

static size_t replicas(const struct kv_serving_gpu *g,
                       const struct kv_serving_parallel *p)
{
    return (size_t)(g->instances * g->gpus / replica_gpus(p));
}

double kv_serving_token_bytes(const struct kv_serving_model *m)
{
    return m->layers * m->kv_heads * m->head_dim * 2 * 2;
}

static double weight_bytes(const struct kv_serving_model *m)
{
    return 2 * m->parameters;
}

/* The speed of int8 products relative to fp16 products. */
static double int8_speed(const struct kv_serving_gpu *g)
{
    return g->int8_tops > 0 ? g->int8_tops / g->fp16_tflops : 1;
}

struct kv_serving_coding kv_serving_coding(const struct kv_serving_model *m,
                                           const struct kv_measured_law *law,
                                           const struct kv_serving_parallel *at)
{
    const double layers = m->layers / at->pp;

    return (struct kv_serving_coding){layers * (law->fixed + law->request),
                                      layers * law->token};
}

/* Sets the times of quantizing and unpacking: the measured ones; without them,
 * quantizing takes a factor times the time to read the same KV in fp16. */
static void cost_coding(const struct kv_serving *s,
                        const struct kv_serving_scheme *scheme,
                        struct kv_cluster *c)
{
    const struct kv_serving_times *t = scheme->times;
    const double read = kv_serving_token_bytes(&s->model) /
                        (s->prefill_at.tp * s->prefill.memory_gbs * 1e9 *
                         s->set.decode.kv_share);
    struct kv_serving_coding code = {0};

    if (t && t->encode.rows)
        code = kv_serving_coding(&s->model, &t->encode, &s->prefill_at);
    else if (kv_serving_bits(scheme, false) < 16)
        code.token = read * s->set.prefill.quantize;
    c->quantize_fixed = code.fixed;
    c->quantize_token = code.token;
    if (t && t->unpacked) {
        code = kv_serving_coding(&s->model, &t->decode, &s->decode_at);
        c->unpack_fixed = code.fixed;
        c->unpack_token = code.token;
    }
}

/* Prefill of L tokens by N parameters: linear layers take 2 N operations per
 * token; attention takes 4 d L^2 per head and layer, half of them under a
 * causal mask. */
static void cost_prefill(const struct kv_serving *s,
                         const struct kv_serving_scheme *scheme,
                         struct kv_cluster *c)
{
    const struct kv_serving_model *m = &s->model;
    const bool int8 = scheme->partition > 0;
    const double flops = s->prefill_at.tp * s->prefill.fp16_tflops * 1e12 *
                         s->set.prefill.efficiency;
    const double attention = (s->set.prefill.causal != 0 ? 2 : 4) * m->layers *
                             m->heads * m->head_dim;

    c->prefill_fixed = s->set.prefill.fixed_s;
    c->prefill_token =
        2 * m->parameters * (int8 ? s->set.prefill.int8_linear : 1) / flops;
    c->prefill_square = attention / (flops * s->set.prefill.attention *
                                     (int8 ? int8_speed(&s->prefill) : 1));
    c->stages = s->set.prefill.overlap != 0 ? (size_t)s->prefill_at.pp : 1;
}

static void cost_transfer(const struct kv_serving *s,
                          const struct kv_serving_scheme *scheme,
                          struct kv_cluster *c)
{
    const double span = replica_gpus(&s->prefill_at) / s->prefill.gpus;
    const double nics = s->set.transfer.by_instance != 0 ? span : fmin(1, span);

    c->up = s->prefill.nic_gbits / 8 * 1e9 * s->prefill.nic_share * nics;
    c->down = s->decode.nic_gbits / 8 * 1e9 * s->set.transfer.sink_share *
              replica_gpus(&s->decode_at) / s->decode.gpus;
    c->transfer_fixed = s->set.transfer.fixed_s;
    c->sent =
        kv_serving_token_bytes(&s->model) * kv_serving_bits(scheme, false) / 16;
    c->layers = (size_t)s->model.layers;
    c->pipelined = s->set.transfer.pipelined != 0;
}

/* Vector operations of a decode step, in units of one dequantization of the
 * whole KV, 4 d L operations per head.  HACK's equation 4, partition by
 * partition, costs 9 M N + M Z per product of d channels, which is 18 d / p + 1
 * per token; without kept sums 2 d more. */
static double vector_work(const struct kv_serving_scheme *s, double d)
{
    if (s->partition == 0)
        return s->dequantize;
    return (18 * d / s->partition + 1) / (4 * d) + (s->se != 0 ? 0 : .5);
}

/* Uses measured times instead of the formula. */
static void measured_step(const struct kv_serving_model *m,
                          const struct kv_serving_times *times,
                          struct kv_cluster *c)
{
    const struct kv_measured_law *step = &times->step;
    struct kv_step_cost *t = &c->step;

    if (!isnan(times->rest))
        t->fixed = times->rest;
    if (step->rows) {
        const double fixed = t->fixed + m->layers * step->fixed;

        *t = (struct kv_step_cost){.fixed = fixed, .side = 1};
        t->per_request[KV_STEP_READ] = m->layers * step->request;
        t->per_token[KV_STEP_READ] = m->layers * step->token;
    }
    if (times->unpacked)
        c->kept = kv_serving_token_bytes(m);
}

static void cost_decode(const struct kv_serving *s,
                        const struct kv_serving_scheme *scheme,
                        struct kv_cluster *c)
{
    const struct kv_serving_model *m = &s->model;
    const double tp = s->decode_at.tp, p = scheme->partition;
    const double band = tp * s->decode.memory_gbs * 1e9;
    const double kept = kv_serving_bits(scheme, true);
    const double read =
        kv_serving_token_bytes(m) / (band * s->set.decode.kv_share);
    const double products =
        4 * m->heads * m->head_dim * m->layers /
        (tp * s->decode.fp16_tflops * 1e12 * s->set.decode.attention_share);
    /* V's open block is half full on average, and V is half of the KV.  The
     * block is kept in fp16, or quantized anew at every step. */
    const double open = p > 0 && scheme->rqe != 0 ? p / 2 * .5 : 0;
    const double anew = p > 0 && scheme->rqe == 0
                            ? s->set.decode.rqe_operations / 4 * p / 2
                            : 0;
    struct kv_step_cost *t = &c->step;

    *t = (struct kv_step_cost){.side = s->set.decode.side_by_side};
    t->fixed = s->set.decode.step_s * s->decode_at.pp +
               weight_bytes(m) / (band * s->set.decode.weights_share);
    t->per_token[KV_STEP_READ] = read * kept / 16;
    t->per_token[KV_STEP_PRODUCTS] =
        products / (p > 0 ? int8_speed(&s->decode) : 1);
    t->per_token[KV_STEP_VECTOR] =
        read * s->set.decode.dequantize * vector_work(scheme, m->head_dim);
    t->per_request[KV_STEP_READ] = read * open * (16 - kept) / 16;
    t->per_request[KV_STEP_PRODUCTS] = products * open * .5;
    t->per_request[KV_STEP_VECTOR] = read * s->set.decode.dequantize * anew;
    c->kept = kv_serving_token_bytes(m) * kept / 16;
    if (scheme->times)
        measured_step(m, scheme->times, c);
}

double kv_serving_replica_bytes(const struct kv_serving *s)
{
    return replica_gpus(&s->decode_at) * s->decode.memory_gib * GIB;
}

static double activations(const struct kv_serving *s)
{
    return s->set.memory.activations +
           s->set.memory.activations_a_token * s->mean_input;
}

double kv_serving_memory(const struct kv_serving *s)
{
    return activations(s) +
           weight_bytes(&s->model) / kv_serving_replica_bytes(s);
}

static int holds(const struct kv_serving_model *m,
                 const struct kv_serving_gpu *g,
                 const struct kv_serving_parallel *p, const char *side,
                 struct kv_err *e)
{
    const double room = replica_gpus(p) * g->memory_gib;

    if (!replicas(g, p))
        return kv_fail(
            e, "%s: a replica takes %g x %g GPUs, %g instances have %g", side,
            p->tp, p->pp, g->instances, g->instances * g->gpus);
    if (weight_bytes(m) / GIB > room)
        return kv_fail(e,
                       "%s: a replica of %g x %g GPUs has %g GiB, the weights "
                       "need %.4g",
                       side, p->tp, p->pp, room, weight_bytes(m) / GIB);
    return 0;
}

int kv_serving_cluster(const struct kv_serving *s,
                       const struct kv_serving_scheme *scheme,
                       struct kv_cluster *c, struct kv_err *e)
{
    if (holds(&s->model, &s->prefill, &s->prefill_at, "prefill", e) ||
        holds(&s->model, &s->decode, &s->decode_at, "decode", e))
        return -1;
    *c = (struct kv_cluster){
        .prefills =
            s->prefills ? s->prefills : replicas(&s->prefill, &s->prefill_at),
        .decodes =
            s->decodes ? s->decodes : replicas(&s->decode, &s->decode_at)};
    cost_prefill(s, scheme, c);
    cost_coding(s, scheme, c);
    cost_transfer(s, scheme, c);
    cost_decode(s, scheme, c);
    c->room = (s->set.memory.limit - kv_serving_memory(s)) *
              kv_serving_replica_bytes(s);
    if (c->room <= 0)
        return kv_fail(e,
                       "decode: weights and activations take %.3g of the "
                       "memory, memory.limit is %.3g: no room for caches",
                       kv_serving_memory(s), s->set.memory.limit);
    if (s->set.memory.gate == 0)
        c->room = INFINITY;
    return 0;
}

struct kv_serving_capacity kv_serving_capacity(const struct kv_serving *s,
                                               const struct kv_cluster *c,
                                               const struct kv_arrival *a,
                                               size_t n)
{
    const double room = isinf(c->room) ? kv_serving_replica_bytes(s) : c->room;
    double service = 0, kept = 0, sent = 0, work = 0, each = 0, request = 0;

    for (size_t i = 0; i < n; i++) {
        service +=
            (kv_cluster_prefill(c, a[i].in) + kv_cluster_quantize(c, a[i].in)) /
            (double)n;
        kept += (a[i].in + (double)a[i].out) * c->kept / (double)n;
        sent += a[i].in * c->sent / (double)n;
    }
    for (size_t p = 0; p < KV_STEP_PARTS; p++) {
        each += c->step.per_token[p];
        request += c->step.per_request[p];
    }

    const double slots = fmax(1, room / kept);

    for (size_t i = 0; i < n; i++)
        work += (a[i].out - 1.) *
                (c->step.fixed / slots +
                 (request + each * (a[i].in + a[i].out / 2.)) /
                     fmin(slots, c->step.side)) /
                (double)n;
    return (struct kv_serving_capacity){
        .prefill = (double)(c->prefills * c->stages) / service,
        .network = (double)c->prefills * c->up / sent,
        .decode = (double)c->decodes / work};
}
