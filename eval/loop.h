/* Attention with the quantized cache in the loop, for whole windows.
 *
 * It relies on one fact (codec.h, the law): a quantized token's codes do not
 * depend on when the token was quantized.  So a window is encoded once, and
 * each query reads each key and value in the form it had at the query's time
 * (kernels/attend.h).  Schemes with an oracle of their own, codecs with history
 * and policies that drop tokens go through struct kv_seq step by step instead.
 * Layered codecs are encoded layer by layer, on top of the layers below; codes
 * of all layers together are made from an earlier pass at full precision
 * (kv_loop_gather()).  A test compares both ways with a literal loop of append
 * and attend. */
#ifndef KV_LOOP_H
#define KV_LOOP_H

#include "eval/prefill.h"
#include "eval/protocol.h"
#include "lib/calib.h"
#include "lib/model/model.h"
#include "lib/seq/bits.h"

struct kv_loop;

/* spec is fitted and passed through kv_protocol_spec().  calib may be NULL if
 * the scheme needs none; it and b must outlive the loop.  b: the model's
 * backend, or NULL.  Layers whose codecs have kernels on b are encoded and
 * decoded there, to the same bits, and layers that store f32 unchanged attend
 * to these values on b; keys and values of other layers come to the CPU, as all
 * do if b is the CPU's or NULL. */
int kv_loop_new(struct kv_loop **l, const struct kv_spec *spec,
                const struct kv_shape *shape, const struct kv_calib *calib,
                const struct kv_protocol *protocol, uint64_t seed,
                const struct kv_backend *b, struct kv_err *e);
void kv_loop_free(struct kv_loop *l);

/* Fails, with the reason, unless the spec's policy can run in windows of n
 * tokens and its patterns have the calibration they need.  kv_loop_attention()
 * assumes both. */
int kv_loop_takes(const struct kv_loop *l, size_t n, struct kv_err *e);

/* Makes later passes perturb keys and values (eval/loop_jitter.h); repeat, from
 * 1 on, selects the random numbers.  0 (default): no perturbation.  Only on the
 * CPU. */
void kv_loop_jitter(struct kv_loop *l, size_t repeat);

/* Attention for kv_model_forward() on whole windows of `length` tokens.  With a
 * policy, a window may also run in several calls: the first call has the whole
 * prompt, and each call ends at the end of a step.  Every window is its own
 * sequence that starts from the same seed.  first_window: the number of the
 * group's first window, for error sentences.  With layered codecs all windows
 * of a call pass a layer together (no kv_model_forward_file()). */
struct kv_attention kv_loop_attention(struct kv_loop *l, size_t first_window,
                                      size_t length);

/* Attention at full precision that keeps the keys and values of all layers and
 * codes them together.  For specs with kv_spec_spans(), kv_model_forward() runs
 * on the windows twice: first with this attention, then with
 * kv_loop_attention(). */
struct kv_attention kv_loop_gather(struct kv_loop *l, size_t first_window,
                                   size_t length);

/* The cost of prompt attention so far.  Protocols all and llama.cpp count all
 * queries, prefill:P the prompt's.  Zeros for other kinds of attention: on
 * codes, on a device, token by token, or under a policy that drops tokens. */
struct kv_prefill kv_loop_prefill(const struct kv_loop *l);

/* The bits stored at the end of all windows so far. */
struct kv_bits kv_loop_bits(const struct kv_loop *l);

#endif
