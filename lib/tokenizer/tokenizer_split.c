#include "lib/tokenizer/tokenizer_split.h"
#include "lib/base/alloc.h"
#include "lib/tokenizer/tokenizer_bytes.h"
#include "lib/tokenizer/tokenizer_json.h"
#include "lib/tokenizer/tokenizer_pattern.h"

#include <stdlib.h>
#include <string.h>

/* GPT-2's rule for words, which ByteLevel's use_regex stands for. */
static const char gpt2_words[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|"
    "\\s+(?!\\S)|\\s+";

enum kind {
    CUT,    /* at the pattern's matches */
    PREFIX, /* prepends text, unless the piece begins with it */
    BYTES,  /* every byte becomes its character */
    SPACES  /* every space becomes text */
};

/* How a match is separated from the text around it. */
enum behavior {
    ISOLATED,
    REMOVED,
    CONTIGUOUS,
    WITH_PREVIOUS,
    WITH_NEXT,
    N_BEHAVIORS
};
static const char *const behavior_names[N_BEHAVIORS] = {
    [ISOLATED] = "Isolated",        [REMOVED] = "Removed",
    [CONTIGUOUS] = "Contiguous",    [WITH_PREVIOUS] = "MergedWithPrevious",
    [WITH_NEXT] = "MergedWithNext",
};

struct stage {
    enum kind kind;
    struct kv_pattern *pattern;
    enum behavior behavior;
    bool invert; /* the parts between matches are the matches */
    char *text;
    enum kv_prepend prepend;
};

struct kv_splitter {
    struct stage *stage;
    size_t n;
    struct kv_byte_alphabet alphabet;
};

static struct stage *add_stage(struct kv_splitter *x, enum kind kind)
{
    x->stage = kv_realloc(x->stage, x->n + 1, sizeof(*x->stage));
    x->stage[x->n] = (struct stage){.kind = kind};
    return &x->stage[x->n++];
}

static int add_cut(struct kv_splitter *x, const char *source, bool regex,
                   enum behavior behavior, struct kv_err *e)
{
    struct stage *s = add_stage(x, CUT);

    s->behavior = behavior;
    return kv_pattern_new(&s->pattern, source, regex, e);
}

static int parse_byte_level(struct kv_splitter *x, const json_t *j,
                            struct kv_err *e)
{
    bool prefix, words;

    if (kv_field_flag(j, "add_prefix_space", true, &prefix, e) ||
        kv_field_flag(j, "use_regex", true, &words, e))
        return -1;
    if (prefix)
        add_stage(x, PREFIX)->text = kv_strdup(" ");
    if (words && add_cut(x, gpt2_words, true, ISOLATED, e))
        return -1;
    add_stage(x, BYTES);
    return 0;
}

static int parse_behavior(const json_t *j, enum behavior *b, struct kv_err *e)
{
    const char *name;

    if (kv_field_string(j, "behavior", &name, e))
        return -1;
    for (size_t i = 0; i < N_BEHAVIORS; i++) {
        if (!strcmp(name, behavior_names[i])) {
            *b = (enum behavior)i;
            return 0;
        }
    }
    return kv_fail(e, "behavior \"%s\" is not supported", name);
}

static int parse_split(struct kv_splitter *x, const json_t *j, struct kv_err *e)
{
    struct stage *s = add_stage(x, CUT);

    if (parse_behavior(j, &s->behavior, e) ||
        kv_field_flag(j, "invert", false, &s->invert, e))
        return -1;
    return kv_pattern_parse(&s->pattern, json_object_get(j, "pattern"), e);
}

static int parse_digits(struct kv_splitter *x, const json_t *j,
                        struct kv_err *e)
{
    bool each;

    if (kv_field_flag(j, "individual_digits", false, &each, e))
        return -1;
    return add_cut(x, "\\p{N}", true, each ? ISOLATED : CONTIGUOUS, e);
}

static int parse_punctuation(struct kv_splitter *x, const json_t *j,
                             struct kv_err *e)
{
    enum behavior b = ISOLATED;

    if (json_object_get(j, "behavior") && parse_behavior(j, &b, e))
        return -1;
    return add_cut(x, "[\\p{P}$+<=>^`|~]", true, b, e);
}

int kv_metaspace_parse(const json_t *j, const char **replacement,
                       enum kv_prepend *prepend, struct kv_err *e)
{
    static const char *const names[] = {"always", "first", "never"};
    const char *name;
    bool prefix;

    if (kv_field_string(j, "replacement", replacement, e) ||
        kv_field_flag(j, "add_prefix_space", true, &prefix, e) ||
        kv_field_string_or(j, "prepend_scheme", prefix ? "always" : "never",
                           &name, e))
        return -1;
    if (!**replacement || strlen(*replacement) != kv_utf8_bytes(*replacement))
        return kv_fail(e, "\"replacement\" is not one character");
    for (size_t i = 0; i < 3; i++) {
        if (!strcmp(name, names[i])) {
            *prepend = (enum kv_prepend)i;
            return 0;
        }
    }
    return kv_fail(e, "prepend_scheme \"%s\" is not supported", name);
}

static int parse_metaspace(struct kv_splitter *x, const json_t *j,
                           struct kv_err *e)
{
    const char *replacement;
    enum kv_prepend prepend;
    bool split;

    if (kv_metaspace_parse(j, &replacement, &prepend, e) ||
        kv_field_flag(j, "split", true, &split, e))
        return -1;
    add_stage(x, SPACES)->text = kv_strdup(replacement);
    if (prepend != KV_PREPEND_NEVER) {
        struct stage *s = add_stage(x, PREFIX);

        s->text = kv_strdup(replacement);
        s->prepend = prepend;
    }
    return split ? add_cut(x, replacement, false, WITH_NEXT, e) : 0;
}

static const struct type {
    const char *name, *fields;
    int (*parse)(struct kv_splitter *x, const json_t *j, struct kv_err *e);
} types[] = {
    {"ByteLevel", "type add_prefix_space trim_offsets use_regex",
     parse_byte_level},
    {"Split", "type pattern behavior invert", parse_split},
    {"Digits", "type individual_digits", parse_digits},
    {"Metaspace", KV_METASPACE_FIELDS, parse_metaspace},
    {"Punctuation", "type behavior", parse_punctuation},
};

static int parse(struct kv_splitter *x, const json_t *j, struct kv_err *e)
{
    const char *name;
    json_t *list;

    if (kv_field_string(j, "type", &name, e))
        return -1;
    if (!strcmp(name, "Sequence")) {
        if (kv_field_only(j, "type pretokenizers", e) ||
            kv_field_array(j, "pretokenizers", &list, e))
            return kv_fail_in(e, "Sequence");
        for (size_t i = 0; i < json_array_size(list); i++)
            if (parse(x, json_array_get(list, i), e))
                return -1;
        return 0;
    }
    if (x->n >= KV_TOKENIZER_STAGES)
        return kv_fail(e, "more than %d steps", KV_TOKENIZER_STAGES);
    for (size_t i = 0; i < sizeof(types) / sizeof(*types); i++)
        if (!strcmp(name, types[i].name))
            return kv_field_only(j, types[i].fields, e) ||
                           types[i].parse(x, j, e)
                       ? kv_fail_in(e, "%s", name)
                       : 0;
    return kv_fail(e, "%s: this type is not supported", name);
}

int kv_splitter_new(struct kv_splitter **x, const json_t *j, struct kv_err *e)
{
    struct kv_splitter *s = kv_alloc(1, sizeof(*s));

    kv_byte_alphabet_init(&s->alphabet);
    if (j && !json_is_null(j) && parse(s, j, e)) {
        kv_splitter_free(s);
        return kv_fail_in(e, "pre_tokenizer");
    }
    *x = s;
    return 0;
}

void kv_splitter_free(struct kv_splitter *x)
{
    if (!x)
        return;
    for (size_t i = 0; i < x->n; i++) {
        kv_pattern_free(x->stage[i].pattern);
        free(x->stage[i].text);
    }
    free(x->stage);
    free(x);
}

int kv_splitter_prefix(const struct kv_splitter *x)
{
    int said = -1;

    for (size_t i = 0; i < x->n; i++) {
        if (x->stage[i].kind == PREFIX)
            return 1;
        if (x->stage[i].kind != CUT)
            said = 0;
    }
    return said;
}

void kv_splitter_prepend(struct kv_splitter *x, enum kv_prepend prepend)
{
    for (size_t i = 0; i < x->n; i++)
        if (x->stage[i].kind == PREFIX)
            x->stage[i].prepend = prepend;
}

/* Each piece goes through all remaining stages before the next piece is cut, so
 * that memory holds only one piece per stage. */
struct run {
    const struct kv_splitter *x;
    const struct kv_piece_sink *sink;
    struct kv_watch *watch;
    struct kv_text *made; /* [n stages] the output of each stage */
};

struct piece {
    const char *s;
    size_t n;
    bool at_start;
};

static int from_step(struct run *r, size_t i, struct piece p, struct kv_err *e);

/* Whether a part joins the piece before it. */
static bool joins(enum behavior b, bool before, bool match)
{
    switch (b) {
    case CONTIGUOUS:
        return before == match;
    case WITH_PREVIOUS:
        return !before && match;
    case WITH_NEXT:
        return before && !match;
    default:
        return false;
    }
}

static int give(struct run *r, size_t i, struct piece whole,
                struct kv_part part, struct kv_err *e)
{
    const struct stage *x = &r->x->stage[i];

    if (part.start == part.end || (x->behavior == REMOVED && part.is_match))
        return 0;
    return from_step(r, i + 1,
                     (struct piece){.s = whole.s + part.start,
                                    .n = part.end - part.start,
                                    .at_start = whole.at_start && !part.start},
                     e);
}

static int cut(struct run *r, size_t i, struct piece p, struct kv_err *e)
{
    const struct stage *x = &r->x->stage[i];
    struct kv_part held = {0}, part; /* held: the piece that may still grow,
                                      * empty at first */
    struct kv_scan scan;
    int rc;

    kv_scan_init(&scan, x->pattern, p.s, p.n, r->watch);
    while ((rc = kv_scan_next(&scan, &part, e)) > 0) {
        part.is_match ^= x->invert;
        if (held.end && joins(x->behavior, held.is_match, part.is_match))
            part.start = held.start;
        else if ((rc = give(r, i, p, held, e)))
            break;
        held = part;
    }
    kv_scan_clear(&scan);
    return rc ? rc : give(r, i, p, held, e);
}

static void prefix(const struct stage *x, struct piece p, struct kv_text *made)
{
    const size_t n = strlen(x->text);

    if ((x->prepend == KV_PREPEND_ALWAYS || p.at_start) &&
        (p.n < n || memcmp(p.s, x->text, n)))
        kv_text_add(made, x->text, n);
    kv_text_add(made, p.s, p.n);
}

static void replace_spaces(const char *by, struct piece p, struct kv_text *made)
{
    for (size_t at = 0; at < p.n;) {
        const char *hit = memchr(p.s + at, ' ', p.n - at);
        const size_t end = hit ? (size_t)(hit - p.s) : p.n;

        kv_text_add(made, p.s + at, end - at);
        if (hit)
            kv_text_add(made, by, strlen(by));
        at = end + 1;
    }
}

static int from_step(struct run *r, size_t i, struct piece p, struct kv_err *e)
{
    if (i == r->x->n)
        return r->sink->piece(r->sink->arg, p.s, p.n, e);

    const struct stage *x = &r->x->stage[i];
    struct kv_text *made = &r->made[i];

    if (x->kind == CUT)
        return cut(r, i, p, e);
    made->n = 0;
    if (x->kind == PREFIX)
        prefix(x, p, made);
    else if (x->kind == BYTES)
        kv_byte_encode(&r->x->alphabet, p.s, p.n, made);
    else
        replace_spaces(x->text, p, made);
    if (kv_watch_made(r->watch, made->n, e))
        return -1;
    return from_step(
        r, i + 1,
        (struct piece){.s = made->s, .n = made->n, .at_start = p.at_start}, e);
}

int kv_splitter_run(const struct kv_splitter *x, const char *s, size_t n,
                    bool at_start, const struct kv_piece_sink *sink,
                    struct kv_watch *w, struct kv_err *e)
{
    struct run r = {.x = x, .sink = sink, .watch = w};
    int rc;

    if (!n)
        return 0;
    r.made = kv_alloc(x->n, sizeof(*r.made));
    rc = from_step(&r, 0, (struct piece){s, n, at_start}, e);
    for (size_t i = 0; i < x->n; i++)
        kv_text_clear(&r.made[i]);
    free(r.made);
    return rc;
}
