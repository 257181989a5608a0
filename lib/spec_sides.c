/* Reads K-q8_0/V-kivi:b2g32, a spec for keys and a spec for values. */
#include "lib/base/alloc.h"
#include "lib/exec.h"
#include "lib/mixed.h"
#include "lib/scheme.h"
#include "lib/spec_impl.h"

#include <stdlib.h>

static bool has_prefix(const char *text)
{
    return (*text == 'K' || *text == 'V') && text[1] == '-';
}

/* The '/' between the sides; NULL if the text does not have two sides. */
static const char *slash_of(const char *text)
{
    return *text == 'K' && has_prefix(text) ? strstr(text, "/V-") : NULL;
}

bool kv_spec_has_sides(const char *text)
{
    return has_prefix(text);
}

bool kv_spec_sides_look_like(const char *text)
{
    const char *slash = slash_of(text);
    char *name;
    bool is;

    if (!slash)
        return false;
    name = kv_strndup(text + 2, strcspn(text + 2, ":,/"));
    is = kv_scheme_find(name);
    free(name);
    return is;
}

/* Refuses sides within a side, and a layer file as a side, before the side is
 * parsed. */
static int check_side(const char *text, enum kv_side side, struct kv_err *e)
{
    const char *mixed = kv_scheme_mixed.name;
    const size_t n = strcspn(text, ":,");
    const char *end, *command = kv_exec_command(text, &end);

    for (const char *at = text; *at && at != command; at++)
        if ((at == text || strchr(":,/+", at[-1])) && has_prefix(at))
            return kv_fail(e, "'%.*s%s' of %c has sides of its own",
                           KV_SHOWN(text, strlen(text)), kv_side_name(side));
    if (n == strlen(mixed) && !memcmp(text, mixed, n))
        return kv_fail(e, "%s names both sides itself: it stands alone", mixed);
    return 0;
}

static int read_side(struct kv_spec *s, const char *text, size_t n,
                     enum kv_side side, struct kv_err *e)
{
    char *own = kv_strndup(text, n);
    int rc = check_side(own, side, e) || kv_spec_parse(s, own, e) ? -1 : 0;

    if (!rc && s->policy.policy)
        rc = kv_fail(e, "a policy is one for both sides, and stands before K-");
    free(own);
    return rc;
}

int kv_spec_read_sides(struct kv_spec *s, const char *text, struct kv_err *e)
{
    const char *slash = slash_of(text);
    struct kv_spec side[KV_SIDES];

    if (!slash)
        return kv_fail(e, "expected a spec for each side, as in "
                          "K-q8_0/V-kivi:b2g32");
    if (read_side(&side[KV_K], text + 2, (size_t)(slash - text) - 2, KV_K, e) ||
        read_side(&side[KV_V], slash + 3, strlen(slash + 3), KV_V, e))
        return -1;
    if (side[KV_K].scheme != side[KV_V].scheme)
        return kv_mixed_sides(s, side, e);
    s->scheme = side[KV_K].scheme;
    s->keeps = side[KV_K].keeps || side[KV_V].keeps;
    for (int i = 0; i < KV_SIDES; i++)
        memcpy(s->value[i], side[i].value[i], sizeof(s->value[i]));
    kv_spec_print(s);
    return 0;
}
