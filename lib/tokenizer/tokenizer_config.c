#include "lib/tokenizer/tokenizer_config.h"
#include "lib/base/alloc.h"
#include "lib/base/file.h"
#include "lib/json_file.h"
#include "lib/model/model_files.h"
#include "lib/tokenizer/tokenizer_json.h"
#include "lib/tokenizer/tokenizer_split.h"

#include <stdlib.h>
#include <string.h>

struct reading {
    const struct kv_tokenizer_main *m;
    struct kv_tokenizer_config *c; /* the result */
    json_t *config;                /* empty if there is no file */
    json_t *map, *added;           /* NULL: no such file */
    const json_t
        *decoder; /* the config's list of added tokens, or NULL */
};

/* ---- special tokens by name -------------------------------------------- */

static const char *const standard[] = {"bos_token", "eos_token", "unk_token",
                                       "sep_token", "pad_token", "cls_token",
                                       "mask_token"};
enum { N_STANDARD = sizeof(standard) / sizeof(*standard) };

#define EXTRA "extra_special_tokens"

static bool is_standard(const char *key)
{
    for (size_t i = 0; i < N_STANDARD; i++)
        if (!strcmp(key, standard[i]))
            return true;
    return false;
}

/* Whether a member names a special token of this model alone, such as
 * "image_token".  Flags have similar names (add_bos_token), but their values
 * are no strings. */
static bool is_own(const char *key, const json_t *value)
{
    const size_t n = strlen(key);

    return !is_standard(key) && n > 6 && !strcmp(key + n - 6, "_token") &&
           (json_is_string(value) || json_is_object(value));
}

/* The name in "<s>" or {"content": "<s>", ...}, NULL for null.  Some files have
 * "" for a missing token. */
static const char *content_of(const json_t *value)
{
    return json_string_value(
        json_is_object(value) ? json_object_get(value, "content") : value);
}

/* The special token `key`: special_tokens_map.json's, else the config's.  If
 * the config lists its added tokens, the map is ignored. */
static const json_t *named(const struct reading *r, const char *key)
{
    const json_t *of_map = r->decoder ? NULL : json_object_get(r->map, key);

    return of_map && !json_is_null(of_map) ? of_map
                                           : json_object_get(r->config, key);
}

/* The member "extra_special_tokens", or in older files
 * "additional_special_tokens". */
static const json_t *extra(const struct reading *r)
{
    const json_t *list = named(r, EXTRA);

    return json_array_size(list) || json_object_size(list)
               ? list
               : named(r, "additional_special_tokens");
}

/* Calls take on every token that is named special, in the order in which new
 * tokens get ids; stops at a nonzero result of take and returns it. */
static int walk_named(const struct reading *r,
                      int (*take)(void *arg, const char *key,
                                  const json_t *value, struct kv_err *e),
                      void *arg, struct kv_err *e)
{
    const json_t *list = extra(r),
                 *files[] = {r->decoder ? NULL : r->map, r->config};
    const char *key;
    json_t *value;
    size_t i;
    int rc;

    for (i = 0; i < N_STANDARD; i++)
        if ((rc = take(arg, standard[i], named(r, standard[i]), e)))
            return rc;
    for (i = 0; i < 2; i++)
        json_object_foreach(
            (json_t *)files[i], key,
            value) if (is_own(key, value) && value == named(r, key) &&
                       (rc = take(arg, key, value, e))) return rc;
    json_array_foreach((json_t *)list, i,
                       value) if ((rc = take(arg, "extra_special_tokens", value,
                                             e))) return rc;
    json_object_foreach((json_t *)list, key,
                        value) if ((rc = take(arg, key, value, e))) return rc;
    return 0;
}

static int is_it(void *arg, const char *key, const json_t *value,
                 struct kv_err *e)
{
    const char *content = content_of(value);

    (void)e;
    return content && !is_own(key, value) && !strcmp(content, arg);
}

static bool is_named(const struct reading *r, const char *content)
{
    return walk_named(r, is_it, (char *)content, NULL);
}

static bool is_listed(const json_t *decoder, const char *content)
{
    const char *key, *here;
    json_t *value;

    json_object_foreach((json_t *)decoder, key,
                        value) if ((here = content_of(value)) &&
                                   !strcmp(here, content)) return true;
    return false;
}

/* Takes a named special token.  An added token that was not special becomes
 * special by the name.  If the config lists its added tokens, the token must be
 * in the list. */
static int take_named(void *arg, const char *key, const json_t *value,
                      struct kv_err *e)
{
    const struct reading *r = arg;
    struct kv_added_token t = {.id = -1, .special = true}, *old;

    t.content = (char *)content_of(value);
    if (!value || json_is_null(value) || (t.content && !*t.content))
        return 0;
    if (json_is_object(value) ? kv_added_parse(&t, value, "__type id", e)
        : !t.content          ? kv_fail(e, "neither a string nor a token")
                              : 0)
        return kv_fail_in(e, "\"%s\"", key);
    t.special = true;
    old = kv_added_find(r->m->added, t.content);
    if (old)
        old->special |= strcmp(key, EXTRA) &&
                        (!r->decoder || is_listed(r->decoder, t.content));
    else if (kv_added_put(r->m->added, &t, r->m->vocab, e))
        return kv_fail_in(e, "\"%s\"", key);
    return 0;
}

/* ---- added tokens ------------------------------------------------------ */

/* A member of "added_tokens_decoder", "5": {"content": ...}, or of
 * added_tokens.json, "<x>": 5. */
struct entry {
    json_int_t id;
    const char *key;
    const json_t *value;
};

static int by_id(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;

    return (x->id > y->id) - (x->id < y->id);
}

static bool same_flags(const struct kv_added_token *a,
                       const struct kv_added_token *b)
{
    return a->special == b->special && a->normalized == b->normalized &&
           a->single_word == b->single_word && a->lstrip == b->lstrip &&
           a->rstrip == b->rstrip;
}

/* If flags differ, the config's flags are taken.  A special token's flags
 * hardly matter while special tokens are read as plain text, but a reader that
 * matches them must know. */
static int take_flags(const struct reading *r, struct kv_added_token *old,
                      const struct kv_added_token *t, struct kv_err *e)
{
    char *content = old->content;

    if (same_flags(old, t))
        return 0;
    if (!old->special || !t->special)
        return kv_fail(e,
                       "\"%s\" is not as in tokenizer.json (special, "
                       "normalized, single_word, lstrip or rstrip)",
                       t->content);
    *old = *t;
    old->content = content;
    r->c->flags_differ = content;
    return 0;
}

/* Adds a token.  If tokenizer.json has it too, it must be the same there. */
static int take_token(const struct reading *r, const struct kv_added_token *t,
                      bool with_flags, struct kv_err *e)
{
    struct kv_added_token *old = kv_added_find(r->m->added, t->content);

    if (!old)
        return kv_added_put(r->m->added, t, r->m->vocab, e);
    if (old->id != t->id)
        return kv_fail(e, "\"%s\" has id %d, in tokenizer.json it is %d",
                       t->content, (int)t->id, (int)old->id);
    return with_flags ? take_flags(r, old, t, e) : 0;
}

static int take_listed(const struct reading *r, const struct entry *entry,
                       struct kv_err *e)
{
    struct kv_added_token t;

    if (kv_added_parse(&t, entry->value, "__type", e))
        return -1;
    t.id = (int32_t)entry->id;
    return take_token(r, &t, true, e);
}

/* Takes an entry of added_tokens.json.  If the config lists all added tokens,
 * the file adds none. */
static int take_of_file(const struct reading *r, const struct entry *entry,
                        struct kv_err *e)
{
    const bool special = is_named(r, entry->key);
    const struct kv_added_token t = {.content = (char *)entry->key,
                                     .id = (int32_t)entry->id,
                                     .special = special,
                                     .normalized = !special};

    if (r->decoder && !kv_added_find(r->m->added, t.content))
        return kv_fail(e,
                       "\"%s\" is neither in tokenizer.json nor in "
                       "\"added_tokens_decoder\" of tokenizer_config.json",
                       t.content);
    return take_token(r, &t, false, e);
}

static int id_of_key(struct entry *entry, struct kv_err *e)
{
    char *end;

    entry->id = strtoll(entry->key, &end, 10);
    if (end == entry->key || *end || entry->id < 0 || entry->id >= KV_TOKEN_IDS)
        return kv_fail(e, "\"%s\" is not an id from 0 to %d", entry->key,
                       KV_TOKEN_IDS - 1);
    return 0;
}

static int id_of_value(struct entry *entry, struct kv_err *e)
{
    entry->id =
        json_is_integer(entry->value) ? json_integer_value(entry->value) : -1;
    if (entry->id < 0 || entry->id >= KV_TOKEN_IDS || !*entry->key)
        return kv_fail(e, "the id of \"%s\" is not an integer from 0 to %d",
                       entry->key, KV_TOKEN_IDS - 1);
    return 0;
}

/* Takes the entries of an object in the order of their ids, in which new tokens
 * get ids. */
static int take_by_id(const struct reading *r, const json_t *object,
                      int (*find_id)(struct entry *entry, struct kv_err *e),
                      int (*take)(const struct reading *r,
                                  const struct entry *entry, struct kv_err *e),
                      struct kv_err *e)
{
    struct entry *entry = kv_alloc(json_object_size(object), sizeof(*entry));
    const char *key;
    json_t *value;
    size_t n = 0;
    int rc = 0;

    json_object_foreach((json_t *)object, key, value)
    {
        entry[n] = (struct entry){.key = key, .value = value};
        rc = rc || find_id(&entry[n++], e);
    }
    if (!rc)
        qsort(entry, n, sizeof(*entry), by_id);
    for (size_t i = 0; i < n && !rc; i++)
        rc = take(r, &entry[i], e);
    free(entry);
    return rc ? -1 : 0;
}

/* ---- contradictions ---------------------------------------------------- */

/* Checks that both files name the same BOS.  Other names cannot change ids:
 * they only make tokens special, and it is certain which file's names count. */
static int check_map(const struct reading *r, struct kv_err *e)
{
    const char *here = content_of(json_object_get(r->map, "bos_token"));
    const char *there = content_of(json_object_get(r->config, "bos_token"));

    if (here && there && *here && *there && strcmp(here, there))
        return kv_fail(e,
                       "\"bos_token\" is \"%s\" in special_tokens_map.json "
                       "and \"%s\" in tokenizer_config.json",
                       here, there);
    return 0;
}

/* Whether this is a class of transformers that always uses tokenizer.json's
 * post-processor template. */
static bool goes_by_template(const json_t *config)
{
    static const char *const names[] = {"PreTrainedTokenizerFast",
                                        "TokenizersBackend", "Qwen2Tokenizer",
                                        "Qwen2TokenizerFast"};
    const char *name =
        json_string_value(json_object_get(config, "tokenizer_class"));

    for (size_t i = 0; name && i < sizeof(names) / sizeof(*names); i++)
        if (!strcmp(name, names[i]))
            return true;
    return false;
}

#define WAY_OUT                                         \
    ": to go by tokenizer.json, take the field out of " \
    "tokenizer_config.json"

/* Checks add_bos_token and add_eos_token.  transformers 5 follows the template,
 * whatever the flags say.  transformers 4 does so for some classes; other
 * classes, such as Llama's, build the template again from the flags and
 * "bos_token". */
static int check_bos(const struct reading *r, int32_t bos, struct kv_err *e)
{
    const int32_t before = r->m->before;
    bool adds, ends;

    if (kv_field_flag(r->config, "add_bos_token", before >= 0, &adds, e) ||
        kv_field_flag(r->config, "add_eos_token", false, &ends, e))
        return -1;
    if (goes_by_template(r->config))
        return 0;
    if (adds != (before >= 0))
        return kv_fail(e,
                       "\"add_bos_token\" is %s, but \"post_processor\" of "
                       "tokenizer.json puts %s token before a text" WAY_OUT,
                       adds ? "true" : "false", adds ? "no" : "a");
    if (ends)
        return kv_fail(e, "\"add_eos_token\" is true, but \"post_processor\" "
                          "of tokenizer.json puts no token after a "
                          "text" WAY_OUT);
    if (before >= 0 && bos >= 0 && bos != before)
        return kv_fail(e,
                       "\"bos_token\" has id %d, but \"post_processor\" of "
                       "tokenizer.json puts %d before a text",
                       (int)bos, (int)before);
    return 0;
}

/* Refuses an add_prefix_space that contradicts tokenizer.json, since versions
 * and classes of transformers differ in which of the two counts. */
static int check_prefix(const struct reading *r, struct kv_err *e)
{
    const int said = r->m->prefix_space;
    bool prefix;

    if (kv_field_flag(r->config, "add_prefix_space", said > 0, &prefix, e))
        return -1;
    if (said >= 0 && prefix != (said > 0))
        return kv_fail(e,
                       "\"add_prefix_space\" is %s, but tokenizer.json puts %s "
                       "space before a text" WAY_OUT,
                       prefix ? "true" : "false", prefix ? "no" : "a");
    return 0;
}

/* Refuses settings that would replace tokenizer.json's tokenizer. */
static int refuse_rest(const json_t *config, const char *known,
                       struct kv_err *e)
{
    const json_t *files = json_object_get(config, "fast_tokenizer_files");
    const json_t *own = json_object_get(config, "auto_map");
    const char *name =
        json_string_value(json_object_get(config, "tokenizer_class"));
    bool other;

    for (size_t i = 0; i < json_array_size(files); i++) {
        const char *file = json_string_value(json_array_get(files, i));

        if (!file || strcmp(file, "tokenizer.json"))
            return kv_fail(e, "\"fast_tokenizer_files\" names other files than "
                              "tokenizer.json, which is not supported");
    }
    if ((json_is_array(own) || json_object_get(own, "AutoTokenizer")) &&
        !(known && name && !strcmp(name, known)))
        return kv_fail(e, "\"auto_map\" names a tokenizer of the model's own, "
                          "which is not supported");
    if (kv_field_flag(config, "fix_mistral_regex", false, &other, e))
        return -1;
    return other ? kv_fail(e, "\"fix_mistral_regex\" is not supported") : 0;
}

static int take_config(struct reading *r, struct kv_err *e)
{
    const json_t *decoder = json_object_get(r->config, "added_tokens_decoder");

    r->decoder = json_is_null(decoder) ? NULL : decoder;
    if (r->decoder && !json_is_object(decoder))
        return kv_fail(e, "\"added_tokens_decoder\" is not an object");
    return refuse_rest(r->config, r->m->own, e) || check_prefix(r, e) ||
           kv_field_flag(r->config, "split_special_tokens", false,
                         &r->c->splits_special, e) ||
           (take_by_id(r, r->decoder, id_of_key, take_listed, e) &&
            kv_fail_in(e, "added_tokens_decoder"));
}

/* Reads a JSON object; leaves *j if there is no such file. */
static int read_object(const char *dir, const char *name, json_t **j,
                       struct kv_err *e)
{
    char *path = kv_model_file(dir, name);
    int rc = 0;

    if (kv_file_exists(path)) {
        *j = kv_json_read(path, e);
        if (!*j)
            rc = -1;
        else if (!json_is_object(*j))
            rc = kv_fail(e, "%s: not an object", path);
    }
    free(path);
    return rc;
}

/* Models for which transformers 5 uses tokenizer.json unchanged, regardless of
 * the class that the folder names. */
static bool keeps_file(const char *model_type)
{
    static const char *const types[] = {
        "arctic",   "fuyu",     "internlm2", "internlm3", "jamba",  "llava",
        "minicpm3", "nemotron", "phi3",      "phi3_v",    "phimoe", "qwen2"};

    for (size_t i = 0; model_type && i < sizeof(types) / sizeof(*types); i++)
        if (!strcmp(types[i], model_type))
            return true;
    return false;
}

/* Handles "legacy" of transformers' LlamaTokenizer.  It puts a space before the
 * first part of a text between special tokens, or, if "legacy" is true, before
 * every part. */
static int read_legacy(struct reading *r, const char *dir, struct kv_err *e)
{
    const char *class =
        json_string_value(json_object_get(r->config, "tokenizer_class"));
    json_t *model = NULL;
    bool legacy;

    if (!class || (strcmp(class, "LlamaTokenizer") &&
                   strcmp(class, "LlamaTokenizerFast")))
        return 0;
    if (kv_field_flag(r->config, "legacy", false, &legacy, e))
        return kv_fail_in(e, "%s/tokenizer_config.json", dir);
    if (read_object(dir, "config.json", &model, e))
        return -1;
    if (!keeps_file(json_string_value(json_object_get(model, "model_type"))))
        r->c->prepend = legacy ? KV_PREPEND_ALWAYS : KV_PREPEND_FIRST;
    json_decref(model);
    return 0;
}

static int take(struct reading *r, const char *dir, struct kv_err *e)
{
    const char *bos;

    if (take_config(r, e))
        return kv_fail_in(e, "%s/tokenizer_config.json", dir);
    if (take_by_id(r, r->added, id_of_value, take_of_file, e))
        return kv_fail_in(e, "%s/added_tokens.json", dir);
    if (check_map(r, e))
        return kv_fail_in(e, "%s", dir);
    if (walk_named(r, take_named, r, e))
        goto fail;
    bos = content_of(named(r, "bos_token"));
    r->c->bos = bos && *bos ? kv_added_find(r->m->added, bos)->id : -1;
    if (!check_bos(r, r->c->bos, e))
        return 0;
fail:
    return kv_fail_in(e, "%s/tokenizer_config.json%s", dir,
                      r->map ? " or special_tokens_map.json" : "");
}

int kv_tokenizer_config_read(struct kv_tokenizer_config *c, const char *dir,
                             const struct kv_tokenizer_main *m,
                             struct kv_err *e)
{
    struct reading r = {.m = m, .c = c};
    int rc = -1;

    *c = (struct kv_tokenizer_config){.bos = -1, .prepend = -1};
    if (!read_object(dir, "tokenizer_config.json", &r.config, e) &&
        !read_object(dir, "special_tokens_map.json", &r.map, e) &&
        !read_object(dir, "added_tokens.json", &r.added, e)) {
        r.config = r.config ? r.config : json_object();
        rc = read_legacy(&r, dir, e) || take(&r, dir, e) ? -1 : 0;
    }
    json_decref(r.config);
    json_decref(r.map);
    json_decref(r.added);
    return rc;
}
