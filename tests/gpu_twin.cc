/* Runs a kernel's threads as fibres; and a device of the host's memory. */
#include "tests/gpu_twin.h"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/runtime.h"

#include <chrono>
#include <csetjmp>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <ucontext.h>
#include <vector>

dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace
{

constexpr size_t stack_bytes = 64 << 10;
constexpr size_t SHARED = 227 << 10; /* bytes, a block's at most */

struct copy {
    void *to;
    const void *from;
};

struct fibre {
    ucontext_t context; /* where it begins; from then on: */
    jmp_buf here;
    bool begun; /* false in a new one */
    std::vector<uint8_t> stack;
    bool done;
    unsigned met; /* operations of its warp it took part in */
    bool waiting; /* for the block */
    bool waited;  /* for earlier kernels */
    std::deque<std::vector<copy>> groups;
    std::vector<copy> open;
};

/* Of a block, by its place in shared memory. */
struct arrival {
    std::vector<copy> copies;
    size_t expected; /* bytes */
    unsigned turns;  /* that are over */
};

struct warp {
    uint32_t word[2][32][8];
    unsigned arrived, met;
    twin_op op;
};

/* As many as the largest block had; a context must stay where it is. */
std::deque<fibre> fibres;
std::vector<warp> warps;
std::map<uint64_t *, arrival> arrivals;
std::vector<uint8_t> shared_memory;
jmp_buf scheduler_here;
const std::function<void()> *entry;
size_t current;
unsigned block_arrived;
bool early; /* a copy arrives when it is made, not when it is waited for */

[[noreturn]] void die(const char *what)
{
    fprintf(stderr, "gpu_twin: %s (thread %u of block %u, %u, %u)\n", what,
            threadIdx.x, blockIdx.x, blockIdx.y, blockIdx.z);
    abort();
}

void pause_thread(void)
{
    const size_t me = current;

    if (!_setjmp(fibres[me].here))
        _longjmp(scheduler_here, 1);
    current = me;
    threadIdx.x = (unsigned)me;
}

/* One thread after another, of all blocks: to begin anew takes system calls. */
[[noreturn]] void run_threads(void)
{
    for (;;) {
        (*entry)();
        if (!fibres[current].open.empty())
            die("a copy was never committed");
        fibres[current].done = true;
        pause_thread();
    }
}

bool can_run(size_t i)
{
    const fibre &f = fibres[i];

    return !f.done && !f.waiting && f.met <= warps[i / 32].met;
}

void make_fibre(fibre &f)
{
    f.stack.resize(stack_bytes);
    getcontext(&f.context);
    f.context.uc_stack.ss_sp = f.stack.data();
    f.context.uc_stack.ss_size = stack_bytes;
    makecontext(&f.context, run_threads, 0);
}

void start_block(size_t threads)
{
    while (fibres.size() < threads)
        make_fibre(fibres.emplace_back());
    warps.assign((threads + 31) / 32, warp());
    block_arrived = 0;
    arrivals.clear();
    for (fibre &f : fibres) {
        f.done = f.waiting = f.waited = false;
        f.met = 0;
        f.groups.clear();
        f.open.clear();
    }
}

/* Until it pauses or ends.  No signal masks: they would be system calls. */
void go_on(fibre &f)
{
    if (_setjmp(scheduler_here))
        return;
    if (f.begun)
        _longjmp(f.here, 1);
    f.begun = true;
    setcontext(&f.context);
}

/* backwards: the last thread goes first, so that code that depends on one order
 * fails. */
void run_block(size_t threads, bool backwards)
{
    start_block(threads);
    for (size_t left = threads; left;) {
        bool moved = false;

        for (size_t k = 0; k < threads; k++) {
            const size_t i = backwards ? threads - 1 - k : k;

            if (!can_run(i))
                continue;
            moved = true;
            current = i;
            threadIdx.x = (unsigned)i;
            go_on(fibres[i]);
            left -= fibres[i].done;
        }
        if (!moved)
            die("threads wait for each other for ever");
    }
    if (!arrivals.empty())
        die("an arrival was never ended");
}

} // namespace

bool twin_begins_early;

void twin_wait_for_earlier(void)
{
    fibres[current].waited = true;
}

void twin_must_have_waited(void)
{
    if (!fibres[current].waited)
        die("a load before the wait for earlier kernels");
}

void twin_block(void)
{
    if (++block_arrived == blockDim.x) {
        block_arrived = 0;
        for (fibre &f : fibres)
            f.waiting = false;
        return;
    }
    fibres[current].waiting = true;
    pause_thread();
}

const uint32_t (*twin_meet(twin_op op, const uint32_t *mine, size_t n))[8]
{
    warp &w = warps[current / 32];
    fibre &f = fibres[current];
    uint32_t(*word)[8] = w.word[f.met++ % 2];

    if (w.arrived && w.op != op)
        die("lanes of a warp meet in different operations");
    w.op = op;
    for (size_t i = 0; i < n; i++)
        word[current % 32][i] = mine[i];
    if (++w.arrived == 32) {
        w.arrived = 0;
        w.met++;
    } else {
        pause_thread();
    }
    return word;
}

uint8_t *twin_shared(void)
{
    return shared_memory.data();
}

static void arrive(const copy &c)
{
    memcpy(c.to, c.from, 16);
}

static void check_copy(void *shared, const void *global, size_t bytes)
{
    if ((uintptr_t)shared % 16 || (uintptr_t)global % 16 || bytes % 16)
        die("a copy's address or size is not a multiple of 16");
    if ((uint8_t *)shared < shared_memory.data() ||
        (uint8_t *)shared + bytes > shared_memory.data() + shared_memory.size())
        die("a copy goes outside shared memory");
}

void twin_copy(void *shared, const void *global)
{
    check_copy(shared, global, 16);
    fibres[current].open.push_back({shared, global});
    if (early)
        arrive(fibres[current].open.back());
}

void twin_commit(void)
{
    fibres[current].groups.push_back(std::move(fibres[current].open));
    fibres[current].open.clear();
}

void twin_wait(int newest)
{
    auto &groups = fibres[current].groups;

    while (groups.size() > (size_t)newest) {
        for (const copy &c : groups.front())
            if (!early)
                arrive(c);
        groups.pop_front();
    }
}

static arrival &arrival_at(uint64_t *a)
{
    if (!arrivals.count(a))
        die("no arrival begins there");
    return arrivals[a];
}

void twin_arrival_begin(uint64_t *a)
{
    if (arrivals.count(a))
        die("an arrival begins twice");
    arrivals[a] = arrival();
}

void twin_arrival_end(uint64_t *a)
{
    if (arrival_at(a).expected)
        die("an arrival ends before its bytes are there");
    arrivals.erase(a);
}

void twin_expect(uint64_t *a, size_t bytes)
{
    if (arrival_at(a).expected)
        die("an arrival's next turn begins before its last is over");
    arrival_at(a).expected = bytes;
}

void twin_copy_bulk(void *shared, const void *global, size_t bytes, uint64_t *a)
{
    check_copy(shared, global, bytes);
    for (size_t i = 0; i < bytes; i += 16) {
        const copy c = {(uint8_t *)shared + i, (const uint8_t *)global + i};

        arrival_at(a).copies.push_back(c);
        if (early)
            arrive(c);
    }
}

void twin_arrival_wait(uint64_t *a, unsigned parity)
{
    arrival &x = arrival_at(a);

    if (x.turns % 2 != parity)
        return;
    if (!x.expected || x.copies.size() * 16 != x.expected)
        die("bytes that are waited for are not those that are expected");
    for (const copy &c : x.copies)
        if (!early)
            arrive(c);
    x.copies.clear();
    x.expected = 0;
    x.turns++;
}

void twin_launched(void *kernel)
{
    static std::mutex one_at_a_time;
    static std::set<void *> before;
    const std::lock_guard<std::mutex> lock(one_at_a_time);
    const char *path = getenv("KV_TWIN_LAUNCHED");

    if (!path || !before.insert(kernel).second)
        return;

    FILE *f = fopen(path, "a");

    if (!f)
        abort();
    fprintf(f, "%td\n",
            reinterpret_cast<char *>(kernel) -
                reinterpret_cast<char *>(twin_launched));
    fclose(f);
}

/* Limits of a launch: those that every supported device has, but the largest
 * device's shared memory. */
static bool can_launch(dim3 grid, dim3 block, size_t shared)
{
    return grid.x >= 1 && grid.y >= 1 && grid.z >= 1 && grid.x <= INT32_MAX &&
           grid.y <= 65535 && grid.z <= 65535 && block.x >= 1 &&
           block.x <= 1024 && block.x % 32 == 0 && block.y == 1 &&
           block.z == 1 && shared <= SHARED;
}

void twin_run(dim3 grid, dim3 block, size_t shared,
              const std::function<void()> &thread)
{
    static std::mutex one_at_a_time; /* the caller may have threads */
    static unsigned runs;
    const std::lock_guard<std::mutex> lock(one_at_a_time);

    if (!can_launch(grid, block, shared)) {
        fprintf(stderr,
                "gpu_twin: no device launches a grid of %u, %u, %u blocks of "
                "%u, %u, %u threads with %zu bytes of shared memory\n",
                grid.x, grid.y, grid.z, block.x, block.y, block.z, shared);
        abort();
    }
    gridDim = grid;
    blockDim = block;
    entry = &thread;
    for (unsigned z = 0; z < grid.z; z++)
        for (unsigned y = 0; y < grid.y; y++)
            for (unsigned x = 0; x < grid.x; x++) {
                blockIdx = dim3(x, y, z);
                shared_memory.assign(shared, 0xff);
                early = runs / 2 % 2;
                run_block(block.x, runs++ % 2);
            }
}

static const float *all_halves(void)
{
    float *const half = new float[65536];

    for (unsigned i = 0; i < 65536; i++)
        half[i] = kv_f16_to_f32((uint16_t)i);
    return half;
}

const float *const twin_halves = all_halves();

/* ---- the device ---------------------------------------------------------- */

static int offloads;

extern "C" void kv_device_offload(int on)
{
    offloads = on;
}

extern "C" int kv_device_offloads(void)
{
    return offloads;
}

extern "C" int kv_device_cuda(size_t index, struct kv_device *d,
                              struct kv_err *e)
{
    (void)e;
    *d = {};
    snprintf(d->name, sizeof(d->name), "host twin %zu", index);
    d->major = 9;
    d->multiprocessors = 6;
    d->shared = SHARED;
    d->l2 = 1 << 20;
    d->memory = d->free = (size_t)64 << 30;
    return 0;
}

/* 16-byte aligned, and no byte more: sanitizers find accesses past the end. */
extern "C" int kv_device_alloc(void **p, size_t bytes, struct kv_err *)
{
    *p = malloc(bytes);
    memset(*p, 0xff, bytes);
    return 0;
}

extern "C" void kv_device_free(void *p)
{
    free(p);
}

extern "C" int kv_device_upload(void *to, const void *from, size_t bytes,
                                struct kv_err *)
{
    memcpy(to, from, bytes);
    return 0;
}

extern "C" int kv_device_upload_rows(void *to, size_t to_row, const void *from,
                                     size_t n, size_t rows, struct kv_err *)
{
    for (size_t i = 0; i < rows; i++)
        memcpy(static_cast<char *>(to) + i * to_row,
               static_cast<const char *>(from) + i * n, n);
    return 0;
}

extern "C" int kv_device_download(void *to, const void *from, size_t bytes,
                                  struct kv_err *)
{
    memcpy(to, from, bytes);
    return 0;
}

extern "C" int kv_device_copy(void *to, const void *from, size_t bytes,
                              struct kv_err *)
{
    memcpy(to, from, bytes);
    return 0;
}

extern "C" int kv_device_zero(void *p, size_t bytes, struct kv_err *)
{
    memset(p, 0, bytes);
    return 0;
}

/* Work is done when it is launched: streams need not wait. */
extern "C" int kv_device_fork(void **stream, struct kv_err *)
{
    *stream = NULL;
    return 0;
}

extern "C" int kv_device_join(void *, struct kv_err *)
{
    return 0;
}

extern "C" int kv_device_time(int (*once)(void *, struct kv_err *), void *arg,
                              size_t warmup, size_t reps, double *seconds,
                              struct kv_err *e)
{
    for (size_t i = 0; i < warmup + reps; i++) {
        const auto start = std::chrono::steady_clock::now();

        if (once(arg, e))
            return -1;
        if (i >= warmup)
            seconds[i - warmup] = std::chrono::duration<double>(
                                      std::chrono::steady_clock::now() - start)
                                      .count();
    }
    return 0;
}

/* Of no device: figures of the twin mean nothing. */
extern "C" int kv_device_bandwidth(const struct kv_device *, double *read,
                                   double *copy, struct kv_err *)
{
    *read = *copy = 1;
    return 0;
}

/* ---- matrix products ----------------------------------------------------- */

static float value(const void *x, size_t i, enum kv_type type)
{
    return type == KV_TYPE_F32    ? ((const float *)x)[i]
           : type == KV_TYPE_BF16 ? kv_bf16_to_f32(((const uint16_t *)x)[i])
                                  : twin_half(((const uint16_t *)x)[i]);
}

static void put(void *x, size_t i, enum kv_type type, float f)
{
    if (type == KV_TYPE_F32)
        ((float *)x)[i] = f;
    else
        ((uint16_t *)x)[i] =
            type == KV_TYPE_BF16 ? kv_f32_to_bf16(f) : kv_f32_to_f16(f);
}

static void multiply_row(const struct kv_gpu_product *p, size_t i, size_t r)
{
    std::vector<float> row(p->k);

    for (size_t k = 0; k < p->k; k++)
        row[k] = value(p->a, i * p->a_next + r * p->a_row + k, p->type);
    for (size_t c = 0; c < p->n; c++) {
        const size_t to = i * p->c_next + r * p->c_row + c;
        const size_t b = i * p->b_next + c * (p->transposed ? 1 : p->b_row);
        const size_t step = p->transposed ? p->b_row : 1;
        double sum = p->add ? value(p->c, to, p->c_type) : 0;

        for (size_t k = 0; k < p->k; k++)
            sum += (double)row[k] * value(p->b, b + k * step, p->type);
        put(p->c, to, p->c_type, (float)sum);
    }
}

extern "C" int kv_gpu_multiply(const struct kv_gpu_product *p, struct kv_err *)
{
    for (size_t i = 0; i < (p->batch ? p->batch : 1); i++)
        for (size_t r = 0; r < p->m; r++)
            multiply_row(p, i, r);
    return 0;
}
