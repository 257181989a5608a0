/* Shared by the files of this folder: messages, and the kinds of ranks. */
#ifndef KV_TRANSFER_IMPL_H
#define KV_TRANSFER_IMPL_H

#include "eval/transfer/transfer.h"

enum kv_transfer_tag {
    KV_TAG_HELLO = 1, /* key, or a sentence */
    KV_TAG_CLOCK,     /* a question for the rank's clock; answered by its
                       * time */
    KV_TAG_PROMPT,    /* struct kv_msg_prompt */
    KV_TAG_PREFILLED, /* struct kv_msg_prefilled */
    KV_TAG_ASK,       /* struct kv_msg */
    KV_TAG_GRANT,     /* struct kv_msg */
    KV_TAG_LAYER,     /* struct kv_msg_layer, the layer's message or the
                       * state's */
    KV_TAG_AGAIN,     /* struct kv_msg_layer */
    KV_TAG_FIRST,     /* struct kv_msg_first */
    KV_TAG_LOADED,    /* struct kv_msg */
    KV_TAG_DONE,      /* struct kv_msg_done, int32_t ids [made] */
    KV_TAG_FAILED,    /* struct kv_msg_failed, a sentence */
    KV_TAG_DROP,      /* struct kv_msg */
    KV_TAG_END        /* a byte: whether ranks were lost; then a sentence, empty
                       * if all is well */
};

/* The beginning of every message about an answer.  Numbers have the machine's
 * byte order, since all ranks run one program on one kind of machine. */
struct kv_msg {
    uint32_t answer, attempt;
};

struct kv_msg_prompt {
    struct kv_msg of;
    uint64_t decode; /* the rank that decodes */
};

struct kv_msg_prefilled {
    struct kv_msg of;
    double begun, ready, ended; /* the prompt; its first layer */
    double encode;
};

struct kv_msg_layer {
    struct kv_msg of;
    uint64_t layer;
};

struct kv_msg_first {
    struct kv_msg of;
    int32_t id;
    uint32_t finish;
    uint64_t ended; /* 1: it is also the answer's last token */
};

struct kv_msg_done {
    struct kv_msg of;
    double granted, arrived, joined, ended, load;
    double code_bytes, wire_bytes;
    struct kv_bits bits;
    uint64_t again, made, finish;
};

struct kv_msg_failed {
    struct kv_msg of;
    uint64_t elsewhere; /* 1: another rank may make it */
};

/* Sends a message of n bytes and n_more after them. */
void kv_transfer_send(const struct kv_transfer *t, size_t to, int tag,
                      const void *head, size_t n, const void *more,
                      size_t n_more);
void kv_transfer_fail(const struct kv_transfer *t, struct kv_msg of,
                      bool elsewhere, const char *why);
/* The number of messages of an answer: one for each layer, and for a model with
 * layers without attention a last one with the state. */
size_t kv_transfer_layers(const struct kv_transfer *t);
/* Reads the head of m; false: m is too short and is ignored. */
bool kv_transfer_head(const struct kv_message *m, void *head, size_t n);

/* ---- a rank that runs prompts -------------------------------------------- */

struct kv_prefill_rank;

/* poll: called between layers and takes messages. */
struct kv_prefill_rank *
kv_prefill_rank_new(const struct kv_transfer *t, struct kv_transfer_job *job,
                    int (*poll)(void *arg, struct kv_err *e), void *arg);
void kv_prefill_rank_free(struct kv_prefill_rank *p); /* NULL is fine */
void kv_prefill_rank_take(struct kv_prefill_rank *p,
                          const struct kv_message *m);
/* Runs the next prompt; *ran: there was one, and room for its messages. */
int kv_prefill_rank_step(struct kv_prefill_rank *p, bool *ran,
                         struct kv_err *e);

/* ---- a rank that decodes ------------------------------------------------- */

struct kv_decode_rank;

struct kv_decode_rank *kv_decode_rank_new(const struct kv_transfer *t,
                                          struct kv_transfer_job *job,
                                          size_t n);
void kv_decode_rank_free(struct kv_decode_rank *d); /* NULL is fine */
/* If it takes m's bytes, it sets them to NULL. */
void kv_decode_rank_take(struct kv_decode_rank *d, struct kv_message *m);
/* Loads arrived layers, and decodes a token of each answer; *ran: there was
 * something to do. */
int kv_decode_rank_step(struct kv_decode_rank *d, bool *ran, struct kv_err *e);

/* ---- rank 0, beside its prompts ------------------------------------------ */

struct kv_dispatcher;

/* offset: [ranks], the seconds by which their clocks are ahead of rank 0's. */
struct kv_dispatcher *kv_dispatcher_new(const struct kv_transfer *t,
                                        struct kv_transfer_job *job, size_t n,
                                        const double *offset);
void kv_dispatcher_free(struct kv_dispatcher *d); /* NULL is fine */
int kv_dispatcher_take(struct kv_dispatcher *d, const struct kv_message *m,
                       struct kv_err *e);
/* Dispatches arrived answers, and again the answers of lost ranks. */
int kv_dispatcher_step(struct kv_dispatcher *d, struct kv_err *e);
bool kv_dispatcher_done(const struct kv_dispatcher *d);
/* Whether a rank was lost; messages from a lost rank are ignored. */
bool kv_dispatcher_lost(const struct kv_dispatcher *d, size_t rank);
/* Seconds until the next answer arrives, 1 at most. */
double kv_dispatcher_pause(const struct kv_dispatcher *d);

#endif
