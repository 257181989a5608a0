#include "eval/reconstruction.h"

#include <math.h>

static double cosine(double x2, double y2, double xy)
{
    if (x2 == 0 || y2 == 0)
        return x2 == y2;
    return xy / sqrt(x2 * y2);
}

void kv_reconstruction_add(struct kv_reconstruction *r, const float *x,
                           const float *y, size_t n, size_t dim)
{
    for (size_t t = 0; t < n; t++, x += dim, y += dim) {
        double x2 = 0, y2 = 0, xy = 0, e2 = 0;

        for (size_t i = 0; i < dim; i++) {
            const double a = x[i], b = y[i], e = b - a, off = fabs(e);

            x2 += a * a;
            y2 += b * b;
            xy += a * b;
            e2 += e * e;
            r->max = off > r->max ? off : r->max;
        }
        r->x2 += x2;
        r->e2 += e2;
        r->cosines += cosine(x2, y2, xy);
    }
    r->n_values += n * dim;
    r->n_vectors += n;
}

void kv_reconstruction_merge(struct kv_reconstruction *into,
                             const struct kv_reconstruction *part)
{
    into->x2 += part->x2;
    into->e2 += part->e2;
    into->cosines += part->cosines;
    into->max = fmax(into->max, part->max);
    into->n_values += part->n_values;
    into->n_vectors += part->n_vectors;
}

double kv_reconstruction_mse(const struct kv_reconstruction *r)
{
    return r->n_values ? r->e2 / (double)r->n_values : NAN;
}

double kv_reconstruction_sqnr_db(const struct kv_reconstruction *r)
{
    return r->n_values ? 10 * log10(r->x2 / r->e2) : NAN;
}

double kv_reconstruction_rel_err(const struct kv_reconstruction *r)
{
    return r->n_values ? sqrt(r->e2 / r->x2) : NAN;
}

double kv_reconstruction_cosine(const struct kv_reconstruction *r)
{
    return r->n_vectors ? r->cosines / (double)r->n_vectors : NAN;
}

double kv_reconstruction_max_err(const struct kv_reconstruction *r)
{
    return r->n_values ? r->max : NAN;
}
