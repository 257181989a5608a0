/* OpenBLAS works in a buffer for each caller at a time, which it makes when it
 * is first wanted and keeps; where there is no memory for it, it asks for ever.
 * A call of it stands between these two, which end the program before that. */
#ifndef KV_BLAS_BUFFER_H
#define KV_BLAS_BUFFER_H

void kv_blas_enter(void);
void kv_blas_leave(void);

#endif
