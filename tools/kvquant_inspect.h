/* kvquant --channels and --codebooks. */
#ifndef KV_KVQUANT_INSPECT_H
#define KV_KVQUANT_INSPECT_H

#include "lib/base/err.h"
#include "lib/calib.h"
#include "lib/columns.h"
#include "lib/dump.h"
#include "tools/common.h"

struct kvquant_inspect {
    const struct kv_common *common;
    struct kv_dump *dump;
    const struct kv_calib *calib; /* NULL: none */
    double leak;
    const struct kv_spec *spec; /* [n_all] */
    size_t n_specs, n_all;
    const struct kv_conditions *conditions;
    bool codebooks; /* rows per codebook, else per channel */
};

int kvquant_inspect(const struct kvquant_inspect *a, struct kv_err *e);

/* --columns help. */
void kvquant_about_inspect(void);

#endif
