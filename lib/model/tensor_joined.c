#include "lib/model/tensor_joined.h"
#include "lib/model/tensor_parts.h"

#include <stdio.h>

/* Selects this part's rows from rows interleaved with another part's. */
static void take_turns(struct kv_weight *w, bool second)
{
    w->run = 1;
    w->step = 2;
    w->start = second;
}

/* Selects this part's rows, which lie before or behind the rows of another
 * part. */
static void take_half(struct kv_weight *w, size_t rows, bool second)
{
    w->run = rows;
    w->step = 2 * rows;
    w->start = second ? rows : 0;
}

/* t [expert][inputs][outputs]: a matrix for each expert, stored transposed. */
static const struct kv_weight *cut_dense(const struct kv_joined *j,
                                         const struct kv_weight *t, size_t rows,
                                         bool half, bool second)
{
    const size_t n = j->c->n_experts, bytes = t->bytes / n;
    struct kv_weight *const first = *j->made;

    for (size_t i = 0; i < n; i++) {
        struct kv_weight *mine = (*j->made)++;

        *mine = *t;
        mine->n_dims = 2;
        mine->dims[0] = rows;
        mine->n = rows * mine->dims[1];
        mine->data += i * bytes;
        mine->bytes = bytes;
        mine->turned = t->dims[2];
        if (half && j->c->arch->names->gates_first)
            take_half(mine, rows, second);
        else if (half)
            take_turns(mine, second);
        mine->next = i + 1 < n ? *j->made : NULL;
    }
    return first;
}

/* Selects the gates or the ups of all experts from t [expert][rows][...], which
 * holds both. */
static const struct kv_weight *cut_rows(const struct kv_joined *j,
                                        const struct kv_weight *t, bool second)
{
    struct kv_weight *mine = (*j->made)++;

    *mine = *t;
    mine->dims[1] /= 2;
    mine->n /= 2;
    if (mine->n_dims == 2) { /* a bias: rows of one value */
        mine->n_dims = 1;
        mine->dims[0] = mine->n;
    }
    take_turns(mine, second);
    return mine;
}

int kv_tensor_joined(const struct kv_joined *j, enum kv_part p,
                     const struct kv_weight **out, struct kv_err *e)
{
    const struct kv_tensor_names *names = j->c->arch->names;
    const enum kv_part of = kv_part_of(p);
    const bool down = of == KV_P_DOWN, up = of == KV_P_UP, bias = of != p;
    const size_t outputs = down ? j->c->hidden : 2 * j->c->inter;
    const size_t inputs = down ? j->c->inter : j->c->hidden;
    const struct kv_weight *t;
    char name[160];

    snprintf(name, sizeof(name), "%s%s%s", j->before,
             down ? names->down : names->gate_up, bias ? "_bias" : "");
    t = kv_weights_find(j->w, name);

    if (t && t->packed && names->gates_first)
        return kv_fail(e, "%s: tensor %s: such experts may not be quantized",
                       t->path, t->name);

    const bool dense = !bias && !(t && t->packed);
    const size_t shape[3] = {j->c->n_experts, dense ? inputs : outputs,
                             dense  ? outputs
                             : bias ? 0
                                    : inputs};

    if (!up && kv_tensor_bind(&t, j->w, name, shape, j->dir, e))
        return -1; /* the tensor was checked when the gate was bound */
    if (dense)
        *out = cut_dense(j, t, down ? outputs : outputs / 2, !down, up);
    else
        *out = down ? t : cut_rows(j, t, up);
    return 0;
}

int kv_tensor_stacked(const struct kv_joined *j, enum kv_part p,
                      const struct kv_weight **out, struct kv_err *e)
{
    const bool two = p != KV_P_DOWN;
    const size_t rows = two ? j->c->inter : j->c->hidden;
    const size_t cols = two ? j->c->hidden : j->c->inter;
    const size_t shape[3] = {j->c->n_experts, two ? 2 * rows : rows, cols};
    const struct kv_weight *t;
    struct kv_weight *mine;

    if (kv_tensor_bind(&t, j->w, j->before, shape, j->dir, e))
        return -1;
    *out = t;
    if (!two)
        return 0;
    if (t->packed)
        return kv_fail(e,
                       "%s: tensor %s is of several parts, of which none may "
                       "be quantized so",
                       t->path, t->name);
    mine = (*j->made)++;
    *mine = *t;
    take_half(mine, rows, p == KV_P_UP);
    mine->dims[1] = rows;
    mine->n = t->n / 2;
    *out = mine;
    return 0;
}
