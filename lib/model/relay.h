/* A model whose layers run in several processes: this process runs some layers,
 * other processes run the layers before and after, and hidden states go from
 * one to the next.  Only for windows, on the CPU, without gradients. */
#ifndef KV_MODEL_RELAY_H
#define KV_MODEL_RELAY_H

#include "lib/model/model.h"

struct kv_relay {
    size_t first, end; /* layers [first, end) of all */
    /* receives n floats from the layers before; not called if first is 0 */
    int (*take)(void *arg, float *x, size_t n, struct kv_err *e);
    /* sends n floats to the layers after; not called after the last layer */
    int (*give)(void *arg, const float *x, size_t n, struct kv_err *e);
    void *arg;
};

/* After this call a pass runs only these layers.  If the last layer is not
 * among them, hidden has no meaning after a pass, and another process runs the
 * head.  The pass does not read weights of other layers. */
void kv_model_relay(struct kv_model *m, const struct kv_relay *r);

/* [*first, *end): the layers of part i of n, chosen so that all parts have
 * about equal bytes of weights; the last part includes the head.  Fails if
 * there are fewer layers than parts. */
int kv_model_split(const struct kv_model *m, size_t i, size_t n, size_t *first,
                   size_t *end, struct kv_err *e);

/* Bytes of weights, as stored, of layers [first, end), and of the head if the
 * last layer is among them. */
size_t kv_model_part_bytes(const struct kv_model *m, size_t first, size_t end);

#endif
