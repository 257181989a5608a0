#include "tools/kvdump_args.h"
#include "tools/kvdump_words.h"

#include <math.h>
#include <string.h>

void kvdump_parse_tensors(const struct kvdump_args *a, bool have[KV_TENSORS])
{
    enum { Q = 1, K = 2, V = 4, PRE = 1, POST = 2 };
    const unsigned what = kvdump_words(
        "--what", a->what, (const char *const[]){"q", "k", "v", NULL});
    const unsigned rope = kvdump_words(
        "--rope", a->rope, (const char *const[]){"pre", "post", NULL});

    have[KV_T_Q] = what & Q;
    have[KV_T_V] = what & V;
    have[KV_T_K] = what & K && rope & POST;
    have[KV_T_K_PRE] = what & K && rope & PRE;
    have[KV_T_K_GRADIENT] = what & K && a->fisher;
    have[KV_T_V_GRADIENT] = what & V && a->fisher;
    if (a->fisher && !(what & (K | V)))
        kv_die("--fisher: --what %s has neither k nor v", a->what);
}

bool kvdump_by_layers(const struct kvdump_args *a)
{
    return a->split && !strcmp(a->split, "layers");
}

const char *kvdump_instead(const struct kvdump_args *a)
{
    return a->about        ? "about"
           : a->operations ? "operations"
           : a->tokens     ? "tokens"
                           : NULL;
}

void kvdump_parse_shape(struct kvdump_args *a, char *const *operand, int n)
{
    if (n != 1 || (!a->about && !a->operations)) {
        kv_common_no_operands(operand, n);
        return;
    }
    if (a->model)
        kv_die("-m %s and %s: one of both is expected", a->model, *operand);
    a->shape = *operand;
}

/* Refuses options of a model's run with --from, and options of --from without
 * it. */
static void check_from(const struct kvdump_args *a)
{
    const struct {
        bool given;
        const char *name;
    } runs[] = {{a->model, "-m"},
                {a->text, "-f"},
                {a->shape, "a config.json as operand"},
                {a->ctx, "-c"},
                {a->windows, "-n"},
                {a->layers, "--layers"},
                {a->gemm, "--gemm"},
                {a->pool_heads, "--pool-heads"},
                {a->fisher, "--fisher"},
                {a->bos, "--bos"},
                {a->parse_special, "--parse-special"},
                {a->ranks || a->split, "--ranks"},
                {kvdump_instead(a), "--about, --operations or --tokens"}},
      own[] = {{a->config, "--config"},
               {a->layout, "--layout"},
               {a->name, "--name"},
               {!isnan(a->theta), "--rope-theta"}};

    for (size_t i = 0; a->from && i < sizeof(runs) / sizeof(*runs); i++)
        if (runs[i].given)
            kv_die("%s goes without --from, which takes tensors as they are",
                   runs[i].name);
    for (size_t i = 0; !a->from && i < sizeof(own) / sizeof(*own); i++)
        if (own[i].given)
            kv_die("%s goes with --from", own[i].name);
    if (a->config && !isnan(a->theta))
        kv_die("--config and --rope-theta both say RoPE: one is expected");
}

void kvdump_check_args(const struct kvdump_args *a)
{
    check_from(a);
    if (a->common.append && !a->about && !a->operations)
        kv_die("--append adds rows to a table: it goes with --about or "
               "--operations");
    if (a->from)
        return;
    if (!a->model && !a->shape)
        kv_die("wants a model: -m MODEL (try --help)");
    if (a->about && a->operations)
        kv_die("--about and --operations are two tables: one is expected");
    if (a->fisher && kvdump_instead(a))
        kv_die("--fisher goes into a dump, --%s makes none", kvdump_instead(a));
    if (a->pool_heads && kvdump_instead(a))
        kv_die("--pool-heads goes into a dump, --%s makes none",
               kvdump_instead(a));
    if (a->gemm && kvdump_instead(a))
        kv_die("--gemm goes into a dump, --%s makes none", kvdump_instead(a));
    if (a->fisher && a->gemm && strcmp(a->gemm, "f32") != 0)
        kv_die("--fisher goes with --gemm f32, not %s: gradients are computed "
               "in f32",
               a->gemm);
    if (a->ranks && kvdump_instead(a))
        kv_die("--ranks goes into a dump, --%s makes none", kvdump_instead(a));
    if (a->split && !a->ranks)
        kv_die("--split goes with --ranks");
    if (a->split && !kvdump_by_layers(a) && strcmp(a->split, "windows") != 0)
        kv_die("--split %s: expected windows or layers", a->split);
    if (kvdump_by_layers(a) && a->fisher)
        kv_die("--split layers does not go with --fisher");
    if (a->bos && kvdump_instead(a))
        kv_die("--bos goes into a dump, --%s makes none", kvdump_instead(a));
    if (a->about && a->parse_special)
        kv_die("--parse-special goes with a text, --about reads none");
    if (!a->batch)
        kv_die("--batch 0: expected at least 1 sequence");
    if (a->about || a->operations)
        return;
    if (a->batch != KVDUMP_BATCH)
        kv_die("--batch goes with --about or --operations");
    if (a->tokens && (a->ctx || a->windows))
        kv_die("--%s goes into a dump: --tokens prints the whole text",
               a->ctx ? "ctx" : "windows");
    if (a->tokens && a->common.format)
        kv_die("--format %s: --tokens prints ids, one a line",
               a->common.format);
    if (!a->text)
        kv_die("wants a text: -f TEXT (try --help)");
    if (!a->tokens && !a->common.output)
        kv_die("wants the file to write: -o dump.h5");
}
