/* OpenBLAS allocates one buffer per concurrent caller at first use and keeps
 * it; when memory is out, it retries forever.  Code calls OpenBLAS between
 * these two functions, which end the program in that case. */
#ifndef KV_BLAS_BUFFER_H
#define KV_BLAS_BUFFER_H

void kv_blas_enter(void);
void kv_blas_leave(void);

#endif
