// Codebook indices on the device: encode() and decode() of
// lib/schemes/codebook.h bit by bit, and the packing of codes into the tiles of
// cuda.cuh.
#include "kernels/codebook/cuda.h"
#include "kernels/cuda/append.h"
#include "kernels/cuda/bitpack.cuh"
#include "kernels/cuda/hadamard.cuh"
#include "kernels/nearest/cuda.cuh"

enum { THREADS = 256, WARPS = THREADS / 32, SHARED = 32 << 10 };

static unsigned grid_of(size_t n, size_t each)
{
    return (unsigned)((n + each - 1) / each);
}

// ---- the transform ---------------------------------------------------------

// A warp handles a row: one head of one token.
__global__ void __launch_bounds__(THREADS)
    kv_rotate_kernel(kv_rotate t, const uint16_t *x, size_t rows, float *out)
{
    const size_t r = (size_t)blockIdx.x * WARPS + kv_warp();
    float *const row =
        reinterpret_cast<float *>(kv_shared()) + kv_warp() * t.head_dim;

    if (r >= rows)
        return;
    for (unsigned i = kv_lane(); i < t.head_dim; i += 32)
        row[i] = kv_low_f16(x[r * t.head_dim + i]);
    kv_sync_warp();
    kv_rotate_row(t, (unsigned)(r % t.n_heads), row);
    for (unsigned i = kv_lane(); i < t.head_dim; i += 32)
        out[r * t.head_dim + i] = row[i];
}

static const char *rotate(const struct kv_gpu_code *c,
                          const struct kv_gpu_blocks *b, float *out)
{
    const size_t rows = b->n * c->n_heads;

    return kv_launch(kv_rotate_kernel, dim3(grid_of(rows, WARPS)),
                     dim3(THREADS), WARPS * c->head_dim * sizeof(float),
                     (cudaStream_t)b->stream, kv_rotate_of(c), b->x, rows, out);
}

// ---- the search ------------------------------------------------------------

struct kv_search {
    unsigned n_heads, n_sub, head_books, sub_books, k, chunk;
    size_t tokens;
    const uint16_t *half; // [tokens][n_heads][n_sub][d], or
    const float *x;
    const float *centers;
    uint8_t *byte; // [tokens][n_heads][n_sub], or
    uint16_t *code;
};

// The sub-vectors of one codebook, numbered token by token.
struct kv_served {
    unsigned heads, subs; // their numbers per token
    size_t first;         // sub-vector
    size_t points;

    __device__ kv_served(const kv_search &s, unsigned book)
    {
        const unsigned h = book / s.sub_books, j = book % s.sub_books;

        heads = s.head_books == 1 ? s.n_heads : 1;
        subs = s.sub_books == 1 ? s.n_sub : 1;
        first = (size_t)h * s.n_sub + j;
        points = s.tokens * heads * subs;
    }

    __device__ size_t at(const kv_search &s, size_t point) const
    {
        const size_t row = point / subs;

        return (row / heads * s.n_heads + row % heads) * s.n_sub + first +
               point % subs;
    }
};

// A block of threads searches one book, which passes through shared memory.
// WIDE: a warp has EACH points, and each lane every 32nd center; otherwise a
// thread has EACH points, THREADS apart, and all lanes look at the same center.
template <int D, bool WIDE>
__global__ void __launch_bounds__(THREADS)
    kv_encode_codebook_kernel(kv_search s)
{
    constexpr int EACH = D > 8 ? 2 : 4;
    constexpr unsigned ROW = WIDE ? D | 1 : D; // lanes read different banks
    constexpr unsigned STEP = WIDE ? 32 : 1;
    const unsigned apart = WIDE ? 1 : THREADS;
    const kv_served mine(s, blockIdx.y);
    const size_t point =
        WIDE ? ((size_t)blockIdx.x * WARPS + kv_warp()) * EACH
             : (size_t)blockIdx.x * THREADS * EACH + threadIdx.x;
    const float *const book = s.centers + (size_t)blockIdx.y * s.k * D;
    float *const near = reinterpret_cast<float *>(kv_shared());
    kv_nearer<D, EACH> p;

    p.start();
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const size_t n = point + i * apart;
        const size_t at = n < mine.points ? mine.at(s, n) * D : 0;

#pragma unroll
        for (int j = 0; j < D; j++)
            p.x[i][j] = s.x ? s.x[at + j] : kv_low_f16(s.half[at + j]);
    }
    for (unsigned from = 0; from < s.k; from += s.chunk) {
        const unsigned n = min(s.k - from, s.chunk);

        kv_sync_block(); // all are done with the last chunk
        for (unsigned i = threadIdx.x; i < n * D; i += THREADS)
            near[i / D * ROW + i % D] = book[(size_t)from * D + i];
        kv_sync_block();
        for (unsigned c = WIDE ? kv_lane() : 0; c < n; c += STEP)
            p.see(near + c * ROW, from + c);
    }
    if (WIDE)
        p.agree();
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const size_t n = point + i * apart;

        if (n >= mine.points || (WIDE && kv_lane()))
            continue;
        if (s.byte)
            s.byte[mine.at(s, n)] = (uint8_t)p.best[i];
        else
            s.code[mine.at(s, n)] = (uint16_t)p.best[i];
    }
}

// Few points fill the device only if their centers are divided among lanes.
template <int D>
static const char *search(kv_search s, size_t multiprocessors,
                          cudaStream_t stream)
{
    constexpr int each = D > 8 ? 2 : 4;
    const size_t books = (size_t)s.head_books * s.sub_books;
    const size_t points = s.tokens * s.n_heads * s.n_sub / books;
    const size_t blocks = grid_of(points, THREADS * each) * books;

    if (blocks >= 2 * multiprocessors) {
        s.chunk = SHARED / (unsigned)(D * sizeof(float));
        return kv_launch(kv_encode_codebook_kernel<D, false>,
                         dim3(grid_of(points, THREADS * each), (unsigned)books),
                         dim3(THREADS), (size_t)SHARED, stream, s);
    }
    s.chunk = SHARED / (unsigned)((D | 1) * sizeof(float));
    return kv_launch(kv_encode_codebook_kernel<D, true>,
                     dim3(grid_of(points, WARPS * each), (unsigned)books),
                     dim3(THREADS), (size_t)SHARED, stream, s);
}

// ---- packing ---------------------------------------------------------------

// A thread packs a byte; bits past a token's n_codes codes are 0.
__global__ void __launch_bounds__(THREADS)
    kv_pack_kernel(const uint16_t *code, size_t tokens, unsigned n_codes,
                   unsigned bits, unsigned token_bytes, uint8_t *bytes)
{
    const size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;
    const unsigned bit = (unsigned)(i % token_bytes) * 8;
    const uint16_t *const from = code + i / token_bytes * n_codes;
    unsigned c = bit / bits, have = bits - bit % bits;
    uint32_t x;

    if (i >= tokens * token_bytes)
        return;
    x = (uint32_t)from[c] >> bit % bits;
    for (; have < 8 && ++c < n_codes; have += bits)
        x |= (uint32_t)from[c] << have;
    bytes[i] = (uint8_t)x;
}

static const char *pack(const struct kv_gpu_code *c,
                        const struct kv_gpu_blocks *b, const uint16_t *code)
{
    const size_t n = b->n * c->block_bytes;

    return kv_launch(kv_pack_kernel, dim3(grid_of(n, THREADS)), dim3(THREADS),
                     (size_t)0, (cudaStream_t)b->stream, code, b->n,
                     (unsigned)(c->n_heads * c->codebook.n_sub),
                     c->codebook.bits, (unsigned)c->block_bytes, b->bytes);
}

extern "C" int kv_gpu_encode_codebook(const struct kv_gpu_code *c,
                                      const struct kv_gpu_blocks *b,
                                      const struct kv_gpu_workspace *workspace,
                                      size_t multiprocessors, struct kv_err *e)
{
    const struct kv_gpu_centroids *v = &c->codebook;
    const char *wrong = workspace->x ? rotate(c, b, workspace->x) : NULL;
    kv_search s = {(unsigned)c->n_heads,
                   (unsigned)v->n_sub,
                   (unsigned)v->head_books,
                   (unsigned)v->sub_books,
                   (unsigned)v->k,
                   0,
                   b->n,
                   b->x,
                   workspace->x,
                   v->centers,
                   workspace->code ? NULL : b->bytes,
                   workspace->code};

    if (wrong)
        return kv_fail(e, "transforming keys: %s", wrong);
    switch (v->d) {
#define KV_CASE(D)                                                      \
    case D:                                                             \
        wrong = search<D>(s, multiprocessors, (cudaStream_t)b->stream); \
        break;
        KV_NEAREST_DIMS(KV_CASE)
#undef KV_CASE
    }
    if (!wrong && workspace->code)
        wrong = pack(c, b, workspace->code);
    return wrong ? kv_fail(e, "nearest centroids: %s", wrong) : 0;
}

// ---- decode ----------------------------------------------------------------

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

// A warp handles a row, one head of one token; through shared memory if the row
// must be transformed back (TURNED).
template <int W, bool TURNED>
__global__ void __launch_bounds__(THREADS)
    kv_decode_codebook_kernel(kv_rotate t, struct kv_gpu_centroids v,
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
    kv_rotate_back(t, head, row);
    for (unsigned i = kv_lane(); i < t.head_dim; i += 32)
        out[i] = row[i];
}

template <int W>
static const char *decode(const struct kv_gpu_code *c, const uint8_t *bytes,
                          size_t n, float *x)
{
    const struct kv_gpu_centroids *v = &c->codebook;
    const bool rotated = v->smooth || v->hadamard;
    const size_t rows = n * c->n_heads;
    const dim3 grid((unsigned)((rows + WARPS - 1) / WARPS)), block(THREADS);

    if (rotated)
        return kv_launch(kv_decode_codebook_kernel<W, true>, grid, block,
                         WARPS * c->head_dim * sizeof(float), (cudaStream_t)0,
                         kv_rotate_of(c), *v, c->block_bytes, bytes, rows, x);
    return kv_launch(kv_decode_codebook_kernel<W, false>, grid, block,
                     (size_t)0, (cudaStream_t)0, kv_rotate_of(c), *v,
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

// ---- append ----------------------------------------------------------------

// Sizes of a tile (cuda_pack.c).
struct kv_index_tile {
    unsigned d, bits, step; // sizes of the device's codes
    unsigned of_d, of_bits; // sizes of the encoder's codes
    unsigned head_dim, n_sub;
    unsigned lane_bytes; // bytes of a lane in a step
    bool values;
};

// The token of the step, and the channel, of code i of a lane's string.
KV_DEVICE void kv_place_back(const kv_index_tile &g, unsigned lane, unsigned i,
                             unsigned *t, unsigned *channel)
{
    const unsigned per = 8 / g.d, s = i % per * g.d;

    i /= per;
    if (g.values) {
        const unsigned in = i % 4, m = i / 4 % (g.step / 16);

        *t = m * 16 + in % 2 * 8 + lane % 4 * 2 + in / 2;
        *channel = i / 4 / (g.step / 16) * 64 + lane / 4 * 8 + s;
    } else {
        const unsigned wide = g.head_dim / 32;

        *t = i / 2 / wide * 16 + i % 2 * 8 + lane / 4;
        *channel = i / 2 % wide * 32 + lane % 4 * 8 + s;
    }
}

// Block (x, y) packs a tile of KV head x of sequence y, a word per thread.
__global__ void __launch_bounds__(THREADS)
    kv_append_codebook_kernel(kv_index_tile g, const kv_gpu_sequence *sequences,
                              size_t token_bytes, const uint8_t *bytes)
{
    const kv_gpu_run &run = sequences[blockIdx.y].run[KV_RUN_CODES];
    const unsigned words = KV_GPU_TILE / g.step * 8 * g.lane_bytes;
    const unsigned piece = g.lane_bytes % 16 ? 8 : 16;
    uint8_t *to = const_cast<uint8_t *>(g.values ? run.v : run.k) +
                  blockIdx.x * (g.values ? run.v_head : run.k_head);

    if (run.n < KV_GPU_TILE)
        return;
    to += (size_t)(run.n / KV_GPU_TILE - 1) * words * 4;
    bytes += blockIdx.y * KV_GPU_TILE * token_bytes;
    for (unsigned w = threadIdx.x; w < words; w += THREADS) {
        const unsigned step = w * 4 / (32 * g.lane_bytes);
        const unsigned at = w * 4 % (32 * g.lane_bytes);
        const unsigned lane = at % (32 * piece) / piece;
        const unsigned bit = (at / (32 * piece) * piece + at % piece) * 8;
        unsigned code = 0, word = 0;

        for (unsigned n = 0; n < 32; n += 4) { // no half crosses a byte
            const unsigned from = (bit + n) % g.bits;

            if (!n || !from) {
                unsigned t, c;

                kv_place_back(g, lane, (bit + n) / g.bits, &t, &c);
                t += step * g.step;

                const uint8_t *const token = bytes + t * token_bytes;
                const size_t i = blockIdx.x * g.n_sub + c / g.of_d;

                code = kv_code_at(token, i, g.of_bits);
                if (g.d != g.of_d)
                    code |= kv_code_at(token, i + 1, g.of_bits) << g.of_bits;
            }
            word |= (code >> from & 15) << n;
        }
        *reinterpret_cast<uint32_t *>(to + (size_t)w * 4) = word;
    }
}

extern "C" int kv_gpu_append_codebook(const struct kv_gpu_append *s,
                                      struct kv_err *e)
{
    const struct kv_gpu_codes c = kv_gpu_codebook_codes(s->side);
    const struct kv_gpu_centroids *v = &s->code->codebook;
    const size_t head_dim = s->code->head_dim;
    const size_t lane_bytes = c.step * head_dim / c.d * c.bits / 8 / 32;
    const kv_index_tile g = {(unsigned)c.d,
                             c.bits,
                             (unsigned)c.step,
                             (unsigned)v->d,
                             v->bits,
                             (unsigned)head_dim,
                             (unsigned)v->n_sub,
                             (unsigned)lane_bytes,
                             s->side->store->values != 0};
    const dim3 grid((unsigned)s->code->n_heads, (unsigned)s->n);
    const char *wrong = kv_launch(kv_append_codebook_kernel, grid,
                                  dim3(THREADS), (size_t)0, (cudaStream_t)0, g,
                                  s->sequences, s->code->block_bytes, s->bytes);

    return wrong ? kv_fail(e, "settling indices: %s", wrong) : 0;
}
