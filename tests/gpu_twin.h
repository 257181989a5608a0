/* The host's version of kernels/cuda/gpu.cuh: the same names, with one fibre
 * for each GPU thread.  It is included (-include) before every .cu file, which
 * is then compiled unchanged.
 *
 * A block's threads run one after the other, each until it must wait for
 * others; blocks run one after the other.  To find errors, shared memory starts
 * as NaNs, an asynchronous copy arrives only when it is waited for, and lanes
 * of a warp that meet in different operations end the program. */
#ifndef KV_CUDA_GPU_CUH
#define KV_CUDA_GPU_CUH

#include "lib/base/half.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define KV_DEVICE static inline

struct dim3 {
    unsigned x, y, z;

    dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c)
    {
    }
};

struct uint4 {
    uint32_t x, y, z, w;
};

struct uint2 {
    uint32_t x, y;
};

/* A stream: work is done when it is launched. */
typedef void *cudaStream_t;

enum { KV_BIG_BLOCKS = 2 };

/* The indices and sizes of the running thread. */
extern dim3 threadIdx, blockIdx, blockDim, gridDim;

/* tests/gpu_twin.cc */
enum twin_op { TWIN_SYNC, TWIN_SHUFFLE, TWIN_TRANSPOSE, TWIN_MMA };
void twin_block(void);
/* A kernel of kv_launch_early() must not load before kv_wait_for_earlier(). */
extern bool twin_begins_early;
void twin_wait_for_earlier(void);
void twin_must_have_waited(void);
/* Exchanges n words of each lane; returns the words of all lanes, [32][8],
 * after all 32 have given theirs. */
const uint32_t (*twin_meet(twin_op op, const uint32_t *mine, size_t n))[8];
uint8_t *twin_shared(void);
void twin_copy(void *shared, const void *global);
void twin_commit(void);
void twin_wait(int newest);
void twin_arrival_begin(uint64_t *arrival);
void twin_arrival_end(uint64_t *arrival);
void twin_expect(uint64_t *arrival, size_t bytes);
void twin_copy_bulk(void *shared, const void *global, size_t bytes,
                    uint64_t *arrival);
void twin_arrival_wait(uint64_t *arrival, unsigned parity);
void twin_run(dim3 grid, dim3 block, size_t shared,
              const std::function<void()> &thread);
extern const float *const twin_halves; /* [65536] */

static inline float twin_half(uint16_t h)
{
    return twin_halves[h];
}

template <class T> static inline T min(T a, T b)
{
    return b < a ? b : a;
}

template <class T> static inline T max(T a, T b)
{
    return a < b ? b : a;
}

KV_DEVICE unsigned kv_lane(void)
{
    return threadIdx.x % 32;
}

KV_DEVICE unsigned kv_warp(void)
{
    return threadIdx.x / 32;
}

KV_DEVICE unsigned kv_uniform_warp(void)
{
    return kv_warp();
}

KV_DEVICE void kv_sync_warp(void)
{
    twin_meet(TWIN_SYNC, NULL, 0);
}

KV_DEVICE void kv_sync_block(void)
{
    twin_block();
}

KV_DEVICE unsigned kv_count_up(unsigned *counter)
{
    return (*counter)++;
}

KV_DEVICE void kv_add_to(unsigned *sum, unsigned x)
{
    *sum += x;
}

KV_DEVICE bool kv_any(bool x)
{
    const uint32_t mine = x;
    const uint32_t(*all)[8] = twin_meet(TWIN_SHUFFLE, &mine, 1);
    bool any = false;

    for (unsigned lane = 0; lane < 32; lane++)
        any = any || all[lane][0];
    return any;
}

KV_DEVICE float kv_shuffle_xor(float x, unsigned mask)
{
    const uint32_t mine = kv_f32_bits(x);

    return kv_bits_f32(twin_meet(TWIN_SHUFFLE, &mine, 1)[kv_lane() ^ mask][0]);
}

KV_DEVICE float kv_shuffle(float x, unsigned lane)
{
    const uint32_t mine = kv_f32_bits(x);

    return kv_bits_f32(twin_meet(TWIN_SHUFFLE, &mine, 1)[lane][0]);
}

KV_DEVICE uint8_t *kv_shared(void)
{
    return twin_shared();
}

typedef uint8_t *kv_place;

KV_DEVICE kv_place kv_place_of(void *shared)
{
    return static_cast<uint8_t *>(shared);
}

KV_DEVICE void kv_wait_for_earlier(void)
{
    twin_wait_for_earlier();
}

KV_DEVICE void kv_prefetch(const void *)
{
}

KV_DEVICE void kv_copy_async(kv_place shared, const void *global)
{
    twin_copy(shared, global);
}

KV_DEVICE void kv_copy_commit(void)
{
    twin_commit();
}

template <int N> KV_DEVICE void kv_copy_wait(void)
{
    twin_wait(N);
}

typedef uint64_t kv_arrival;

template <unsigned THREADS> KV_DEVICE bool kv_copies(void)
{
    return threadIdx.x % THREADS == 0;
}

template <unsigned THREADS> KV_DEVICE void kv_arrival_begin(kv_arrival *a)
{
    if (threadIdx.x % THREADS == 0)
        twin_arrival_begin(a);
}

template <unsigned THREADS> KV_DEVICE void kv_arrival_end(kv_arrival *a)
{
    if (threadIdx.x % THREADS == 0)
        twin_arrival_end(a);
}

KV_DEVICE void kv_expect(kv_arrival *a, unsigned bytes)
{
    twin_expect(a, bytes);
}

template <unsigned THREADS>
KV_DEVICE void kv_copy_bulk(void *to, const void *from, unsigned bytes,
                            kv_arrival *a)
{
    twin_copy_bulk(to, from, bytes, a);
}

KV_DEVICE void kv_expected(kv_arrival *)
{
}

KV_DEVICE void kv_arrival_wait(kv_arrival *a, unsigned parity)
{
    twin_arrival_wait(a, parity);
}

KV_DEVICE void kv_fence_copies(void)
{
}

KV_DEVICE const uint8_t *kv_shared_place(const uint8_t *p)
{
    return p;
}

template <class T> static inline T twin_load(const void *p)
{
    T x;

    if (twin_begins_early)
        twin_must_have_waited();
    if ((uintptr_t)p % sizeof(x))
        __builtin_trap();
    memcpy(&x, p, sizeof(x));
    return x;
}

KV_DEVICE uint32_t kv_load2(const void *p)
{
    return twin_load<uint16_t>(p);
}

KV_DEVICE uint32_t kv_load4(const void *p)
{
    return twin_load<uint32_t>(p);
}

KV_DEVICE uint2 kv_load8(const void *p)
{
    return twin_load<uint2>(p);
}

KV_DEVICE uint4 kv_load16(const void *p)
{
    return twin_load<uint4>(p);
}

KV_DEVICE void kv_store16(void *p, const uint32_t *x)
{
    if ((uintptr_t)p % 16)
        __builtin_trap();
    memcpy(p, x, 16);
}

KV_DEVICE float kv_load_written(const float *p)
{
    return *p;
}

KV_DEVICE uint4 kv_load16_written(const float *p)
{
    return kv_load16(p);
}

KV_DEVICE float kv_exp2(float x)
{
    return exp2f(x);
}

KV_DEVICE uint32_t kv_pack_f16(float low, float high)
{
    return kv_f32_to_f16(low) | (uint32_t)kv_f32_to_f16(high) << 16;
}

KV_DEVICE uint32_t kv_pack_bf16(float low, float high)
{
    return kv_f32_to_bf16(low) | (uint32_t)kv_f32_to_bf16(high) << 16;
}

KV_DEVICE float kv_low_f16(uint32_t w)
{
    return twin_half((uint16_t)w);
}

KV_DEVICE float kv_high_f16(uint32_t w)
{
    return twin_half((uint16_t)(w >> 16));
}

/* Multiplies in f32, where products of halves are exact. */
KV_DEVICE uint32_t kv_mul_f16x2(uint32_t a, uint32_t b)
{
    return kv_pack_f16(kv_low_f16(a) * kv_low_f16(b),
                       kv_high_f16(a) * kv_high_f16(b));
}

KV_DEVICE uint32_t kv_fma_f16x2(uint32_t a, uint32_t b, uint32_t c)
{
    return kv_pack_f16(fmaf(kv_low_f16(a), kv_low_f16(b), kv_low_f16(c)),
                       fmaf(kv_high_f16(a), kv_high_f16(b), kv_high_f16(c)));
}

KV_DEVICE uint32_t kv_minus_f16x2(uint32_t a)
{
    return a ^ 0x80008000;
}

KV_DEVICE float kv_cos(float x)
{
    return cosf(x);
}

KV_DEVICE float kv_sin(float x)
{
    return sinf(x);
}

KV_DEVICE int kv_round(float x)
{
    return (int)lrintf(x);
}

KV_DEVICE uint32_t kv_bits(float x)
{
    return kv_f32_bits(x);
}

KV_DEVICE float kv_from_bits(uint32_t x)
{
    return kv_bits_f32(x);
}

KV_DEVICE float kv_reciprocal(float x)
{
    return 1 / x;
}

KV_DEVICE uint32_t kv_sum_bytes(uint32_t x, uint32_t by, uint32_t sum)
{
    for (int i = 0; i < 4; i++)
        sum += (x >> 8 * i & 0xff) * (by >> 8 * i & 0xff);
    return sum;
}

KV_DEVICE uint32_t kv_bytes(uint32_t low, uint32_t high, uint32_t select)
{
    const uint64_t both = (uint64_t)high << 32 | low;
    uint32_t y = 0;

    for (int i = 0; i < 4; i++)
        y |= (uint32_t)(both >> 8 * (select >> 4 * i & 7) & 0xff) << 8 * i;
    return y;
}

/* Exchanges the operands of a matrix product; each lane gives | a [4] | b [2]
 * |. */
static inline const uint32_t (*twin_operands(const uint32_t *a,
                                             const uint32_t *b))[8]
{
    const uint32_t mine[6] = {a[0], a[1], a[2], a[3], b[0], b[1]};

    return twin_meet(TWIN_MMA, mine, 6);
}

template <float (*NUMBER)(uint16_t)>
static inline void twin_mma_halves(float *c, const uint32_t *a,
                                   const uint32_t *b)
{
    const uint32_t(*all)[8] = twin_operands(a, b);

    for (int i = 0; i < 4; i++) {
        const unsigned row = kv_lane() / 4, column = kv_lane() % 4 * 2 + i % 2;
        double sum = c[i];

        for (int k = 0; k < 16; k++) {
            const uint32_t x =
                all[row * 4 + k % 8 / 2][i / 2 + k / 8 * 2] >> k % 2 * 16;
            const uint32_t y =
                all[column * 4 + k % 8 / 2][4 + k / 8] >> k % 2 * 16;

            sum += (double)NUMBER((uint16_t)x) * NUMBER((uint16_t)y);
        }
        c[i] = (float)sum;
    }
}

KV_DEVICE void kv_mma_f16(float *c, const uint32_t *a, const uint32_t *b)
{
    twin_mma_halves<twin_half>(c, a, b);
}

KV_DEVICE void kv_mma_bf16(float *c, const uint32_t *a, const uint32_t *b)
{
    twin_mma_halves<kv_bf16_to_f32>(c, a, b);
}

template <class A, class B>
static inline void twin_mma_bytes(int *c, const uint32_t *a, const uint32_t *b)
{
    const uint32_t(*all)[8] = twin_operands(a, b);

    for (int i = 0; i < 4; i++) {
        const unsigned row = kv_lane() / 4, column = kv_lane() % 4 * 2 + i % 2;

        for (int k = 0; k < 32; k++) {
            const uint32_t x =
                all[row * 4 + k % 16 / 4][i / 2 + k / 16 * 2] >> k % 4 * 8;
            const uint32_t y =
                all[column * 4 + k % 16 / 4][4 + k / 16] >> k % 4 * 8;

            c[i] += (int)(A)x * (int)(B)y;
        }
    }
}

KV_DEVICE void kv_mma_s8s8(int *c, const uint32_t *a, const uint32_t *b)
{
    twin_mma_bytes<int8_t, int8_t>(c, a, b);
}

KV_DEVICE void kv_mma_s8u8(int *c, const uint32_t *a, const uint32_t *b)
{
    twin_mma_bytes<int8_t, uint8_t>(c, a, b);
}

KV_DEVICE void kv_mma_u8u8(int *c, const uint32_t *a, const uint32_t *b)
{
    twin_mma_bytes<uint8_t, uint8_t>(c, a, b);
}

KV_DEVICE uint32_t kv_transpose(uint32_t x)
{
    const uint32_t(*all)[8] = twin_meet(TWIN_TRANSPOSE, &x, 1);
    const unsigned r = kv_lane() / 4, c = kv_lane() % 4;
    const uint32_t low = all[2 * c * 4 + r / 2][0] >> r % 2 * 16;
    const uint32_t high = all[(2 * c + 1) * 4 + r / 2][0] >> r % 2 * 16;

    return (low & 0xffff) | high << 16;
}

/* Appends the kernel's place in the program, hexadecimal, to the file named in
 * KV_TWIN_LAUNCHED, once (run_every_kernel.py). */
void twin_launched(void *kernel);

/* The number of resident blocks, 2, 1 or 0: as many as the shared memory of a
 * multiprocessor of compute capability 9.0 holds. */
template <class... A>
static size_t kv_resident_blocks(void (*)(A...), unsigned, size_t shared)
{
    return shared <= 113 << 10 ? 2 : shared <= 227 << 10;
}

template <class... A>
static const char *kv_launch(void (*kernel)(A...), dim3 grid, dim3 block,
                             size_t shared, cudaStream_t, A... args)
{
    twin_launched(reinterpret_cast<void *>(kernel));
    twin_run(grid, block, shared, [=] { kernel(args...); });
    return NULL;
}

template <class... A>
static const char *kv_launch_early(void (*kernel)(A...), dim3 grid, dim3 block,
                                   A... args)
{
    twin_begins_early = true;
    kv_launch(kernel, grid, block, 0, NULL, args...);
    twin_begins_early = false;
    return NULL;
}

#endif
