#include "tools/common.h"
#include "kernels/device.h"
#include "kernels/hadamard.h"
#include "kernels/level.h"
#include "lib/base/alloc.h"
#include "lib/base/decimal.h"
#include "lib/base/file.h"
#include "lib/base/progress.h"
#include "lib/base/threads.h"
#include "lib/exec.h"
#include "lib/mixed.h"
#include "lib/model/model.h"
#include "lib/policy.h"
#include "lib/scheme.h"
#include "lib/spec_columns.h"
#include "lib/spec_engines.h"

#include <ctype.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Parses "cuda" or "cuda:N"; false: any other text. */
static bool parse_cuda(const char *device, size_t *index)
{
    int end = 0;

    *index = 0;
    if (!strcmp(device, "cuda"))
        return true;
    return !strncmp(device, "cuda:", 5) && isdigit((unsigned char)device[5]) &&
           sscanf(device + 5, "%zu%n", index, &end) == 1 && !device[5 + end];
}

/* Sets the device.  If the user asks for a GPU that cannot be used, the program
 * ends rather than run on the CPU. */
static void set_device(struct kv_common *c)
{
    const char *device = c->device;
    struct kv_err e = {""};
    size_t index;

    if (!strcmp(device, "auto") || !strcmp(device, "cpu"))
        return;
    if (!parse_cuda(device, &index))
        kv_die("--device %s: expected auto, cpu or cuda[:N]", device);
    if (!c->can_gpu)
        kv_die("--device %s: this run has no part for a GPU (kvattn, kvcalib, "
               "kvgen, kvppl, kvquant have, and kvdump but for --fisher)",
               device);
    if (kv_device_cuda(index, &c->gpu, &e))
        kv_die("--device %s: %s", device, e.msg);
    c->on_gpu = true;
    kv_device_offload(1);
}

static void set_level(const char *name)
{
    struct kv_err e = {""};
    enum kv_level level;

    if (name && (kv_level_parse(name, &level, &e) || kv_level_set(level, &e)))
        kv_die("--level %s: %s", name, e.msg);
}

/* OMP_NUM_THREADS, else one thread for each processor, at most `most`. */
static size_t default_threads(size_t most)
{
    struct kv_err e = {""};
    size_t n;

    if (kv_threads_asked(&n, &e))
        kv_die("%s", e.msg);
    if (n)
        return n;
    n = (size_t)omp_get_max_threads();
    return n < most ? n : most;
}

/* Sets the number of threads.  Ends the program if not all can run, because
 * rows would name a wrong number. */
static void set_threads(struct kv_common *c)
{
    const size_t most = (size_t)omp_get_thread_limit();

    if (c->threads > KV_THREADS_MAX)
        kv_die("--threads %zu: expected at most %d", c->threads,
               KV_THREADS_MAX);
    if (!c->threads)
        c->threads = default_threads(most);
    if (c->threads > most)
        kv_die("%zu threads: OMP_THREAD_LIMIT is %zu", c->threads, most);
    omp_set_dynamic(0);
    omp_set_num_threads((int)c->threads);
}

/* Starts OpenMP's threads now, so that too little memory for their stacks shows
 * at once. */
static void start_threads(const struct kv_common *c)
{
    struct kv_err e = {""};
    size_t n = 0, stack = SIZE_MAX;

    if (kv_threads_try(c->threads - 1, &e))
        kv_die("%s", e.msg);

#pragma omp parallel reduction(+ : n) reduction(min : stack)
    {
        n++;
        if (omp_get_thread_num())
            stack = kv_thread_stack();
    }
    if (stack < KV_STACK_MIN && kv_fail_stack(stack, &e))
        kv_die("%s", e.msg);
    kv_detail("%zu threads", n);
}

void kv_common_start(struct kv_common *c)
{
    struct kv_err e = {""};

    if (kv_stack_check(&e))
        kv_die("%s", e.msg);
    set_device(c);
    set_level(c->level);
    set_threads(c);
    if (kv_results_check_format(c->format, &e))
        kv_die("%s", e.msg);
    if (c->append && !c->output)
        kv_die("--append wants -o FILE, whose rows are kept");
    if (c->append && c->columns)
        kv_die("--columns does not go with --append: the others tell which "
               "rows are there");
    kv_catch_signals();
    start_threads(c);
}

int kv_common_place(const struct kv_common *c, struct kv_model *m,
                    const char *gemm, struct kv_err *e)
{
    const bool bf16 = gemm && !strcmp(gemm, "bf16");

    if (gemm && !bf16 && strcmp(gemm, "f32") != 0)
        return kv_fail(e, "--gemm %s: expected f32 or bf16, of kvppl also auto",
                       gemm);
    if (gemm && c->on_gpu)
        return kv_fail(e, "--gemm goes with --device cpu: on a GPU products "
                          "are in the weights' type");
    if (bf16)
        return kv_model_to_bf16(m, e);
    return c->on_gpu ? kv_model_to_device(m, &c->gpu, c->memory, e) : 0;
}

void kv_common_specs(const struct kv_strings *specs)
{
    struct kv_err e = {""};
    size_t n;

    if (kv_spec_count(specs->item, specs->n, &n, &e))
        kv_die("%s", e.msg);
    kv_exec_allow(specs->item, specs->n);
}

void kv_common_no_specs(char *const *operand, int n)
{
    for (int i = 0; i < n; i++)
        if (kv_spec_looks_like(operand[i]))
            kv_die("%s stands without -s: quote sweeps, -s "
                   "'kivi:b{2,4}g32', so that the shell leaves the braces",
                   operand[i]);
}

/* Ends the program if llama.cpp has no such type. */
static void check_cache_type(const char *option, const char *type)
{
    char text[256], *spec;
    struct kv_err e;

    snprintf(text, sizeof(text), "llama.cpp:%s", type);
    if (kv_spec_of_engine(&spec, text, &e))
        kv_die("%s is an option of llama.cpp, and %s", option, e.msg);
    free(spec);
}

void kv_common_no_cache_types(int argc, char **argv)
{
    const char *type[KV_SIDES] = {"f16", "f16"}, *found = NULL;

    for (int i = 1; i + 1 < argc; i++) {
        const bool k =
            !strcmp(argv[i], "-ctk") || !strcmp(argv[i], "--cache-type-k");

        if (!k && strcmp(argv[i], "-ctv") != 0 &&
            strcmp(argv[i], "--cache-type-v") != 0)
            continue;
        found = argv[i];
        check_cache_type(found, argv[i + 1]);
        type[k ? KV_K : KV_V] = argv[i + 1];
    }
    if (found && !strcmp(type[KV_K], type[KV_V]))
        kv_die("%s is an option of llama.cpp: write -s %s", found, type[KV_K]);
    if (found)
        kv_die("%s is an option of llama.cpp: write -s K-%s/V-%s", found,
               type[KV_K], type[KV_V]);
}

void kv_common_no_operands(char *const *operand, int n)
{
    if (n)
        kv_die("takes no operands, but found '%s'", *operand);
}

void kv_common_queries(size_t n, size_t default_n, size_t ctx)
{
    if (n != default_n && n > ctx)
        kv_note("--queries %zu: a window has %zu positions, all are taken", n,
                ctx);
}

/* The number of values that a codec of the spec rotates together; 0: none. */
static size_t rotated(const struct kv_spec *s, const struct kv_shape *shape)
{
    return s->scheme->hadamard ? s->scheme->hadamard(s, shape) : 0;
}

static void note_blocks(const struct kv_spec *s, size_t size)
{
    const size_t block = kv_hadamard_size(size);

    if (block < size)
        kv_note("%s: %zu values are no power of two: their Hadamard transform "
                "is %zu blocks of %zu",
                s->scheme->name, size, size / block, block);
}

void kv_common_hadamard(const struct kv_spec *specs, size_t n,
                        const struct kv_shape *shape)
{
    size_t *said = NULL, n_said = 0;

    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < kv_spec_members(&specs[i]); j++) {
            const struct kv_spec *s = kv_spec_member(&specs[i], j);
            const size_t size = rotated(s, shape);
            size_t k = 0;

            while (k < n_said && said[k] != size)
                k++;
            if (!size || k < n_said)
                continue;
            said = kv_realloc(said, n_said + 1, sizeof(*said));
            said[n_said++] = size;
            note_blocks(s, size);
        }
    free(said);
}

void kv_common_note_clipped(const struct kv_spec *spec, double clipped)
{
    if (clipped > 0)
        kv_note("%s: %.0f value%s beyond fp16's range, where an fp16 cache "
                "holds infinity, clipped to 65504",
                spec->text, clipped, clipped > 1 ? "s are" : " is");
}

void kv_common_note_stored(const struct kv_spec *spec, const struct kv_bits *b)
{
    const bool k = b->coded[KV_K] > 0, v = b->coded[KV_V] > 0;

    if (!k || !v)
        kv_note("%s quantizes %s: all tokens are sinks, residual or in a block "
                "that is not full, which the cache keeps in fp16",
                spec->text,
                v   ? "no keys"
                : k ? "no values"
                    : "nothing");
    kv_common_note_clipped(spec, b->clipped);
}

struct kv_results_form kv_common_form(const struct kv_common *c)
{
    return (struct kv_results_form){.path = c->output,
                                    .format = c->format,
                                    .chosen = c->columns,
                                    .keys = c->append ? c->keys : NULL,
                                    .append = c->append,
                                    .safe = c->safe_csv};
}

int kv_common_table(struct kv_results **r, const struct kv_common *c,
                    const char *path, const char *const *columns,
                    const struct kv_spec *specs, size_t n, struct kv_err *e)
{
    struct kv_results_form form = kv_common_form(c);
    char **params = kv_spec_columns(specs, n);
    int rc;

    form.path = path;
    form.params = params;
    rc = kv_results_open(r, &form, columns, e);
    kv_spec_columns_free(params);
    return rc;
}

void kv_common_conditions(const struct kv_common *c, struct kv_conditions *to)
{
    to->device = c->on_gpu ? c->gpu.name : "cpu";
    to->level = c->on_gpu ? "cuda" : kv_level_name(kv_level_get());
    to->threads = c->threads;
    to->seed = c->seed;
}

static void list_param(const struct kv_param *p)
{
    char range[2 * KV_DECIMAL_CHARS + 4] = "";

    if (!p->choices)
        snprintf(range, sizeof(range), "%s to %s", kv_decimal(p->min).text,
                 kv_decimal(p->max).text);
    printf("    %-9s %-24s %s\n", p->name, p->choices ? p->choices : range,
           p->help);
}

static void list_params(const struct kv_scheme *k)
{
    const struct kv_param *p;

    for (size_t i = 0; (p = kv_spec_param(k, i)); i++)
        list_param(p);
}

static void widen(int width[2], const char *name, const char *brief)
{
    width[0] = (int)strlen(name) > width[0] ? (int)strlen(name) : width[0];
    width[1] = (int)strlen(brief) > width[1] ? (int)strlen(brief) : width[1];
}

/* Prints three columns, as wide as the longest name and brief. */
static void list_line(const char *name, const char *brief, const char *spec)
{
    int width[2] = {0};

    for (size_t i = 0; kv_schemes[i]; i++)
        widen(width, kv_schemes[i]->name, kv_schemes[i]->brief);
    for (size_t i = 0; kv_policies[i]; i++)
        widen(width, kv_policies[i]->name, kv_policies[i]->brief);
    printf("%-*s %-*s %s\n", width[0], name, width[1], brief, spec);
}

static void list_scheme(const struct kv_scheme *k, const char *spec)
{
    list_line(k->name, k->brief, spec);
    if (kv_verbosity() > 1)
        list_params(k);
}

/* Lists the policies in the form POLICY+SPEC. */
static void list_policies(void)
{
    for (size_t i = 0; kv_policies[i]; i++) {
        const struct kv_policy *p = kv_policies[i];
        char text[64];

        snprintf(text, sizeof(text), "%s+SPEC", p->name);
        list_line(p->name, p->brief, text);
        for (size_t j = 0; p->params[j].name && kv_verbosity() > 1; j++)
            list_param(&p->params[j]);
    }
}

void kv_common_list(void)
{
    for (size_t i = 0; kv_schemes[i]; i++) {
        const struct kv_scheme *k = kv_schemes[i];
        struct kv_spec s;
        struct kv_err e = {""};

        if (kv_spec_parse(&s, k->name, &e))
            kv_die("%s", e.msg);
        list_scheme(k, s.text);
    }
    list_scheme(&kv_scheme_mixed, "mixed,file=LAYERS");
    list_scheme(&kv_scheme_exec, "exec:b2,cmd=COMMAND");
    list_line("", "a scheme for keys, another for values", "K-SPEC/V-SPEC");
    list_policies();
}
