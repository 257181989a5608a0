/* CUDA devices, if the machine has any.  One is in use at a time, and all work
 * is in one stream unless a second is requested.  Memory running out is an
 * error: a sweep goes on. */
#ifndef KV_CUDA_RUNTIME_H
#define KV_CUDA_RUNTIME_H

#include "lib/base/err.h"

#include <stddef.h>

struct kv_device {
    char name[256];      /* "NVIDIA H200" */
    int major, minor;    /* compute capability */
    size_t memory, free; /* bytes */
    size_t multiprocessors;
    size_t shared; /* bytes of shared memory that a block can have */
    size_t l2;     /* bytes of the L2 cache */
};

#ifdef __cplusplus
extern "C" {
#endif

/* Selects device `index` of the CUDA runtime.  Fails, with the reason, if this
 * build has no CUDA, the machine has no driver or device, the index is too
 * high, or the device is older than this build's kernels. */
int kv_device_cuda(size_t index, struct kv_device *d, struct kv_err *e);

/* Whether expensive operations with a device version, k-means for one, run on
 * the device; results are the same bits as on the CPU.  A tool's option sets it
 * once. */
void kv_device_offload(int on);
int kv_device_offloads(void);

/* Fails naming the bytes needed and the bytes free. */
int kv_device_alloc(void **p, size_t bytes, struct kv_err *e);
void kv_device_free(void *p); /* NULL is fine */

/* These wait for all earlier launches and report their errors. */
int kv_device_upload(void *to, const void *from, size_t bytes,
                     struct kv_err *e);
/* kv_device_upload() of `rows` rows of n bytes, which lie to_row bytes apart
 * there and n bytes apart here. */
int kv_device_upload_rows(void *to, size_t to_row, const void *from, size_t n,
                          size_t rows, struct kv_err *e);
int kv_device_download(void *to, const void *from, size_t bytes,
                       struct kv_err *e);
int kv_device_zero(void *p, size_t bytes, struct kv_err *e);
int kv_device_copy(void *to, const void *from, size_t bytes, struct kv_err *e);

/* A second stream: its launches start after all launches before
 * kv_device_fork() and run beside the first stream's.  Launches in the first
 * stream after kv_device_join() wait for the second. */
int kv_device_fork(void **stream, struct kv_err *e);
int kv_device_join(void *stream, struct kv_err *e);

/* Seconds of each of reps calls of once(arg), which only launches, after
 * warmup untimed ones.  Before each call, memory of eight times the L2 cache is
 * read, so that no run finds its data cached or has to wait for another run's
 * writes. */
int kv_device_time(int (*once)(void *arg, struct kv_err *e), void *arg,
                   size_t warmup, size_t reps, double *seconds,
                   struct kv_err *e);

/* Bytes a second that kernels read (read), and that the runtime copies within
 * the device (copy; read and written bytes both count).  Medians over 8 GiB, so
 * that the start and the end of a kernel are below 1 %, or over a quarter of
 * the free memory if that is less. */
int kv_device_bandwidth(const struct kv_device *d, double *read, double *copy,
                        struct kv_err *e);

#ifdef __cplusplus
}
#endif

#endif
