/* The functions of lib/h5.h for attributes, each with one value. */
#include "lib/h5_impl.h"
#include "lib/h5_stored.h"

#include <math.h>
#include <string.h>

/* Writing */

static void put_attr(struct kv_h5 *h, const char *object, const char *name,
                     hid_t type, const void *value)
{
    const hid_t space = H5Screate(H5S_SCALAR);
    const hid_t a = H5Acreate_by_name(h->file, object, name, type, space,
                                      H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);

    if (a < 0 || H5Awrite(a, type, value) < 0)
        kv_h5_keep(h, "write attribute", name);
    if (a >= 0)
        H5Aclose(a);
    H5Sclose(space);
}

void kv_h5_put_text(struct kv_h5 *h, const char *object, const char *name,
                    const char *text)
{
    const size_t n = strlen(text);
    const hid_t t = H5Tcopy(H5T_C_S1);

    H5Tset_size(t, n ? n : 1);
    H5Tset_strpad(t, H5T_STR_NULLPAD);
    H5Tset_cset(t, H5T_CSET_UTF8);
    put_attr(h, object, name, t, text);
    H5Tclose(t);
}

void kv_h5_put_int(struct kv_h5 *h, const char *object, const char *name,
                   int64_t value)
{
    put_attr(h, object, name, H5T_STD_I64LE, &value);
}

void kv_h5_put_u64(struct kv_h5 *h, const char *object, const char *name,
                   uint64_t value)
{
    put_attr(h, object, name, H5T_STD_U64LE, &value);
}

void kv_h5_put_real(struct kv_h5 *h, const char *object, const char *name,
                    double value)
{
    put_attr(h, object, name, H5T_IEEE_F64LE, &value);
}

/* Reading */

bool kv_h5_has_attr(struct kv_h5 *h, const char *object, const char *name)
{
    return H5Aexists_by_name(h->file, object, name, H5P_DEFAULT) > 0;
}

/* An open attribute with one value. */
struct attr {
    hid_t id, type;
    H5T_class_t is;
};

static void close_attr(struct attr *a)
{
    H5Tclose(a->type);
    H5Aclose(a->id);
}

static int fail_attr(const struct kv_h5 *h, const char *object,
                     const char *name, const char *want, struct kv_err *e)
{
    return kv_fail(e, "%s: attribute %s of %s is not %s", h->path, name, object,
                   want);
}

static int open_attr(struct kv_h5 *h, const char *object, const char *name,
                     const char *want, struct attr *a, struct kv_err *e)
{
    hssize_t n;

    if (kv_h5_check_links(h->file, h->path, object, e))
        return -1;
    if (!kv_h5_has_attr(h, object, name))
        return kv_fail(e, "%s: attribute %s of %s is missing", h->path, name,
                       object);
    a->id = H5Aopen_by_name(h->file, object, name, H5P_DEFAULT, H5P_DEFAULT);
    if (a->id < 0)
        return kv_h5_fail(h, "read attribute", name, e);
    a->type = H5Aget_type(a->id);
    a->is = H5Tget_class(a->type);

    const hid_t space = H5Aget_space(a->id);

    n = H5Sget_simple_extent_npoints(space);
    H5Sclose(space);
    if (n == 1)
        return 0;
    close_attr(a);
    return fail_attr(h, object, name, want, e);
}

/* Reads text of any kind: of fixed length, padded with zeros or spaces, or of
 * variable length, as h5py writes it.  Free it by H5free_memory(); NULL if it
 * cannot be read. */
static char *read_text(const struct attr *a)
{
    const bool fixed = H5Tis_variable_str(a->type) <= 0;
    const hid_t t = H5Tcopy(H5T_C_S1);
    const size_t capacity = fixed ? H5Tget_size(a->type) + 1 : 1;
    char *text = H5allocate_memory(capacity, true), *variable = NULL;
    herr_t rc;

    H5Tset_cset(t, H5Tget_cset(a->type));
    H5Tset_size(t, fixed ? capacity : H5T_VARIABLE);
    rc = H5Aread(a->id, t, fixed ? (void *)text : (void *)&variable);
    H5Tclose(t);
    if (rc >= 0 && !variable) /* fixed length, or empty */
        return text;
    H5free_memory(text);
    return rc < 0 ? NULL : variable;
}

int kv_h5_get_text(struct kv_h5 *h, const char *object, const char *name,
                   char *text, size_t capacity, struct kv_err *e)
{
    enum { MAX = 1 << 16 }; /* bytes, padded */
    struct attr a;
    char *is = NULL;
    int rc = -1;

    memset(text, 0, capacity);
    if (open_attr(h, object, name, "text", &a, e))
        return -1;
    if (a.is != H5T_STRING || H5Tget_size(a.type) > MAX)
        fail_attr(h, object, name, "text", e);
    else if (!(is = read_text(&a)))
        kv_h5_fail(h, "read attribute", name, e);
    else if (strlen(is) >= capacity)
        kv_fail(e, "%s: attribute %s of %s has %zu bytes, at most %zu fit",
                h->path, name, object, strlen(is), capacity - 1);
    else
        rc = 0;
    if (!rc)
        memcpy(text, is, strlen(is));
    H5free_memory(is);
    close_attr(&a);
    return rc;
}

/* A number of any width.  A whole number is in `whole` and `negative` (its
 * sign), a real number in `value`. */
struct number {
    bool real, negative;
    uint64_t whole; /* two's complement if negative */
    double value;
};

static int get_number(struct kv_h5 *h, const char *object, const char *name,
                      const char *want, struct number *x, struct kv_err *e)
{
    int64_t below = 0;
    struct attr a;
    herr_t rc = 0;

    if (open_attr(h, object, name, want, &a, e))
        return -1;
    *x = (struct number){.real = a.is == H5T_FLOAT};
    if (a.is != H5T_FLOAT && a.is != H5T_INTEGER) {
        close_attr(&a);
        return fail_attr(h, object, name, want, e);
    }
    if (x->real) {
        rc = H5Aread(a.id, H5T_NATIVE_DOUBLE, &x->value);
    } else if (H5Tget_sign(a.type) == H5T_SGN_NONE) {
        rc = H5Aread(a.id, H5T_NATIVE_UINT64, &x->whole);
        x->value = (double)x->whole;
    } else {
        rc = H5Aread(a.id, H5T_NATIVE_INT64, &below);
        x->whole = (uint64_t)below;
        x->negative = below < 0;
        x->value = (double)below;
    }
    if (rc < 0)
        kv_h5_fail(h, "read attribute", name, e);
    close_attr(&a);
    return rc < 0 ? -1 : 0;
}

/* A whole real number counts as an integer, up to the size at which double
 * holds every integer. */
static int get_whole(struct kv_h5 *h, const char *object, const char *name,
                     struct number *x, struct kv_err *e)
{
    static const char want[] = "a whole number";

    if (get_number(h, object, name, want, x, e))
        return -1;
    if (!x->real)
        return 0;
    if (!(fabs(x->value) < 0x1p53) || x->value != trunc(x->value))
        return fail_attr(h, object, name, want, e);
    x->negative = x->value < 0;
    x->whole = (uint64_t)(int64_t)x->value;
    return 0;
}

int kv_h5_get_int(struct kv_h5 *h, const char *object, const char *name,
                  int64_t min, int64_t max, int64_t *value, struct kv_err *e)
{
    struct number x;
    int64_t is;

    if (get_whole(h, object, name, &x, e))
        return -1;
    is = (int64_t)x.whole;
    if (is < min || is > max || (is < 0 && !x.negative))
        return kv_fail(
            e, "%s: attribute %s of %s is %.17g, expected %lld to %lld",
            h->path, name, object, x.value, (long long)min, (long long)max);
    *value = is;
    return 0;
}

int kv_h5_get_size(struct kv_h5 *h, const char *object, const char *name,
                   size_t min, size_t max, size_t *value, struct kv_err *e)
{
    int64_t x = 0;

    if (kv_h5_get_int(h, object, name, (int64_t)min, (int64_t)max, &x, e))
        return -1;
    *value = (size_t)x;
    return 0;
}

int kv_h5_get_u64(struct kv_h5 *h, const char *object, const char *name,
                  uint64_t *value, struct kv_err *e)
{
    struct number x;

    if (get_whole(h, object, name, &x, e))
        return -1;
    if (x.negative)
        return kv_fail(e, "%s: attribute %s of %s is %.17g, expected 0 or more",
                       h->path, name, object, x.value);
    *value = x.whole;
    return 0;
}

int kv_h5_get_real(struct kv_h5 *h, const char *object, const char *name,
                   double *value, struct kv_err *e)
{
    struct number x;

    if (get_number(h, object, name, "a number", &x, e))
        return -1;
    *value = x.value;
    return 0;
}
