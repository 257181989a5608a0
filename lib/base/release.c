#include "lib/base/release.h"
#include "lib/base/version.h"

const char *kv_version(void)
{
    return KV_VERSION;
}
