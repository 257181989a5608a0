#include "lib/base/shard.h"
#include "lib/base/alloc.h"
#include "lib/base/progress.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int kv_shard_parse(struct kv_shard *s, const char *text, struct kv_err *e)
{
    int end = 0;

    if (strspn(text, "0123456789/") != strlen(text) ||
        sscanf(text, "%zu/%zu%n", &s->i, &s->n, &end) != 2 || text[end] ||
        s->i < 1 || s->i > s->n)
        return kv_fail(e, "--shard %s: expected I/N with 1 <= I <= N", text);
    return 0;
}

/* ---- a launcher ---------------------------------------------------------- */

/* The number i of a process, from 0 on, among n processes.  variable: the
 * environment variable that gave i; NULL: none. */
struct place {
    const char *variable;
    size_t i, n;
};

static int number(const char *variable, size_t absent, size_t *x,
                  struct kv_err *e)
{
    const char *text = getenv(variable);
    char *end;

    *x = absent;
    if (!text)
        return 0;
    errno = 0;
    *x = strtoul(text, &end, 10);
    if (!isdigit((unsigned char)*text) || *end || errno)
        return kv_fail(e, "--shard: %s is '%s', expected a whole number",
                       variable, text);
    return 0;
}

static int array_place(struct place *p, struct kv_err *e)
{
    static const char id[] = "SLURM_ARRAY_TASK_ID";
    size_t at, count, min, max, step;

    *p = (struct place){NULL, 0, 1};
    if (!getenv(id))
        return 0;
    if (number(id, 0, &at, e) ||
        number("SLURM_ARRAY_TASK_COUNT", 0, &count, e) ||
        number("SLURM_ARRAY_TASK_MIN", 0, &min, e) ||
        number("SLURM_ARRAY_TASK_STEP", 1, &step, e) ||
        number("SLURM_ARRAY_TASK_MAX", min + (count - 1) * step, &max, e))
        return -1;
    if (!count || !step)
        return kv_fail(e,
                       "--shard: %s is %zu of %zu tasks by %zu "
                       "(SLURM_ARRAY_TASK_COUNT, _STEP), expected at least 1",
                       id, at, count, step);
    if (max != min + (count - 1) * step)
        return kv_fail(e,
                       "--shard: tasks %zu to %zu by %zu of the array are not "
                       "its %zu: expected one without gaps, or --shard I/N",
                       min, max, step, count);
    if (at < min || (at - min) % step || (at - min) / step >= count)
        return kv_fail(e,
                       "--shard: %s is %zu, out of range: expected %zu to %zu "
                       "by %zu",
                       id, at, min, max, step);
    *p = (struct place){id, (at - min) / step, count};
    return 0;
}

/* Refuses a batch script itself: its SLURM_PROCID is 0 whatever the number of
 * its tasks. */
static int check_step(size_t ranks, struct kv_err *e)
{
    if (ranks > 1 && getenv("SLURM_JOB_ID") && !getenv("SLURM_STEP_ID"))
        return kv_fail(e,
                       "--shard: SLURM_NTASKS is %zu, but this is the batch "
                       "script, one process: start it with srun",
                       ranks);
    return 0;
}

/* The variables of mpirun come first.  Under Slurm, mpirun starts one helper
 * per node, and its ranks inherit the helper's SLURM_PROCID. */
static int rank_place(struct place *p, struct kv_err *e)
{
    static const struct {
        const char *rank, *size;
    } by[] = {{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
              {"PMI_RANK", "PMI_SIZE"},
              {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS"},
              {"SLURM_PROCID", "SLURM_NTASKS"}};
    const size_t n = sizeof(by) / sizeof(*by);
    size_t k = 0;

    *p = (struct place){NULL, 0, 1};
    while (k < n && !(getenv(by[k].rank) && getenv(by[k].size)))
        k++;
    if (k == n)
        return 0;
    p->variable = by[k].rank;
    if (number(by[k].rank, 0, &p->i, e) || number(by[k].size, 0, &p->n, e))
        return -1;
    if (p->i >= p->n)
        return kv_fail(e, "--shard: %s is %zu, out of range: %s is %zu",
                       by[k].rank, p->i, by[k].size, p->n);
    return k == n - 1 ? check_step(p->n, e) : 0;
}

int kv_shard_launched(struct kv_shard *s, struct kv_err *e)
{
    struct place task, rank;

    if (array_place(&task, e) || rank_place(&rank, e))
        return -1;
    if (!task.variable && !rank.variable)
        return kv_fail(e, "--shard without I/N, which begins with a digit: no "
                          "launcher has set SLURM_ARRAY_TASK_ID, SLURM_PROCID, "
                          "OMPI_COMM_WORLD_RANK or PMI_RANK");
    *s = (struct kv_shard){task.i * rank.n + rank.i + 1, task.n * rank.n};
    if (task.variable && rank.variable && rank.n > 1)
        kv_note("--shard %zu/%zu: %s is %s, the array's task %zu of %zu; %s is "
                "%s of %zu",
                s->i, s->n, task.variable, getenv(task.variable), task.i + 1,
                task.n, rank.variable, getenv(rank.variable), rank.n);
    else
        kv_note("--shard %zu/%zu: %s is %s", s->i, s->n,
                task.variable ? task.variable : rank.variable,
                getenv(task.variable ? task.variable : rank.variable));
    return 0;
}

char *kv_shard_path(const struct kv_shard *s, const char *path)
{
    const char *slash = strrchr(path, '/');
    const char *name = slash ? slash + 1 : path;
    const char *dot = strrchr(name, '.');
    const size_t stem = dot && dot > name ? (size_t)(dot - path) : strlen(path);
    const size_t capacity = strlen(path) + 64;
    char *to = kv_alloc(capacity, 1);

    snprintf(to, capacity, "%.*s-%zu-of-%zu%s", (int)stem, path, s->i, s->n,
             path + stem);
    return to;
}
