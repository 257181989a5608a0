/* kvgen --disaggregate: some ranks run the prompts, other ranks decode the
 * answers. */
#ifndef KV_TOOL_KVGEN_DISAGGREGATE_H
#define KV_TOOL_KVGEN_DISAGGREGATE_H

#include "lib/base/opt.h"

#include <stdbool.h>

struct kvgen_disaggregate {
    const char *ranks, *fault; /* ranks NULL: one process makes all */
    double silence;
    bool apart;
};

#define KVGEN_DISAGGREGATE_DEFAULT \
    {                              \
        .silence = 30              \
    }

#define KVGEN_DISAGGREGATE_OPTS(d)                                    \
    KV_STR(0, "disaggregate", &(d).ranks, "P:D",                      \
           "of P + D ranks of mpirun P run prompts, D decode\n"       \
           "(below)"),                                                \
        KV_FLAG(0, "disaggregate-apart", &(d).apart,                  \
                "a prompt arrives when the one before is answered,\n" \
                "whatever its timestamp"),                            \
        KV_REAL(0, "disaggregate-silence", &(d).silence, "S",         \
                "seconds after which a silent rank is lost, and\n"    \
                "others make its answers (30)"),                      \
        KV_STR(0, "disaggregate-fault", &(d).fault, "FAULT",          \
               "for tests: alter:N alters a byte of the N-th layer\n" \
               "that a rank sends, end:N ends the rank there")

struct kv_err;
struct kvgen_args;
struct kvgen_run;

/* Checks the options, with or without --disaggregate, before anything is
 * read. */
int kvgen_disaggregate_check(const struct kvgen_args *a, struct kv_err *e);
/* Makes the answers; rank 0 writes them. */
int kvgen_disaggregate(struct kvgen_run *r, const struct kvgen_args *a,
                       struct kv_err *e);

#endif
