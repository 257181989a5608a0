/* The primitives of device code: the only door from kernels to the hardware.
 *
 * Kernels use these and plain C++; tests/gpu_twin.h defines the same names for
 * the host (one fibre a thread, poisoned shared memory, copies that arrive only
 * when they are waited for), so that kernel logic is tested without a GPU.
 * That file is included before this one and defines its include guard.
 *
 * All 32 lanes of a warp execute a warp's operations below together.  A
 * matrix is cut into fragments as PTX's mma.sync cuts it; r = lane / 4,
 * c = lane % 4. */
#ifndef KV_CUDA_GPU_CUH
#define KV_CUDA_GPU_CUH

#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <stddef.h>
#include <stdint.h>

#define KV_DEVICE static __device__ __forceinline__

/* How many blocks of 100 KB of shared memory a multiprocessor holds. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
enum { KV_BIG_BLOCKS = 1 };
#else
enum { KV_BIG_BLOCKS = 2 };
#endif

/* ---- threads ------------------------------------------------------------ */

KV_DEVICE unsigned kv_lane(void)
{
    return threadIdx.x % 32;
}

KV_DEVICE unsigned kv_warp(void)
{
    return threadIdx.x / 32;
}

/* kv_warp(), as a number that the compiler knows to be equal in all lanes. */
KV_DEVICE unsigned kv_uniform_warp(void)
{
    return __shfl_sync(~0u, threadIdx.x / 32, 0);
}

KV_DEVICE void kv_sync_warp(void)
{
    __syncwarp();
}

KV_DEVICE void kv_sync_block(void)
{
    __syncthreads();
}

/* Adds 1 to a counter and returns the old value.  A block that reads the new
 * value also sees all writes that this block made before its last barrier. */
KV_DEVICE unsigned kv_count_up(unsigned *counter)
{
    unsigned before;

    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;"
                 : "=r"(before)
                 : "l"(__cvta_generic_to_global(counter))
                 : "memory");
    return before;
}

/* Atomically adds to a number in memory, in any order of threads. */
KV_DEVICE void kv_add_to(unsigned *sum, unsigned x)
{
    atomicAdd(sum, x);
}

/* Whether the condition is true in any lane. */
KV_DEVICE bool kv_any(bool x)
{
    return __any_sync(~0u, x);
}

KV_DEVICE float kv_shuffle_xor(float x, unsigned mask)
{
    return __shfl_xor_sync(~0u, x, mask);
}

/* The value of x in the given lane. */
KV_DEVICE float kv_shuffle(float x, unsigned lane)
{
    return __shfl_sync(~0u, x, lane);
}

/* ---- memory ------------------------------------------------------------- */

/* The block's dynamic shared memory, 16-byte aligned. */
KV_DEVICE uint8_t *kv_shared(void)
{
    extern __shared__ uint4 kv_dynamic_shared[];

    return reinterpret_cast<uint8_t *>(kv_dynamic_shared);
}

/* An address in shared memory, in one register; place + n is n bytes
 * further. */
typedef unsigned kv_place;

KV_DEVICE kv_place kv_place_of(const void *shared)
{
    return (unsigned)__cvta_generic_to_shared(shared);
}

/* 16 bytes from global to shared memory, both 16-byte aligned; readable after a
 * wait for the group that it was committed in, and by other threads after a
 * barrier. */
KV_DEVICE void kv_copy_async(kv_place shared, const void *global)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared),
                 "l"(global)
                 : "memory");
}

KV_DEVICE void kv_copy_commit(void)
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* All but this thread's newest N groups have arrived. */
template <int N> KV_DEVICE void kv_copy_wait(void)
{
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

/* Copies of whole arrays from global to shared memory by the threads of a warp
 * or of a block, THREADS: either one thread copies each array as a whole
 * (compute capability 9.0), or all threads copy 16 bytes at a time.  An arrival
 * signals that the expected bytes are there; it has phases, and a wait names
 * the parity of a phase.  The order of calls, with a barrier of the threads
 * after begin and before end:
 *
 *   kv_arrival_begin()
 *   if (kv_copies()) { kv_expect(), kv_copy_bulk() .., kv_expected() }
 *   kv_arrival_wait(0)
 *   if (kv_copies()) ..; kv_arrival_wait(1); ..0; ..1
 *   kv_arrival_end()
 *
 * Addresses and sizes are multiples of 16. */
typedef unsigned long long kv_arrival; /* a barrier in shared memory */

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
enum { KV_BULK = 0 };
#else
enum { KV_BULK = 1 };
#endif

template <unsigned THREADS> KV_DEVICE bool kv_copies(void)
{
    return !KV_BULK || threadIdx.x % THREADS == 0;
}

template <unsigned THREADS> KV_DEVICE void kv_arrival_begin(kv_arrival *a)
{
    if (threadIdx.x % THREADS)
        return;
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(kv_place_of(a)),
                 "r"(KV_BULK ? 1 : THREADS)
                 : "memory");
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}

template <unsigned THREADS> KV_DEVICE void kv_arrival_end(kv_arrival *a)
{
    if (threadIdx.x % THREADS == 0)
        asm volatile("mbarrier.inval.shared.b64 [%0];" ::"r"(kv_place_of(a))
                     : "memory");
}

KV_DEVICE void kv_expect(kv_arrival *a, unsigned bytes)
{
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(
                     kv_place_of(a)),
                 "r"(bytes)
                 : "memory");
#endif
}

template <unsigned THREADS>
KV_DEVICE void kv_copy_bulk(void *to, const void *from, unsigned bytes,
                            kv_arrival *a)
{
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::"
                 "bytes [%0], [%1], %2, [%3];" ::"r"(kv_place_of(to)),
                 "l"(__cvta_generic_to_global(from)), "r"(bytes),
                 "r"(kv_place_of(a))
                 : "memory");
#else
    for (unsigned at = threadIdx.x % THREADS * 16; at < bytes;
         at += THREADS * 16)
        kv_copy_async(kv_place_of(to) + at,
                      static_cast<const uint8_t *>(from) + at);
#endif
}

KV_DEVICE void kv_expected(kv_arrival *a)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
    asm volatile(
        "cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(kv_place_of(a))
        : "memory");
#endif
}

KV_DEVICE void kv_arrival_wait(kv_arrival *a, unsigned parity)
{
    unsigned there;

    do { /* try_wait sleeps, and wakes too late for the next copy */
        asm volatile("{ .reg .pred p;\n"
                     "mbarrier.test_wait.parity.shared.b64 p, [%1], %2;\n"
                     "selp.u32 %0, 1, 0, p; }"
                     : "=r"(there)
                     : "r"(kv_place_of(a)), "r"(parity)
                     : "memory");
    } while (!there);
}

/* Orders this thread's earlier writes to shared memory before the writes of
 * array copies that start after the next barrier. */
KV_DEVICE void kv_fence_copies(void)
{
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

/* Keeps p, a pointer to shared memory, in one register; otherwise the compiler
 * computes p + x from the start of the memory, p's offset and x. */
KV_DEVICE const uint8_t *kv_shared_place(const uint8_t *p)
{
    unsigned place = (unsigned)__cvta_generic_to_shared(p);

    asm("" : "+r"(place));
    return static_cast<const uint8_t *>(__cvta_shared_to_generic(place));
}

/* Loads of n bytes at an address that is a multiple of n. */
KV_DEVICE uint32_t kv_load2(const void *p)
{
    return *static_cast<const uint16_t *>(p);
}

KV_DEVICE uint32_t kv_load4(const void *p)
{
    return *static_cast<const uint32_t *>(p);
}

KV_DEVICE uint2 kv_load8(const void *p)
{
    return *static_cast<const uint2 *>(p);
}

KV_DEVICE uint4 kv_load16(const void *p)
{
    return *static_cast<const uint4 *>(p);
}

/* Stores four words at a 16-byte boundary. */
KV_DEVICE void kv_store16(void *p, const uint32_t *x)
{
    *static_cast<uint4 *>(p) = make_uint4(x[0], x[1], x[2], x[3]);
}

/* Prefetches the cache line of this address into the L2. */
KV_DEVICE void kv_prefetch(const void *p)
{
    asm volatile("prefetch.global.L2 [%0];" ::"l"(__cvta_generic_to_global(p)));
}

/* Loads a value that another block wrote in this launch, bypassing the
 * multiprocessor's own cache, which may hold the old value. */
KV_DEVICE float kv_load_written(const float *p)
{
    return __ldcg(p);
}

/* kv_load_written() of four values at a 16-byte boundary. */
KV_DEVICE uint4 kv_load16_written(const float *p)
{
    return __ldcg(reinterpret_cast<const uint4 *>(p));
}

/* Waits until all earlier kernels are done and what they wrote can be read.
 * Only for a kernel of kv_launch_early(), which must not read or write anything
 * that changes before this. */
KV_DEVICE void kv_wait_for_earlier(void)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* ---- numbers ------------------------------------------------------------ */

KV_DEVICE float kv_exp2(float x)
{
    float y;

    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Two halves in a word, the first one low; rounded to even. */
KV_DEVICE uint32_t kv_pack_f16(float low, float high)
{
    const __half2 h = __floats2half2_rn(low, high);

    return *reinterpret_cast<const uint32_t *>(&h);
}

/* Two bf16 in a word, the first one low; rounded to even. */
KV_DEVICE uint32_t kv_pack_bf16(float low, float high)
{
    uint32_t w;

    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(w) : "f"(high), "f"(low));
    return w;
}

KV_DEVICE float kv_low_f16(uint32_t w)
{
    return __low2float(*reinterpret_cast<const __half2 *>(&w));
}

KV_DEVICE float kv_high_f16(uint32_t w)
{
    return __high2float(*reinterpret_cast<const __half2 *>(&w));
}

/* a * b for both halves of a word. */
KV_DEVICE uint32_t kv_mul_f16x2(uint32_t a, uint32_t b)
{
    const __half2 h = __hmul2(*reinterpret_cast<const __half2 *>(&a),
                              *reinterpret_cast<const __half2 *>(&b));

    return *reinterpret_cast<const uint32_t *>(&h);
}

/* a * b + c, rounded once. */
KV_DEVICE uint32_t kv_fma_f16x2(uint32_t a, uint32_t b, uint32_t c)
{
    const __half2 h = __hfma2(*reinterpret_cast<const __half2 *>(&a),
                              *reinterpret_cast<const __half2 *>(&b),
                              *reinterpret_cast<const __half2 *>(&c));

    return *reinterpret_cast<const uint32_t *>(&h);
}

KV_DEVICE uint32_t kv_minus_f16x2(uint32_t a)
{
    const __half2 h = __hneg2(*reinterpret_cast<const __half2 *>(&a));

    return *reinterpret_cast<const uint32_t *>(&h);
}

/* Cosine and sine of angles in [-pi, pi], to 2^-20. */
KV_DEVICE float kv_cos(float x)
{
    return __cosf(x);
}

KV_DEVICE float kv_sin(float x)
{
    return __sinf(x);
}

/* Rounds to the nearest integer, half to even. */
KV_DEVICE int kv_round(float x)
{
    return __float2int_rn(x);
}

KV_DEVICE uint32_t kv_bits(float x)
{
    return __float_as_uint(x);
}

KV_DEVICE float kv_from_bits(uint32_t x)
{
    return __uint_as_float(x);
}

/* 1 / x to 1 unit in the last place. */
KV_DEVICE float kv_reciprocal(float x)
{
    float y;

    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* sum + the dot product of four unsigned bytes. */
KV_DEVICE uint32_t kv_sum_bytes(uint32_t x, uint32_t by, uint32_t sum)
{
    return __dp4a(x, by, sum);
}

/* Byte i of the result is byte (select >> 4 i) % 8 of (high, low). */
KV_DEVICE uint32_t kv_bytes(uint32_t low, uint32_t high, uint32_t select)
{
    return __byte_perm(low, high, select);
}

/* ---- matrices ----------------------------------------------------------- */

/* c [16][8] += a [16][16] b [16][8], halves or bf16, sums in f32.
 *   a[0]: row r,     columns 2c, 2c + 1    a[2]: row r,     columns 2c + 8, + 9
 *   a[1]: row r + 8, columns 2c, 2c + 1    a[3]: row r + 8, columns 2c + 8, + 9
 *   b[0]: rows 2c, 2c + 1, column r        b[1]: rows 2c + 8, + 9, column r
 *   c[0], c[1]: row r, columns 2c, 2c + 1  c[2], c[3]: row r + 8 */
#define KV_MMA_HALVES(name, type)                                             \
    KV_DEVICE void name(float *c, const uint32_t *a, const uint32_t *b)       \
    {                                                                         \
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." type "." type   \
                     ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "           \
                     "{%0,%1,%2,%3};"                                         \
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])         \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), \
                       "r"(b[1]));                                            \
    }
KV_MMA_HALVES(kv_mma_f16, "f16")
KV_MMA_HALVES(kv_mma_bf16, "bf16")
#undef KV_MMA_HALVES

/* c [16][8] += a [16][32] b [32][8], bytes, sums in int32; c as above.
 *   a[0]: row r, columns 4c to 4c + 3      a[2]: row r, columns 4c + 16 ..
 *   a[1]: row r + 8                        a[3]: row r + 8
 *   b[0]: rows 4c to 4c + 3, column r      b[1]: rows 4c + 16 .., column r */
#define KV_MMA_BYTES(name, types)                                             \
    KV_DEVICE void name(int *c, const uint32_t *a, const uint32_t *b)         \
    {                                                                         \
        asm volatile("mma.sync.aligned.m16n8k32.row.col.s32." types           \
                     ".s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "           \
                     "{%0,%1,%2,%3};"                                         \
                     : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])         \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), \
                       "r"(b[1]));                                            \
    }
KV_MMA_BYTES(kv_mma_s8s8, "s8.s8") /* a and b are signed */
KV_MMA_BYTES(kv_mma_s8u8, "s8.u8") /* only b is unsigned */
KV_MMA_BYTES(kv_mma_u8u8, "u8.u8")
#undef KV_MMA_BYTES

/* Transposes an 8x8 matrix of 16-bit values: a lane gives row r, columns 2c and
 * 2c + 1, and gets rows 2c (low) and 2c + 1 (high) of column r. */
KV_DEVICE uint32_t kv_transpose(uint32_t x)
{
    uint32_t y;

    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;"
                 : "=r"(y)
                 : "r"(x));
    return y;
}

/* ---- launching ---------------------------------------------------------- */

/* The bytes of shared memory that a block may have without opting in. */
enum { KV_SHARED_UNASKED = 48 << 10 };

template <class... A>
static cudaError_t kv_ask_shared(void (*kernel)(A...), size_t shared)
{
    return shared <= KV_SHARED_UNASKED
               ? cudaSuccess
               : cudaFuncSetAttribute(
                     reinterpret_cast<const void *>(kernel),
                     cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);
}

/* The number of blocks of this kernel that a multiprocessor holds; 0: the
 * kernel cannot run. */
template <class... A>
static size_t kv_resident_blocks(void (*kernel)(A...), unsigned threads,
                                 size_t shared)
{
    int n = 0;

    if (kv_ask_shared(kernel, shared) != cudaSuccess ||
        cudaOccupancyMaxActiveBlocksPerMultiprocessor(&n, kernel, (int)threads,
                                                      shared) != cudaSuccess)
        cudaGetLastError(); // not the next launch's error
    return (size_t)n;
}

/* Returns the error's text, or NULL. */
template <class... A>
static const char *kv_launch(void (*kernel)(A...), dim3 grid, dim3 block,
                             size_t shared, cudaStream_t stream, A... args)
{
    cudaError_t rc = kv_ask_shared(kernel, shared);

    if (rc == cudaSuccess) {
        kernel<<<grid, block, shared, stream>>>(args...);
        rc = cudaGetLastError();
    } else {
        cudaGetLastError(); // not the next launch's error
    }
    return rc == cudaSuccess ? NULL : cudaGetErrorString(rc);
}

/* Whether this kernel waits in kv_wait_for_earlier(): its code in use is for
 * compute capability 9.0 or later, not compiled by the driver from earlier
 * PTX. */
template <class... A> static bool kv_waits(void (*kernel)(A...))
{
    cudaFuncAttributes f = {};

    if (cudaFuncGetAttributes(&f, kernel) != cudaSuccess)
        cudaGetLastError(); // not the next launch's error
    return f.ptxVersion >= 90;
}

/* kv_launch() in the first stream, without shared memory, of a kernel that
 * calls kv_wait_for_earlier().  Its blocks may begin when all blocks of the
 * kernel before have ended, or have allowed it, but before what they wrote can
 * be read (programmatic dependent launch). */
template <class... A>
static const char *kv_launch_early(void (*kernel)(A...), dim3 grid, dim3 block,
                                   A... args)
{
    cudaLaunchAttribute early = {};
    static const bool waits = kv_waits(kernel); // kernels are compiled alike
    cudaLaunchConfig_t config = {};
    cudaError_t rc;

    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    config.gridDim = grid;
    config.blockDim = block;
    config.attrs = &early;
    config.numAttrs = waits ? 1 : 0;
    rc = cudaLaunchKernelEx(&config, kernel, args...);
    if (rc != cudaSuccess)
        cudaGetLastError(); // not the next launch's error
    return rc == cudaSuccess ? NULL : cudaGetErrorString(rc);
}

#endif
