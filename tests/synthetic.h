/* Synthetic keys, values and queries with features of real ones (channels of
 * different size and offset), and dumps and calibrations made of them. */
#ifndef KV_SYNTHETIC_H
#define KV_SYNTHETIC_H

#include "lib/calib.h"
#include "lib/dump.h"

/* A shape with 2 layers, 4 heads, 2 KV heads, this head_dim, RoPE base 10000
 * and a bias of keys. */
struct kv_shape synthetic_shape(size_t head_dim);

/* x: [n][heads][head_dim]; the same for the same seed. */
void synthetic_rows(const struct kv_shape *s, size_t heads, uint64_t seed,
                    size_t n, float *x);

/* Writes a dump of n_windows windows of ctx tokens under folder; *path is the
 * caller's to free. */
void synthetic_dump(const struct kv_shape *s, size_t n_windows, size_t ctx,
                    const char *folder, char **path);

/* Calibrates the spec, or each member of a mixed one, on such a dump of 4
 * windows of 160 tokens (klt alone: of 1); NULL if the spec needs no
 * calibration.  For kv_calib_free(). */
struct kv_calib *synthetic_calib(const struct kv_shape *s,
                                 const struct kv_spec *spec,
                                 const char *folder);

/* Calibrates on n_windows windows (klt alone: on 1); 2 windows have enough
 * points for 256 centers. */
struct kv_calib *synthetic_calib_on(const struct kv_shape *s,
                                    const struct kv_spec *spec,
                                    size_t n_windows, const char *folder);

#endif
