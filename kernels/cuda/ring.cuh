/* How codes reach decode attention's warps: steps of tiles stream through a
 * ring in shared memory.  K, V: policies of decode.cuh; TOGETHER: the warps of
 * a block share one ring, otherwise each has its own. */
#ifndef KV_CUDA_RING_CUH
#define KV_CUDA_RING_CUH

#include "kernels/cuda/decode.h"
#include "kernels/cuda/gpu.cuh"

/* Warps of a block, except where a decode kernel's policies allow more
 * (decode.cuh, WARPS). */
enum { KV_WARPS = 8 };

/* The number of warps of this block; MOST: their maximum, for the compiler. */
template <unsigned MOST = 0> KV_DEVICE unsigned kv_block_warps(void)
{
    return MOST == KV_WARPS ? (unsigned)KV_WARPS : blockDim.x / 32;
}

/* Tokens of one run that a block attends to. */
struct kv_span {
    unsigned first;       /* position of the run's first token */
    const uint8_t *k, *v; /* the KV head's tiles */
    unsigned first_tile, n_tiles;
    unsigned common; /* the run's tokens that every query sees */
    unsigned seen;   /* .. that some query of this warp sees; later ones in the
                      * last tile may be padding */
};

/* Starts a copy of bytes by a warp, or with TOGETHER by a block, 16 bytes per
 * thread at a time. */
template <bool TOGETHER>
KV_DEVICE void kv_fetch(uint8_t *to, const uint8_t *from, unsigned bytes)
{
    constexpr unsigned all = (TOGETHER ? 32 * KV_WARPS : 32) * 16;

    for (unsigned at = (TOGETHER ? threadIdx.x : kv_lane()) * 16; at < bytes;
         at += all)
        kv_copy_async(kv_place_of(to) + at, from + at);
}

template <bool TOGETHER> KV_DEVICE void kv_sync(void)
{
    if (TOGETHER)
        kv_sync_block();
    else
        kv_sync_warp();
}

/* The ring of a warp, or of a block: STAGES steps of both sides, the heads of
 * the tiles that these steps can belong to, and arrivals, which signal that a
 * step is there.  A block walks a sequence's runs one after another, each with
 * its own arrivals (run: which run).  All copies of a run have arrived before
 * the next run begins, but racecheck reports a hazard if two runs wait at one
 * place in the code. */
template <class K, class V, int STAGES, bool TOGETHER = false> struct kv_ring {
    static constexpr int STEPS = K::TILE / K::T;
    static constexpr int TILES = (STAGES + STEPS - 2) / STEPS + 1;
    static constexpr unsigned THREADS = TOGETHER ? 32 * KV_WARPS : 32;
    static constexpr unsigned RUNS = TOGETHER ? KV_GPU_RUNS : 1;
    static constexpr size_t ARRIVALS =
        (RUNS * STAGES * sizeof(kv_arrival) + 15) / 16 * 16;

    unsigned k_step, v_step, k_head, v_head, run;
    uint8_t *base;

    static __host__ __device__ size_t bytes(const typename K::params &k,
                                            const typename V::params &v)
    {
        return ARRIVALS + STAGES * (K::step_bytes(k) + V::step_bytes(v)) +
               TILES * (K::head_bytes(k) + V::head_bytes(v));
    }
    __device__ kv_arrival *arrival(unsigned j) const
    {
        return reinterpret_cast<kv_arrival *>(base) + run * STAGES + j % STAGES;
    }
    __device__ uint8_t *codes(unsigned j) const
    {
        return base + ARRIVALS + j % STAGES * (k_step + v_step);
    }
    __device__ uint8_t *head(unsigned j) const
    {
        return base + ARRIVALS + STAGES * (k_step + v_step) +
               j / STEPS % TILES * (k_head + v_head);
    }
    __device__ void begin(void) const
    {
        for (unsigned j = 0; j < STAGES; j++)
            kv_arrival_begin<THREADS>(arrival(j));
        kv_sync<TOGETHER>();
    }
    __device__ void end(void) const
    {
        kv_sync<TOGETHER>();
        for (unsigned j = 0; j < STAGES; j++)
            kv_arrival_end<THREADS>(arrival(j));
    }
    /* Starts the copy of the warp's step j, which is step j % STEPS of a tile;
     * k, v: this tile. */
    __device__ void fetch(unsigned j, const uint8_t *k, const uint8_t *v) const
    {
        const bool first = j % STEPS == 0;
        kv_arrival *const a = arrival(j);

        if (!kv_copies<THREADS>())
            return;
        kv_expect(a, k_step + v_step + (first ? k_head + v_head : 0));
        if (first && k_head)
            kv_copy_bulk<THREADS>(head(j), k, k_head, a);
        if (first && v_head)
            kv_copy_bulk<THREADS>(head(j) + k_head, v, v_head, a);
        kv_copy_bulk<THREADS>(codes(j), k + k_head + j % STEPS * k_step, k_step,
                              a);
        kv_copy_bulk<THREADS>(codes(j) + k_step,
                              v + v_head + j % STEPS * v_step, v_step, a);
        kv_expected(a);
    }
    /* Waits until step j, whose copy was started, has arrived. */
    __device__ void wait(unsigned j) const
    {
        kv_arrival_wait(arrival(j), j / STAGES % 2);
        kv_sync<TOGETHER>();
    }
};

/* The steps of a warp's share of a span, or of a block's whole span.  W: the
 * maximum number of warps. */
template <class K, class V, int STAGES, bool TOGETHER, unsigned W = KV_WARPS>
struct kv_course {
    static_assert(K::T == V::T && K::TILE == V::TILE,
                  "keys and values step together");
    using ring_type = kv_ring<K, V, STAGES, TOGETHER>;
    static constexpr int STEPS = ring_type::STEPS;

    ring_type ring;
    const uint8_t *k, *v;    /* the KV head's tiles */
    unsigned k_tile, v_tile; /* bytes */
    unsigned first, n_steps; /* the first tile */

    __device__ kv_course(const typename K::params &kp,
                         const typename V::params &vp, const kv_span &span,
                         uint8_t *ring_base, unsigned run = 0)
        : ring{(unsigned)K::step_bytes(kp),
               (unsigned)V::step_bytes(vp),
               (unsigned)K::head_bytes(kp),
               (unsigned)V::head_bytes(vp),
               run,
               ring_base},
          k(span.k), v(span.v), k_tile(ring.k_head + STEPS * ring.k_step),
          v_tile(ring.v_head + STEPS * ring.v_step)
    {
        constexpr unsigned share = KV_GPU_TILE / K::TILE;
        const unsigned warp = TOGETHER ? 0 : kv_uniform_warp();
        const unsigned n = span.n_tiles * share;

        first = span.first_tile * share + warp;
        n_steps = n > warp ? ((n - warp - 1) / apart() + 1) * STEPS : 0;
    }
    /* The distance of its tiles. */
    static __device__ unsigned apart(void)
    {
        return TOGETHER ? 1 : kv_block_warps<W>();
    }
    /* Starts the copy of step j, if there is one. */
    __device__ void fetch(unsigned j) const
    {
        if (j < n_steps) {
            const size_t tile = first + (size_t)(j / STEPS) * apart();

            ring.fetch(j, k + tile * k_tile, v + tile * v_tile);
        }
    }
    /* Call before kv_walk() and before anything else that waits for memory. */
    __device__ void begin(void) const
    {
        ring.begin();
        for (unsigned j = 0; j + 1 < STAGES; j++)
            fetch(j);
    }
    /* The first token of step j. */
    __device__ unsigned token(unsigned j) const
    {
        return (first + j / STEPS * apart()) * K::TILE + j % STEPS * K::T;
    }
};

#endif
