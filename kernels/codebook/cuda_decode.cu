#include "kernels/cuda/codes.cuh"
#include "kernels/cuda/rotate.cuh"

enum { THREADS = 256, WARPS = THREADS / 32 };

// Values of a sub-vector that a thread takes at once.
#define KV_WIDTHS(X) X(1) X(2) X(4)

template <int W> KV_DEVICE void kv_copy_values(const float *from, float *to)
{
    if (W == 4) {
        const uint4 w = kv_load16(from);
        const uint32_t x[4] = {w.x, w.y, w.z, w.w};

        kv_store16(to, x);
    } else {
#pragma unroll
        for (int i = 0; i < W; i++)
            to[i] = from[i];
    }
}

// A warp a row: one head of one token, through shared memory where it is to be
// TURNED back.
template <int W, bool TURNED>
__global__ void __launch_bounds__(THREADS)
    kv_decode_codebook_kernel(kv_turn t, struct kv_gpu_centroids v,
                              size_t token_bytes, const uint8_t *bytes,
                              size_t rows, float *x)
{
    const size_t r = (size_t)blockIdx.x * WARPS + kv_warp();
    const unsigned head = (unsigned)(r % t.n_heads), d = (unsigned)v.d;
    const uint8_t *const codes = bytes + r / t.n_heads * token_bytes;
    const size_t first_book = v.head_books > 1 ? head * v.sub_books : 0;
    float *const out = x + r * t.head_dim;
    float *const row =
        TURNED ? reinterpret_cast<float *>(kv_shared()) + kv_warp() * t.head_dim
               : out;

    if (r >= rows)
        return;
    for (unsigned i = kv_lane() * W; i < t.head_dim; i += 32 * W) {
        const unsigned sub = i / d;
        const size_t book = first_book + (v.sub_books > 1 ? sub : 0);
        const size_t center =
            book * v.k + kv_code_at(codes, head * v.n_sub + sub, v.bits);

        kv_copy_values<W>(v.centers + center * d + i % d, row + i);
    }
    if (!TURNED)
        return;
    kv_sync_warp();
    kv_turn_back(t, head, row);
    for (unsigned i = kv_lane(); i < t.head_dim; i += 32)
        out[i] = row[i];
}

template <int W>
static const char *decode(const struct kv_gpu_code *c, const uint8_t *bytes,
                          size_t n, float *x)
{
    const struct kv_gpu_centroids *v = &c->codebook;
    const bool turned = v->smooth || v->hadamard;
    const size_t rows = n * c->n_heads;
    const dim3 grid((unsigned)((rows + WARPS - 1) / WARPS)), block(THREADS);

    if (turned)
        return kv_launch(kv_decode_codebook_kernel<W, true>, grid, block,
                         WARPS * c->head_dim * sizeof(float), (cudaStream_t)0,
                         kv_turn_of(c), *v, c->block_bytes, bytes, rows, x);
    return kv_launch(kv_decode_codebook_kernel<W, false>, grid, block,
                     (size_t)0, (cudaStream_t)0, kv_turn_of(c), *v,
                     c->block_bytes, bytes, rows, x);
}

extern "C" int kv_gpu_decode_codebook(const struct kv_gpu_code *c,
                                      const uint8_t *bytes, size_t n, float *x,
                                      struct kv_err *e)
{
    const size_t d = c->codebook.d;
    const char *wrong = NULL;

    switch (d % 4 == 0 ? 4 : d % 2 == 0 ? 2 : 1) {
#define KV_CASE(W)                         \
    case W:                                \
        wrong = decode<W>(c, bytes, n, x); \
        break;
        KV_WIDTHS(KV_CASE)
#undef KV_CASE
    }
    return wrong ? kv_fail(e, "decoding vectors: %s", wrong) : 0;
}
