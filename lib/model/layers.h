/* A model's weights on a backend: the one door from files to a forward pass.
 *
 * Matrices have the backend's weight type, vectors are f32 and stay; what is
 * one product (q, k, v; gate, up) is one matrix.  The embedding stays in its
 * file. Matrices of layers that do not fit, on the CPU of all, follow each
 * other through the memory of one; a large head passes through in panels there.
 *
 * On the CPU a few rows are multiplied by matrices as they lie in their file,
 * which widens none of them. */
#ifndef KV_MODEL_LAYERS_H
#define KV_MODEL_LAYERS_H

#include "kernels/backend.h"
#include "lib/model/tensor_map.h"

struct kv_layers;

/* w [n_layers] must stay; w's tensors without data become random numbers, and
 * all of them stay.  free: bytes of the backend's memory that are free now, of
 * which `beside` are for other things.  large: read ahead, and let go of what
 * was read.  Fails
 * without memory for one layer. */
int kv_layers_new(struct kv_layers **l, const struct kv_backend *b,
                  const struct kv_model_weights *w, size_t n_layers,
                  size_t free, size_t beside, bool large, struct kv_err *e);
void kv_layers_free(struct kv_layers *l); /* NULL is fine */

/* A layer's parts are good once this returns, until it is called for another
 * one.  next: will be loaded after it; the same, when none. */
int kv_layers_load(struct kv_layers *l, size_t layer, size_t next,
                   struct kv_err *e);

/* The same of its vectors and stored matrices alone; cannot fail. */
void kv_layers_turn_to(struct kv_layers *l, size_t layer);

/* The loaded layer's; NULL when the model has no such part. */
const void *kv_layers_matrix(const struct kv_layers *l, enum kv_part part);
const float *kv_layers_vector(const struct kv_layers *l, enum kv_part part);

/* As it is stored: what makes up the matrix that begins with this part, and how
 * many these are.  On the host alone, as the next two. */
enum { KV_LAYERS_STORED = 3 };
size_t kv_layers_stored(const struct kv_layers *l, enum kv_part part,
                        struct kv_stored_part stored[KV_LAYERS_STORED]);

/* Rows [first, first + n) of a part, as they are stored: of an expert, whose
 * rows are in one tensor. */
struct kv_stored_part kv_layers_stored_rows(const struct kv_layers *l,
                                            enum kv_part part, size_t first,
                                            size_t n);

/* The same of the head. */
struct kv_stored_part kv_layers_stored_head(const struct kv_layers *l,
                                            size_t first, size_t n);

/* The final one; its bias, or NULL. */
const float *kv_layers_norm(const struct kv_layers *l);
const float *kv_layers_norm_bias(const struct kv_layers *l);

/* Rows [first, first + n) of the head, n at most kv_layers_panel(): where they
 * lie, or in the workspace. */
size_t kv_layers_panel(const struct kv_layers *l);
int kv_layers_head(struct kv_layers *l, size_t first, size_t n,
                   struct kv_workspace *w, const void **head, struct kv_err *e);
const float *kv_layers_head_bias(const struct kv_layers *l); /* or NULL */

/* What a device holds matrices in: f32 where one is stored so, or some in f16
 * and others in bf16; bf16 where all are; else f16. */
enum kv_type kv_layers_type(const struct kv_model_weights *w, size_t n_layers);

#endif
