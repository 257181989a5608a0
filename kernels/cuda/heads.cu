#include "kernels/cuda/gpu.cuh"
#include "kernels/cuda/layer.h"
#include "kernels/cuda/reduce.cuh"

enum { THREADS = 256, WARPS = THREADS / 32 };

// One head of a token: its channels with the bias, clamped; the factor of the
// rotated channels; the norm's weights (NULL: none); the destinations, plain
// before RoPE, rotated after it.
struct kv_head {
    const float *x, *bias;
    float clip, scale;
    const float *norm, *norm_bias;
    float *plain, *rotated;

    __device__ float operator()(unsigned c) const
    {
        const float v = bias ? x[c] + bias[c] : x[c];

        return clip > 0 ? fminf(fmaxf(v, -clip), clip) : v;
    }
};

KV_DEVICE float *kv_head_of(float *all, size_t row, size_t heads, size_t head,
                            size_t d)
{
    return all ? all + (row * heads + head) * d : NULL;
}

// The weights of a norm for this head of q or of k.
KV_DEVICE const float *kv_head_norm(const kv_heads &h, const float *all,
                                    size_t head)
{
    return h.norm_of == KV_NORM_OF_TOKEN || !all ? NULL
           : h.norm_of == KV_NORM_OF_OWN_HEAD    ? all + head * h.head_dim
                                                 : all;
}

// A norm of whole tokens has been applied by kv_token_norm_kernel, with bias
// and clip.
KV_DEVICE kv_head kv_head_at(const kv_heads &h, unsigned all, size_t row,
                             size_t head)
{
    const size_t kv = h.n_kv_heads, d = h.head_dim;
    const bool normed =
        h.norm_of == KV_NORM_OF_TOKEN && h.q_norm && head < h.n_heads + kv;
    kv_head to = {h.qkv + (row * all + head) * d,
                  h.bias && !normed ? h.bias + head * d : NULL,
                  normed ? 0 : h.clip,
                  h.rope_scale,
                  NULL,
                  NULL,
                  NULL,
                  NULL};

    if (head < h.n_heads) {
        to.norm = kv_head_norm(h, h.q_norm, head);
        to.norm_bias = kv_head_norm(h, h.q_norm_bias, head);
        to.rotated = kv_head_of(h.q, row, h.n_heads, head, d);
        return to;
    }
    head -= h.n_heads;
    if (head >= kv) {
        to.scale = 1;
        to.plain = kv_head_of(h.v, row, kv, head - kv, d);
        return to;
    }
    to.norm = kv_head_norm(h, h.k_norm, head);
    to.norm_bias = kv_head_norm(h, h.k_norm_bias, head);
    to.plain = kv_head_of(h.k_pre, row, kv, head, d);
    to.rotated = kv_head_of(h.k, row, kv, head, d);
    return to;
}

// A lane's pair of channels: first the pairs that RoPE turns, then pairs from
// the two halves of the other channels, which stay (cosine 1, sine 0).
struct kv_turn {
    unsigned low, high;
    float cosine, sine;

    __device__ kv_turn(const kv_heads &h, size_t row, unsigned i)
    {
        const unsigned n = (unsigned)h.pairs.n, half = (unsigned)h.head_dim / 2;
        const bool turns = i < n;
        const float *angle = h.rope + (h.first + row) % h.n * 2 * n + i;

        low = turns ? i * (unsigned)h.pairs.step : n + i;
        high = low + (turns ? (unsigned)h.pairs.apart : half - n);
        cosine = turns ? angle[0] : 1;
        sine = turns ? angle[n] : 0;
    }
    __device__ void forth(float &a, float &b) const
    {
        const float x = a, y = b;

        a = x * cosine - y * sine;
        b = y * cosine + x * sine;
    }
    __device__ void back(float &a, float &b) const
    {
        const float x = a, y = b;

        a = x * cosine + y * sine;
        b = y * cosine - x * sine;
    }
};

KV_DEVICE float kv_warp_sum(float x)
{
    for (unsigned mask = 1; mask < 32; mask *= 2)
        x += kv_shuffle_xor(x, mask);
    return x;
}

// A norm's mean (0 unless it centers) and factor.
struct kv_normed {
    float mean, by;
};

// Computes the norm of a head's channels; a norm after RoPE takes the rotated
// channels.
KV_DEVICE kv_normed kv_head_normed(const kv_heads &h, const kv_head &x,
                                   size_t row)
{
    const float d = (float)h.head_dim;
    float sum = 0, squares = 0;

    for (unsigned c = kv_lane(); c < h.head_dim && h.norm_centers; c += 32)
        sum += x(c);

    const float mean = h.norm_centers ? kv_warp_sum(sum) / d : 0;

    for (unsigned i = kv_lane(); i < h.head_dim / 2; i += 32) {
        const kv_turn turn(h, row, i);
        float a = x(turn.low) - mean, b = x(turn.high) - mean;

        if (h.norm_late)
            turn.forth(a, b);
        squares = fmaf(a, a, squares);
        squares = fmaf(b, b, squares);
    }
    return {mean, 1 / sqrtf(kv_warp_sum(squares) / d + h.eps)};
}

KV_DEVICE float kv_head_apply(const kv_head &x, const kv_normed &n, unsigned c,
                              float v)
{
    return (v - n.mean) * n.by * x.norm[c] + (x.norm_bias ? x.norm_bias[c] : 0);
}

// A warp handles a head of a token; lane l has pairs l, l + 32, .. of channels.
__global__ void __launch_bounds__(THREADS)
    kv_heads_kernel(kv_heads h, unsigned all)
{
    const size_t at = (size_t)blockIdx.x * WARPS + kv_warp();
    const size_t row = at / all;

    if (row >= h.rows)
        return;

    const kv_head x = kv_head_at(h, all, row, at % all);
    const kv_normed normed =
        x.norm ? kv_head_normed(h, x, row) : kv_normed{0, 1};

    for (unsigned i = kv_lane(); i < h.head_dim / 2; i += 32) {
        const kv_turn turn(h, row, i);
        const float by = i < h.pairs.n ? x.scale : 1;
        float a = x(turn.low), b = x(turn.high);

        if (x.norm && !h.norm_late) {
            a = kv_head_apply(x, normed, turn.low, a);
            b = kv_head_apply(x, normed, turn.high, b);
        }
        a *= by;
        b *= by;

        float to_a = a, to_b = b;

        turn.forth(to_a, to_b);
        if (x.norm && h.norm_late) {
            a = to_a = kv_head_apply(x, normed, turn.low, to_a);
            b = to_b = kv_head_apply(x, normed, turn.high, to_b);
            turn.back(a, b);
        }
        if (x.plain) {
            x.plain[turn.low] = a;
            x.plain[turn.high] = b;
        }
        if (x.rotated) {
            x.rotated[turn.low] = to_a;
            x.rotated[turn.high] = to_b;
        }
    }
}

// Norms all heads of q, or of k, together, in place; block (row, side).
__global__ void __launch_bounds__(THREADS)
    kv_token_norm_kernel(kv_heads h, unsigned all)
{
    float *const workspace = reinterpret_cast<float *>(kv_shared());
    const size_t d = h.head_dim, q = h.n_heads * d;
    const bool k = blockIdx.y;
    const size_t n = k ? h.n_kv_heads * d : q, before = k ? q : 0;
    const kv_head x = {h.qkv + (size_t)blockIdx.x * all * d + before,
                       h.bias ? h.bias + before : NULL,
                       h.clip,
                       1,
                       k ? h.k_norm : h.q_norm,
                       k ? h.k_norm_bias : h.q_norm_bias,
                       NULL,
                       NULL};
    float *const to = const_cast<float *>(x.x);
    float sum = 0, squares = 0;
    kv_normed normed = {0, 1};

    for (size_t c = threadIdx.x; c < n && h.norm_centers; c += THREADS)
        sum += x((unsigned)c);
    if (h.norm_centers)
        normed.mean = kv_reduce<WARPS>(sum, workspace, kv_plus()) / (float)n;
    for (size_t c = threadIdx.x; c < n; c += THREADS) {
        const float v = x((unsigned)c) - normed.mean;

        squares = fmaf(v, v, squares);
    }
    squares = kv_reduce<WARPS>(squares, workspace, kv_plus());
    normed.by = 1 / sqrtf(squares / (float)n + h.eps);
    for (size_t c = threadIdx.x; c < n; c += THREADS)
        to[c] = kv_head_apply(x, normed, (unsigned)c, x((unsigned)c));
}

extern "C" int kv_gpu_heads(const struct kv_heads *h, struct kv_err *e)
{
    const size_t all = h->n_heads + h->n_kv_heads * (h->v ? 2 : 1);
    const dim3 grid((unsigned)((h->rows * all + WARPS - 1) / WARPS));
    const bool tokens = h->q_norm && h->norm_of == KV_NORM_OF_TOKEN;
    const char *wrong = NULL;

    if (h->head_dim % 2)
        return kv_fail(e,
                       "no CUDA kernel of heads of %zu channels, an odd "
                       "number",
                       h->head_dim);
    if (h->v_norm || !h->n_kv_heads)
        return kv_fail(e, "no CUDA kernel of a norm of values, or of queries "
                          "alone");
    if (!h->q_norm != !h->k_norm)
        return kv_fail(e, "no CUDA kernel of a norm of q or of k alone");
    if (h->norm_late && (tokens || h->norm_centers || h->rope_scale != 1))
        return kv_fail(e, "no CUDA kernel of norms after RoPE other than "
                          "RMSNorm of each head");
    if (tokens)
        wrong = kv_launch(kv_token_norm_kernel, dim3((unsigned)h->rows, 2),
                          dim3(THREADS), WARPS * sizeof(float), 0, *h,
                          (unsigned)all);
    if (!wrong)
        wrong = kv_launch(kv_heads_kernel, grid, dim3(THREADS), 0, 0, *h,
                          (unsigned)all);
    return wrong ? kv_fail(e, "heads: %s", wrong) : 0;
}
