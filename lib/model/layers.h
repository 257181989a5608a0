/* A model's weights on a backend: the one door from files to a forward pass.
 *
 * Matrices have the backend's weight type; vectors are f32 and stay.  The
 * matrices of one product (q, k, v; gate, up) form one matrix.  The embedding
 * stays in its file.  On the CPU experts stay there too, and are widened one by
 * one.  Layers that do not fit (on the CPU all layers) share the memory of one
 * layer: each layer's matrices replace the previous layer's.  On the CPU a
 * large head passes through memory in panels.
 *
 * On the CPU, products with only a few rows use the matrices in their file's
 * format, without widening them. */
#ifndef KV_MODEL_LAYERS_H
#define KV_MODEL_LAYERS_H

#include "kernels/backend.h"
#include "lib/model/tensor_map.h"

struct kv_layers;

/* w [n_layers] must stay valid.  Tensors of w without data become random
 * numbers; such weights all stay in memory.  free: free bytes of the backend's
 * memory, of which `beside` bytes are reserved for other uses.  large: read
 * ahead, and release pages after reading.  Fails without memory for one layer.
 */
int kv_layers_new(struct kv_layers **l, const struct kv_backend *b,
                  const struct kv_model_weights *w, size_t n_layers,
                  size_t free, size_t beside, bool large, struct kv_err *e);
void kv_layers_free(struct kv_layers *l); /* NULL is fine */

/* A layer's parts are valid from this call's return until the call for another
 * layer.  next: the layer to load after it; the same layer when there is none.
 */
int kv_layers_load(struct kv_layers *l, size_t layer, size_t next,
                   struct kv_err *e);

/* Makes the layer current, but only for its vectors and stored matrices;
 * nothing is loaded, so this cannot fail. */
void kv_layers_turn_to(struct kv_layers *l, size_t layer);

/* A part of the loaded layer; NULL if the model has no such part.  Not for
 * parts of experts. */
const void *kv_layers_matrix(const struct kv_layers *l, enum kv_part part);
const float *kv_layers_vector(const struct kv_layers *l, enum kv_part part);

/* The stored parts of the matrix that begins with this part; returns their
 * number.  Only on the host, like the next two functions. */
enum { KV_LAYERS_STORED = 4 };
size_t kv_layers_stored(const struct kv_layers *l, enum kv_part part,
                        struct kv_stored_part stored[KV_LAYERS_STORED]);

/* Rows [first, first + n) of a part in their stored form; used for the rows of
 * one expert, which are in one tensor. */
struct kv_stored_part kv_layers_stored_rows(const struct kv_layers *l,
                                            enum kv_part part, size_t first,
                                            size_t n);

/* Widens rows [first, first + n) of the part to `to`, in the backend's type. */
int kv_layers_widen(const struct kv_layers *l, enum kv_part part, size_t first,
                    size_t n, void *to, struct kv_err *e);

/* Releases the part's pages if the model is large. */
void kv_layers_release(const struct kv_layers *l, enum kv_part part);

/* Rows of the head in their stored form. */
struct kv_stored_part kv_layers_stored_head(const struct kv_layers *l,
                                            size_t first, size_t n);

/* The weights of the final norm; its bias, or NULL. */
const float *kv_layers_norm(const struct kv_layers *l);
const float *kv_layers_norm_bias(const struct kv_layers *l);

/* *head: rows [first, first + n) of the head, in place or in the workspace; n
 * at most kv_layers_panel(). */
size_t kv_layers_panel(const struct kv_layers *l);
int kv_layers_head(struct kv_layers *l, size_t first, size_t n,
                   struct kv_workspace *w, const void **head, struct kv_err *e);
const float *kv_layers_head_bias(const struct kv_layers *l); /* may be NULL */

/* The type of matrices on a device: f32 if any matrix is stored in f32, or some
 * are in f16 and others in bf16; bf16 if all are in bf16; else f16. */
enum kv_type kv_layers_type(const struct kv_model_weights *w, size_t n_layers);

/* Whether every matrix of the layers and the head is stored in bf16, or
 * quantized. */
bool kv_layers_coarse(const struct kv_model_weights *w, size_t n_layers);

#endif
