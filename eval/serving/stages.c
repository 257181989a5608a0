#include "eval/serving/stages.h"

double kv_stages_serve(struct kv_stages *s, double now, double service,
                       double *start)
{
    const double part = service / (double)s->n;
    double t = now;

    for (size_t i = 0; i < s->n; i++) {
        t = s->free[i] > t ? s->free[i] : t;
        if (!i && start)
            *start = t;
        t += part;
        s->free[i] = t;
    }
    s->busy += part;
    return t;
}
