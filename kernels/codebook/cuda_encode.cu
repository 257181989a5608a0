#include "kernels/cuda/rotate.cuh"
#include "kernels/nearest/cuda.cuh"

enum { THREADS = 256, WARPS = THREADS / 32, SHARED = 32 << 10 };

// Every dimension there is (KV_NEAREST_MAX_D), for centers all lanes read
// alike, and for lanes that read each its own.
#define KV_VECTOR_DIMS(X) \
    X(1)                  \
    X(2)                  \
    X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14) X(15) X(16)

static unsigned grid_of(size_t n, size_t each)
{
    return (unsigned)((n + each - 1) / each);
}

// ---- the transform ---------------------------------------------------------

// A warp a row: one head of one token.
__global__ void __launch_bounds__(THREADS)
    kv_turn_kernel(kv_turn t, const uint16_t *x, size_t rows, float *out)
{
    const size_t r = (size_t)blockIdx.x * WARPS + kv_warp();
    float *const row =
        reinterpret_cast<float *>(kv_shared()) + kv_warp() * t.head_dim;

    if (r >= rows)
        return;
    for (unsigned i = kv_lane(); i < t.head_dim; i += 32)
        row[i] = kv_low_f16(x[r * t.head_dim + i]);
    kv_sync_warp();
    kv_turn_row(t, (unsigned)(r % t.n_heads), row);
    for (unsigned i = kv_lane(); i < t.head_dim; i += 32)
        out[r * t.head_dim + i] = row[i];
}

static const char *turn(const struct kv_gpu_code *c,
                        const struct kv_gpu_blocks *b, float *out)
{
    const size_t rows = b->n * c->n_heads;

    return kv_launch(kv_turn_kernel, dim3(grid_of(rows, WARPS)), dim3(THREADS),
                     WARPS * c->head_dim * sizeof(float),
                     (cudaStream_t)b->stream, kv_turn_of(c), b->x, rows, out);
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

// The sub-vectors that one book serves, numbered token by token.
struct kv_served {
    unsigned heads, subs; // how many, of a token
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
// WIDE: a warp has EACH points, its lanes every 32nd center each; else a thread
// has EACH points, THREADS apart, and lanes look at one center together.
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

// Few points fill the device only where their centers are shared out.
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

// A thread a byte; what is past a token's n_codes is 0.
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
                                      const struct kv_gpu_room *room,
                                      size_t multiprocessors, struct kv_err *e)
{
    const struct kv_gpu_centroids *v = &c->codebook;
    const char *wrong = room->x ? turn(c, b, room->x) : NULL;
    kv_search s = {(unsigned)c->n_heads,
                   (unsigned)v->n_sub,
                   (unsigned)v->head_books,
                   (unsigned)v->sub_books,
                   (unsigned)v->k,
                   0,
                   b->n,
                   b->x,
                   room->x,
                   v->centers,
                   room->code ? NULL : b->bytes,
                   room->code};

    if (wrong)
        return kv_fail(e, "transforming keys: %s", wrong);
    switch (v->d) {
#define KV_CASE(D)                                                      \
    case D:                                                             \
        wrong = search<D>(s, multiprocessors, (cudaStream_t)b->stream); \
        break;
        KV_VECTOR_DIMS(KV_CASE)
#undef KV_CASE
    }
    if (!wrong && room->code)
        wrong = pack(c, b, room->code);
    return wrong ? kv_fail(e, "nearest centroids: %s", wrong) : 0;
}
