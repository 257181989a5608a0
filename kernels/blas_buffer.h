/* OpenBLAS allocates one buffer per concurrent caller at first use and keeps
 * it; when memory runs out, it retries forever.  Code calls OpenBLAS between
 * these two functions, which end the program when memory runs out. */
#ifndef KV_BLAS_BUFFER_H
#define KV_BLAS_BUFFER_H

void kv_blas_enter(void);
void kv_blas_leave(void);

#endif
