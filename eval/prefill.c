#include "eval/prefill.h"
#include "lib/base/alloc.h"
#include "lib/base/progress.h"
#include "lib/scheme.h"

#include <stdlib.h>

static const struct kv_policy_patterns *patterns_of(const struct kv_prefill *p)
{
    return p->policy->policy ? p->policy->policy->patterns : NULL;
}

int kv_prefill_check(const struct kv_prefill *p, const struct kv_spec *spec,
                     const struct kv_protocol *protocol,
                     struct kv_codec *const *codec, struct kv_err *e)
{
    const struct kv_codec *k = codec[KV_K];
    const char *name = p->policy->policy->name;
    struct kv_pattern *head;
    int rc;

    if (protocol->kind == KV_STREAM)
        return kv_fail(e,
                       "%s: %s is for prompts: expected protocol all, "
                       "llama.cpp or prefill:P, not %s",
                       spec->text, name, protocol->text);
    if (kv_codec_attends(k))
        return kv_fail(e,
                       "%s: %s has no pattern for %s, which attends on its "
                       "codes",
                       spec->text, name, k->scheme->name);
    if (k->shape.alibi)
        return kv_fail(e, "%s: the model has ALiBi, which no pattern has",
                       spec->text);
    if (k->shape.window)
        return 0;
    head = kv_alloc(k->shape.n_heads, sizeof(*head));
    rc = patterns_of(p)->find(p->policy, p->calib, &k->shape, k->layer, 1, head,
                              e);
    free(head);
    return rc;
}

static int attend_sparse(struct kv_prefill *p, const struct kv_qkv *x,
                         const struct kv_attend_job *job, struct kv_err *e)
{
    struct kv_pattern *head = kv_alloc(job->view.n_heads, sizeof(*head));
    const int rc = patterns_of(p)->find(p->policy, p->calib, x->shape, x->layer,
                                        job->view.nq, head, e);

    if (!rc)
        p->pairs += (double)kv_pattern_attend(job, head);
    free(head);
    return rc;
}

int kv_prefill_attend(struct kv_prefill *p, const struct kv_qkv *x,
                      const struct kv_attend_job *job, struct kv_err *e)
{
    const double all = (double)kv_pattern_all_pairs(&job->view);
    const double start = kv_seconds();

    if (x->shape->window)
        return x->backend->attend(x->backend, job, NULL, 0, e);
    if (patterns_of(p)) {
        if (attend_sparse(p, x, job, e))
            return -1;
    } else {
        if (x->backend->attend(x->backend, job, NULL, 0, e))
            return -1;
        p->pairs += all;
    }
    p->all_pairs += all;
    p->seconds += kv_seconds() - start;
    return 0;
}
