#ifndef KV_BASE_RELEASE_H
#define KV_BASE_RELEASE_H

#include "lib/base/public.h"

KV_PUBLIC_BEGIN

/* The version, with the commit if the tree was a git checkout. */
const char *kv_version(void);

KV_PUBLIC_END

#endif
