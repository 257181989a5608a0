/* Converts text to upper and lower case like Python's str. */
#include "lib/tokenizer/chat_text.h"
#include "lib/tokenizer/tokenizer_text.h"

#include <string.h>
#include <utf8proc.h>

struct range {
    uint32_t first, last;
};

static bool in_ranges(const struct range *r, size_t n, uint32_t c)
{
    for (size_t i = 0; i < n; i++)
        if (c >= r[i].first && c <= r[i].last)
            return true;
    return false;
}

/* Unicode's Cased: Lu, Ll, Lt, Other_Lowercase and Other_Uppercase. */
static bool is_cased(uint32_t c)
{
    static const struct range others[] = {
        {0xaa, 0xaa},       {0xba, 0xba},       {0x2b0, 0x2b8},
        {0x2c0, 0x2c1},     {0x2e0, 0x2e4},     {0x345, 0x345},
        {0x37a, 0x37a},     {0x1d2c, 0x1d6a},   {0x1d78, 0x1d78},
        {0x1d9b, 0x1dbf},   {0x2071, 0x2071},   {0x207f, 0x207f},
        {0x2090, 0x209c},   {0x2160, 0x217f},   {0x24b6, 0x24e9},
        {0x2c7c, 0x2c7d},   {0xa69c, 0xa69d},   {0xa770, 0xa770},
        {0xa7f8, 0xa7f9},   {0xab5c, 0xab5f},   {0x10780, 0x10780},
        {0x10783, 0x10785}, {0x10787, 0x107b0}, {0x107b2, 0x107ba},
        {0x1f130, 0x1f149}, {0x1f150, 0x1f169}, {0x1f170, 0x1f189}};

    switch (utf8proc_category((utf8proc_int32_t)c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
        return true;
    default:
        return in_ranges(others, sizeof(others) / sizeof(*others), c);
    }
}

/* Unicode's Case_Ignorable: characters that the rule for a final sigma
 * skips. */
static bool is_ignorable(uint32_t c)
{
    static const struct range others[] = {
        {0x27, 0x27},     {0x2e, 0x2e},     {0x3a, 0x3a},     {0xb7, 0xb7},
        {0x387, 0x387},   {0x55f, 0x55f},   {0x5f4, 0x5f4},   {0x2018, 0x2019},
        {0x2024, 0x2024}, {0x2027, 0x2027}, {0xfe13, 0xfe13}, {0xfe52, 0xfe52},
        {0xfe55, 0xfe55}, {0xff07, 0xff07}, {0xff0e, 0xff0e}, {0xff1a, 0xff1a}};

    switch (utf8proc_category((utf8proc_int32_t)c)) {
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_SK:
        return true;
    default:
        return in_ranges(others, sizeof(others) / sizeof(*others), c);
    }
}

static void put(struct kv_text *t, uint32_t c)
{
    char s[4];

    kv_text_add(t, s, kv_utf8_put(c, s));
}

/* Case-folds c; returns the number of characters.  A character whose upper case
 * has several characters (SpecialCasing.txt) also folds to several. */
static size_t folded(uint32_t c, utf8proc_int32_t fold[4])
{
    int boundary = 0;
    const utf8proc_ssize_t n = utf8proc_decompose_char(
        (utf8proc_int32_t)c, fold, 4, UTF8PROC_CASEFOLD, &boundary);

    return utf8proc_category((utf8proc_int32_t)c) == UTF8PROC_CATEGORY_LU ? 1
           : n > 1 ? (size_t)n
                   : 1;
}

static void put_upper(struct kv_text *t, uint32_t c)
{
    utf8proc_int32_t fold[4];
    const size_t n = folded(c, fold);

    if (n == 1)
        put(t, (uint32_t)utf8proc_toupper((utf8proc_int32_t)c));
    for (size_t i = 0; n > 1 && i < n; i++)
        put(t, (uint32_t)utf8proc_toupper(fold[i]));
}

static void put_title(struct kv_text *t, uint32_t c)
{
    enum { IOTA = 0x3b9, IOTA_BELOW = 0x345, SHARP_S = 0xdf };
    utf8proc_int32_t fold[4];
    const uint32_t one = (uint32_t)utf8proc_totitle((utf8proc_int32_t)c);
    const size_t n = folded(c, fold);
    bool titled = false;

    if (n == 1 || (one != c && c != SHARP_S) ||
        utf8proc_category((utf8proc_int32_t)c) == UTF8PROC_CATEGORY_LT) {
        put(t, one);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        utf8proc_int32_t x = fold[i];

        if (!titled)
            x = utf8proc_totitle(fold[i]);
        else if (x == IOTA && c >= 0x1f80)
            x = IOTA_BELOW;
        titled |= x != fold[i];
        put(t, (uint32_t)x);
    }
}

/* Whether the sigma at s ends a word but does not begin it.
 */
static bool is_final(const char *text, const char *s)
{
    const char *before = s, *after = s;
    size_t n;
    bool cased = false;

    while (before > text && !cased) {
        uint32_t c;

        while (((unsigned char)*--before & 0xc0) == 0x80)
            ;
        c = kv_utf8_get(before, &n);
        cased = !is_ignorable(c) && is_cased(c);
        if (!cased && !is_ignorable(c))
            return false;
    }
    for (after += kv_utf8_bytes(after); cased && *after; after += n) {
        const uint32_t c = kv_utf8_get(after, &n);

        if (!is_ignorable(c))
            return !is_cased(c);
    }
    return cased;
}

static void put_lower(struct kv_text *t, const char *text, const char *s,
                      uint32_t c)
{
    enum { SIGMA = 0x3a3, FINAL = 0x3c2, DOTTED_I = 0x130, DOT = 0x307 };

    if (c == SIGMA && is_final(text, s)) {
        put(t, FINAL);
    } else if (c == DOTTED_I) {
        put(t, 'i');
        put(t, DOT);
    } else {
        put(t, (uint32_t)utf8proc_tolower((utf8proc_int32_t)c));
    }
}

/* Whether c ends a word for Jinja's filter title. */
static bool ends_word(uint32_t c)
{
    return kv_chat_is_space(c) || (c < 0x80 && strchr("-({[<", (int)c));
}

json_t *kv_chat_with_case(const char *s, enum kv_chat_case wanted)
{
    struct kv_text t = {0};
    const char *word = s; /* where the rule for a final sigma begins to
                           * search */
    bool inside = false;
    size_t n;
    json_t *y;

    for (const char *at = s; *at; at += n) {
        const uint32_t c = kv_utf8_get(at, &n);

        if (wanted == KV_CHAT_UPPER ||
            (wanted == KV_CHAT_JINJA_TITLE && !inside))
            put_upper(&t, c);
        else if (wanted == KV_CHAT_LOWER || inside)
            put_lower(&t, word, at, c);
        else
            put_title(&t, c);
        if (wanted == KV_CHAT_JINJA_TITLE && !inside)
            word = at + n;
        inside = wanted == KV_CHAT_TITLE         ? is_cased(c)
                 : wanted == KV_CHAT_JINJA_TITLE ? !ends_word(c)
                                                 : true;
    }
    y = json_stringn(t.n ? t.s : "", t.n);
    kv_text_clear(&t);
    return y;
}
