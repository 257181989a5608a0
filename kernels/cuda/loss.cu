#include "kernels/cuda/loss.h"

#include "kernels/cuda/gpu.cuh"
#include "kernels/cuda/reduce.cuh"

enum { THREADS = 256, WARPS = THREADS / 32 };

struct kv_loss_workspace {
    double sum[THREADS];
    float one[WARPS];
    unsigned index[THREADS];
};

// The sum of x over the block, in one order; the same in every thread.
KV_DEVICE double kv_block_sum(kv_loss_workspace *workspace, double x)
{
    kv_sync_block(); // the workspace may still be read
    workspace->sum[threadIdx.x] = x;
    for (unsigned n = THREADS / 2; n; n /= 2) {
        kv_sync_block();
        if (threadIdx.x < n)
            workspace->sum[threadIdx.x] += workspace->sum[threadIdx.x + n];
    }
    kv_sync_block();
    return workspace->sum[0];
}

// The smallest x of the block.
KV_DEVICE unsigned kv_block_min(kv_loss_workspace *workspace, unsigned x)
{
    kv_sync_block();
    workspace->index[threadIdx.x] = x;
    for (unsigned n = THREADS / 2; n; n /= 2) {
        kv_sync_block();
        if (threadIdx.x < n)
            workspace->index[threadIdx.x] =
                min(workspace->index[threadIdx.x],
                    workspace->index[threadIdx.x + n]);
    }
    kv_sync_block();
    return workspace->index[0];
}

struct kv_loss_row {
    float max;
    unsigned top; // the lowest index of the largest
    double sum;   // the sum of exp(x - max)
};

KV_DEVICE kv_loss_row kv_look_at(kv_loss_workspace *workspace, const float *x,
                                 unsigned n)
{
    kv_loss_row r = {-__builtin_huge_valf(), n, 0};
    double sum = 0;

    for (unsigned i = threadIdx.x; i < n; i += THREADS)
        if (x[i] > r.max) {
            r.max = x[i];
            r.top = i;
        }

    const float mine = r.max;

    r.max = kv_reduce<WARPS>(r.max, workspace->one, kv_larger());
    r.top = kv_block_min(workspace, mine == r.max ? r.top : n);
    for (unsigned i = threadIdx.x; i < n; i += THREADS)
        sum += (double)expf(x[i] - r.max);
    r.sum = kv_block_sum(workspace, sum);
    return r;
}

// One thread block for each row.
__global__ void __launch_bounds__(THREADS, 4)
    kv_score_kernel(const float *logits, const float *base,
                    const int32_t *target, unsigned n, kv_gpu_loss *out)
{
    kv_loss_workspace *const workspace =
        reinterpret_cast<kv_loss_workspace *>(kv_shared());
    const float *x = logits + (size_t)blockIdx.x * n;
    const kv_loss_row mine = kv_look_at(workspace, x, n);
    const int32_t t = target[blockIdx.x];
    kv_gpu_loss loss = {mine.sum, 0, 0, mine.max, 0, x[t], 0, 0};

    if (base) {
        const float *b = base + (size_t)blockIdx.x * n;
        const kv_loss_row its = kv_look_at(workspace, b, n);
        double cross = 0;

        for (unsigned i = threadIdx.x; i < n; i += THREADS)
            cross +=
                (double)expf(b[i] - its.max) * ((double)b[i] - (double)x[i]);
        loss.cross = kv_block_sum(workspace, cross);
        loss.base_sum = its.sum;
        loss.base_max = its.max;
        loss.b = b[t];
        loss.same = mine.top == its.top;
    }
    if (threadIdx.x == 0)
        out[blockIdx.x] = loss;
}

extern "C" int kv_gpu_score(const float *logits, const float *base,
                            const int32_t *target, size_t rows, size_t n_vocab,
                            struct kv_gpu_loss *out, struct kv_err *e)
{
    const char *wrong = kv_launch(kv_score_kernel, dim3((unsigned)rows),
                                  dim3(THREADS), sizeof(kv_loss_workspace), 0,
                                  logits, base, target, (unsigned)n_vocab, out);

    return wrong ? kv_fail(e, "losses: %s", wrong) : 0;
}
