#include "kernels/cuda/read_all.cuh"
#include "kernels/cuda/runtime.h"

#include <cuda_runtime.h>
#include <stdio.h>

/* The oldest compute capability that kernels are built for. */
enum { OLDEST_MAJOR = 8 };

/* The device of the process; the runtime's own is per thread. */
static int in_use = -1;

/* Call before anything else, since the calling thread may be a new one. */
static void bind(void)
{
    if (in_use >= 0)
        cudaSetDevice(in_use);
}

static int fail(struct kv_err *e, const char *what, cudaError_t rc)
{
    return kv_fail(e, "%s: %s", what, cudaGetErrorString(rc));
}

/* Fails with the reason of cudaGetDeviceCount() for having no device. */
static int fail_count(struct kv_err *e, cudaError_t rc)
{
    int driver = 0;

    if (rc == cudaErrorNoDevice)
        return kv_fail(e, "this machine has no NVIDIA GPU, or "
                          "CUDA_VISIBLE_DEVICES hides it");
    if (rc != cudaErrorInsufficientDriver)
        return fail(e, "no CUDA device", rc);
    if (cudaDriverGetVersion(&driver) != cudaSuccess || !driver)
        return kv_fail(e, "this machine has no NVIDIA driver");
    return kv_fail(e,
                   "the NVIDIA driver is too old: it is for CUDA %d.%d, this "
                   "build for %d.%d",
                   driver / 1000, driver % 1000 / 10, CUDART_VERSION / 1000,
                   CUDART_VERSION % 1000 / 10);
}

extern "C" int kv_device_cuda(size_t index, struct kv_device *d,
                              struct kv_err *e)
{
    struct cudaDeviceProp p;
    int n = 0;
    cudaError_t rc = cudaGetDeviceCount(&n);

    if (rc != cudaSuccess)
        return fail_count(e, rc);
    if (index >= (size_t)n)
        return kv_fail(
            e, "no CUDA device %zu: this machine has %d, counted from 0", index,
            n);
    rc = cudaGetDeviceProperties(&p, (int)index);
    if (rc == cudaSuccess)
        rc = cudaSetDevice((int)index);
    if (rc == cudaSuccess)
        rc = cudaMemGetInfo(&d->free, &d->memory);
    if (rc != cudaSuccess)
        return kv_fail(e, "cannot open CUDA device %zu: %s", index,
                       cudaGetErrorString(rc));
    snprintf(d->name, sizeof(d->name), "%s", p.name);
    d->major = p.major;
    d->minor = p.minor;
    d->multiprocessors = (size_t)p.multiProcessorCount;
    d->shared = p.sharedMemPerBlockOptin;
    d->l2 = (size_t)p.l2CacheSize;
    if (d->major < OLDEST_MAJOR)
        return kv_fail(e,
                       "CUDA device %zu, %s, has compute capability %d.%d; "
                       "kernels are built for %d.0 and later",
                       index, d->name, d->major, d->minor, OLDEST_MAJOR);
    in_use = (int)index;
    return 0;
}

static int offloads;

extern "C" void kv_device_offload(int on)
{
    offloads = on;
}

extern "C" int kv_device_offloads(void)
{
    return offloads;
}

extern "C" int kv_device_alloc(void **p, size_t bytes, struct kv_err *e)
{
    size_t free = 0, memory = 0;
    cudaError_t rc;

    bind();
    rc = cudaMalloc(p, bytes ? bytes : 1);
    if (rc == cudaSuccess)
        return 0;
    *p = NULL;
    cudaGetLastError(); /* not the next launch's error */
    if (rc != cudaErrorMemoryAllocation)
        return fail(e, "cudaMalloc", rc);
    cudaMemGetInfo(&free, &memory);
    return kv_fail(e, "not enough device memory: %zu bytes needed, %zu free",
                   bytes, free);
}

extern "C" void kv_device_free(void *p)
{
    cudaFree(p);
}

static int copy(void *to, const void *from, size_t bytes, cudaMemcpyKind kind,
                struct kv_err *e)
{
    cudaError_t rc;

    bind();
    rc = cudaMemcpy(to, from, bytes, kind);
    return rc == cudaSuccess ? 0 : fail(e, "cudaMemcpy", rc);
}

extern "C" int kv_device_upload(void *to, const void *from, size_t bytes,
                                struct kv_err *e)
{
    return copy(to, from, bytes, cudaMemcpyHostToDevice, e);
}

extern "C" int kv_device_upload_rows(void *to, size_t to_row, const void *from,
                                     size_t n, size_t rows, struct kv_err *e)
{
    cudaError_t rc;

    bind();
    rc = cudaMemcpy2D(to, to_row, from, n, n, rows, cudaMemcpyHostToDevice);
    return rc == cudaSuccess ? 0 : fail(e, "cudaMemcpy2D", rc);
}

extern "C" int kv_device_download(void *to, const void *from, size_t bytes,
                                  struct kv_err *e)
{
    return copy(to, from, bytes, cudaMemcpyDeviceToHost, e);
}

extern "C" int kv_device_zero(void *p, size_t bytes, struct kv_err *e)
{
    cudaError_t rc;

    bind();
    rc = cudaMemset(p, 0, bytes);
    return rc == cudaSuccess ? 0 : fail(e, "cudaMemset", rc);
}

extern "C" int kv_device_copy(void *to, const void *from, size_t bytes,
                              struct kv_err *e)
{
    return copy(to, from, bytes, cudaMemcpyDeviceToDevice, e);
}

/* Created at first use; the event marks the progress of a stream. */
static cudaStream_t second;
static cudaEvent_t mark;

static cudaError_t make_second(void)
{
    cudaError_t rc = cudaSuccess;

    if (!second)
        rc = cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking);
    if (rc == cudaSuccess && !mark)
        rc = cudaEventCreateWithFlags(&mark, cudaEventDisableTiming);
    return rc;
}

/* Later launches in `late` wait for all launches so far in `early`. */
static cudaError_t wait_for(cudaStream_t late, cudaStream_t early)
{
    const cudaError_t rc = cudaEventRecord(mark, early);

    return rc == cudaSuccess ? cudaStreamWaitEvent(late, mark, 0) : rc;
}

extern "C" int kv_device_fork(void **stream, struct kv_err *e)
{
    cudaError_t rc;

    bind();
    rc = make_second();
    if (rc == cudaSuccess)
        rc = wait_for(second, 0);
    *stream = second;
    return rc == cudaSuccess ? 0 : fail(e, "a second stream", rc);
}

extern "C" int kv_device_join(void *stream, struct kv_err *e)
{
    const cudaError_t rc = wait_for(0, static_cast<cudaStream_t>(stream));

    return rc == cudaSuccess ? 0 : fail(e, "a second stream", rc);
}

/* The resources of a timing; start and end events surround one call each. */
struct stopwatch {
    cudaEvent_t start, end;
    uint4 *other; /* memory of several times the L2 */
    size_t words;
    unsigned blocks; /* blocks of the grid */
};

/* Clears the L2 of the previous run's data and pending writes.  This takes long
 * enough for the whole run to be launched meanwhile. */
static const char *evict(const struct stopwatch *w)
{
    return kv_launch(kv_read_all, dim3(w->blocks), dim3(KV_READ_THREADS), 0, 0,
                     const_cast<const uint4 *>(w->other), w->words, w->other);
}

static int time_once(const struct stopwatch *w,
                     int (*once)(void *, struct kv_err *), void *arg,
                     double *seconds, struct kv_err *e)
{
    const char *const wrong = evict(w);
    float ms = 0;
    cudaError_t rc;

    if (wrong)
        return kv_fail(e, "before a timed run: %s", wrong);
    rc = cudaEventRecord(w->start);
    if (rc != cudaSuccess)
        return fail(e, "before a timed run", rc);
    if (once(arg, e))
        return -1;
    rc = cudaEventRecord(w->end);
    if (rc == cudaSuccess)
        rc = cudaEventSynchronize(w->end);
    if (rc == cudaSuccess)
        rc = cudaEventElapsedTime(&ms, w->start, w->end);
    *seconds = ms * 1e-3;
    return rc == cudaSuccess ? 0 : fail(e, "in a timed run", rc);
}

extern "C" int kv_device_time(int (*once)(void *, struct kv_err *), void *arg,
                              size_t warmup, size_t reps, double *seconds,
                              struct kv_err *e)
{
    struct stopwatch w = {NULL, NULL, NULL, 0, 0};
    int device = 0, l2 = 0, multiprocessors = 0, rc = -1;
    size_t bytes;
    double untimed;

    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&l2, cudaDevAttrL2CacheSize, device);
    cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount,
                           device);
    bytes = 8 * (size_t)l2 + (1 << 20);
    w.words = bytes / sizeof(*w.other);
    w.blocks = (unsigned)multiprocessors * KV_READ_BLOCKS;
    if (kv_device_alloc((void **)&w.other, bytes, e))
        return -1;
    if (kv_device_zero(w.other, bytes, e))
        goto out;
    if (cudaEventCreate(&w.start) != cudaSuccess ||
        cudaEventCreate(&w.end) != cudaSuccess) {
        kv_fail(e, "cannot create CUDA events");
        goto out;
    }
    for (size_t i = 0; i < warmup; i++)
        if (time_once(&w, once, arg, &untimed, e))
            goto out;
    for (size_t i = 0; i < reps; i++)
        if (time_once(&w, once, arg, &seconds[i], e))
            goto out;
    rc = 0;
out:
    if (w.start)
        cudaEventDestroy(w.start);
    if (w.end)
        cudaEventDestroy(w.end);
    kv_device_free(w.other);
    return rc;
}
