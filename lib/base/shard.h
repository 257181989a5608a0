/* A part of a run: given as "2/3", or derived from this process's number among
 * the processes that a launcher started. */
#ifndef KV_BASE_SHARD_H
#define KV_BASE_SHARD_H

#include "lib/base/err.h"

#include <stddef.h>

/* Part i of n, counted from 1; { 1, 1 } is everything. */
struct kv_shard {
    size_t i, n;
};

int kv_shard_parse(struct kv_shard *s, const char *text, struct kv_err *e);

/* The launcher's variables:
 *
 *   SLURM_ARRAY_TASK_ID of SLURM_ARRAY_TASK_COUNT, from _MIN on by _STEP (0, 1)
 *   OMPI_COMM_WORLD_RANK of OMPI_COMM_WORLD_SIZE, else PMI_RANK of PMI_SIZE,
 *   else SLURM_PROCID of SLURM_STEP_NUM_TASKS or SLURM_NTASKS
 *
 * With an array and ranks, the part of an array task is divided among the
 * task's ranks.  Fails if no variable is set, if a number is out of range, if
 * an array has gaps, and in a batch script of several tasks that srun has not
 * started.  Prints the part and the variables that it comes from (kv_note). */
int kv_shard_launched(struct kv_shard *s, struct kv_err *e);

/* "rows.csv" -> "rows-2-of-3.csv", the caller's to free. */
char *kv_shard_path(const struct kv_shard *s, const char *path);

#endif
