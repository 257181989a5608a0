/* A model of which this process runs some layers; others run those before and
 * after them, and hidden states go from one to the next.  For windows alone,
 * on the CPU, without gradients. */
#ifndef KV_MODEL_RELAY_H
#define KV_MODEL_RELAY_H

#include "lib/model/model.h"

struct kv_relay {
    size_t first, end; /* of all layers */
    /* n floats from the layers before; not called where first is 0 */
    int (*take)(void *arg, float *x, size_t n, struct kv_err *e);
    /* n floats to the layers after; not called of the last layer */
    int (*give)(void *arg, const float *x, size_t n, struct kv_err *e);
    void *arg;
};

/* From here on a pass runs these layers.  Where they are not the last, what it
 * leaves in hidden has no meaning, and the head is another's.  Weights of other
 * layers are not read again. */
void kv_model_relay(struct kv_model *m, const struct kv_relay *r);

/* The layers of part i of n, so that parts have about as many bytes of weights,
 * the head's with the last.  Fails where there are fewer layers than parts. */
int kv_model_split(const struct kv_model *m, size_t i, size_t n, size_t *first,
                   size_t *end, struct kv_err *e);

/* Bytes of weights, as stored, of layers [first, end), and of the head where
 * the last is among them. */
size_t kv_model_part_bytes(const struct kv_model *m, size_t first, size_t end);

#endif
