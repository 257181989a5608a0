#include "lib/tokenizer/tokenizer_cuts.h"

#include <string.h>

#define GPT2                                                             \
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|" \
    "\\s+(?!\\S)|\\s+"

#define ENDINGS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define LINES "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

/* The rule for words in Llama 3 and many later models; `digits` is the rule for
 * digits. */
#define WORDS(digits) \
    "[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" digits "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|"
#define LLAMA3(digits) ENDINGS "|" WORDS(digits) LINES

/* A rule for words that have capitals only at their start. */
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define BEFORE "[^\\r\\n\\p{L}\\p{N}]?"
#define CAPITALS(ending, digits)                                            \
    BEFORE UPPER "*" LOWER "+" ending "|" BEFORE UPPER "+" LOWER "*" ending \
                 "|" digits "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" LINES

#define HAN "[\\x{4e00}-\\x{9fa5}\\x{800}-\\x{4e00}\\x{ac00}-\\x{d7ff}]+"

/* DeepSeek's rules: KANJI for Han and kana, DEEPSEEK for everything else except
 * digits. */
#define KANJI "[\\x{4e00}-\\x{9fa5}\\x{3040}-\\x{309f}\\x{30a0}-\\x{30ff}]+"
#define DEEPSEEK                                             \
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|" \
    "[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+"

/* Groups of three digits, counted from the end of the number. */
#define THREES "\\p{N}{1,3}(?=(?:\\p{N}{3})*(?!\\p{N}))"

/* Asian scripts that are written without spaces. */
#define ASIAN                                                         \
    "[\\x{4e00}-\\x{9fff}\\x{3400}-\\x{4dbf}\\x{8c48}-\\x{faff}"      \
    "\\x{3040}-\\x{309f}\\x{30a0}-\\x{30ff}\\x{ff65}-\\x{ff9f}"       \
    "\\x{2f00}-\\x{2fdf}\\x{e40}-\\x{e7f}\\x{e80}-\\x{eff}\\x{1780}-" \
    "\\x{17ff}\\x{1000}-\\x{109f}\\x{aa60}-\\x{aa7f}\\x{a9e0}-"       \
    "\\x{a9ff}\\x{ac00}-\\x{d7af}\\x{1100}-\\x{11ff}]+"

/* A run of text up to a comma or a full stop. */
#define COMMAS                                                              \
    " ?[^(\\s|.,!?\\x{2026}\\x{3002}\\x{ff0c}\\x{3001}\\x{964}\\x{6d4}\\x{" \
    "60c})]+"

/* Letters of alphabets that have upper and lower case. */
#define CASED                                                            \
    "[A-Za-z\\x{b5}\\x{c0}-\\x{d6}\\x{d8}-\\x{f6}\\x{f8}-\\x{1ba}"       \
    "\\x{1bc}-\\x{1bf}\\x{1c4}-\\x{293}\\x{295}-\\x{2af}\\x{370}-"       \
    "\\x{373}\\x{376}\\x{377}\\x{37b}-\\x{37d}\\x{37f}\\x{386}\\x{388}-" \
    "\\x{38a}\\x{38c}\\x{38e}-\\x{3a1}\\x{3a3}-\\x{3f5}\\x{3f7}-"        \
    "\\x{481}\\x{48a}-\\x{52f}\\x{531}-\\x{556}\\x{10a0}-\\x{10c5}"      \
    "\\x{13a0}-\\x{13f5}\\x{13f8}-\\x{13fd}\\x{1c90}-\\x{1cba}\\x{1cbd}" \
    "-\\x{1cbf}\\x{1d00}-\\x{1d2b}\\x{1d6b}-\\x{1d77}\\x{1d79}-"         \
    "\\x{1d9a}\\x{1e00}-\\x{1f15}\\x{1f18}-\\x{1f1d}\\x{1f20}-\\x{1f45}" \
    "\\x{1f48}-\\x{1f4d}\\x{1f50}-\\x{1f57}\\x{1f59}\\x{1f5b}\\x{1f5d}"  \
    "\\x{1f5f}-\\x{1f7d}\\x{1f80}-\\x{1fb4}\\x{1fb6}-\\x{1fbc}\\x{1fbe}" \
    "\\x{1fc2}-\\x{1fc4}\\x{1fc6}-\\x{1fcc}\\x{1fd0}-\\x{1fd3}\\x{1fd6}" \
    "-\\x{1fdb}\\x{1fe0}-\\x{1fec}\\x{1ff2}-\\x{1ff4}\\x{1ff6}-"         \
    "\\x{1ffc}\\x{2102}\\x{2107}\\x{210a}-\\x{2113}\\x{2115}\\x{2119}-"  \
    "\\x{211d}\\x{2124}\\x{2126}\\x{2128}\\x{212a}-\\x{212d}\\x{212f}-"  \
    "\\x{2134}\\x{2139}\\x{213c}-\\x{213f}\\x{2145}-\\x{2149}\\x{214e}"  \
    "\\x{2183}\\x{2184}\\x{2c00}-\\x{2c7b}\\x{2c7e}-\\x{2ce4}\\x{2ceb}-" \
    "\\x{2cee}\\x{2cf2}\\x{2cf3}\\x{a640}-\\x{a66d}\\x{a680}-\\x{a69b}"  \
    "\\x{a722}-\\x{a76f}\\x{a771}-\\x{a787}\\x{a78b}-\\x{a78e}\\x{ab70}" \
    "-\\x{abbf}\\x{fb00}-\\x{fb06}\\x{fb13}-\\x{fb17}\\x{ff21}-"         \
    "\\x{ff3a}\\x{ff41}-\\x{ff5a}\\x{10400}-\\x{1044f}\\x{104b0}-"       \
    "\\x{104d3}\\x{104d8}-\\x{104fb}\\x{10c80}-\\x{10cb2}\\x{10cc0}-"    \
    "\\x{10cf2}\\x{118a0}-\\x{118df}\\x{1e900}-\\x{1e943}]+"

static const struct kv_cut cuts[] = {
    {.names =
         "gpt-2 phi-2 mpt olmo jais trillion granite-docling exaone4 gigachat "
         "a.x-4.0 mellum jina-es jina-de jina-v2-es jina-v2-de modern-bert",
     .regex = {GPT2}},
    {.names = "smollm starcoder refact command-r codeshell exaone minerva-7b "
              "mellum2",
     .regex = {"\\p{N}", GPT2}},
    {.names = "falcon",
     .regex = {"[\\p{P}$+<=>^`|~]+", GPT2, "[0-9][0-9][0-9]"}},
    {.names = "default",
     .regex = {"[\\p{P}$+<=>^|~]+", GPT2, "\\p{N}+", "[0-9][0-9][0-9]"}},
    {.names =
         "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 "
         "jina-v5-nano",
     .ignores_merges = true,
     .adds_bos = true,
     .regex = {LLAMA3("\\p{N}{1,3}")}},
    {.names = "dbrx smaug-bpe chatglm-bpe", .regex = {LLAMA3("\\p{N}{1,3}")}},
    {.names = "glm4 glm5",
     .ignores_merges = true,
     .regex = {LLAMA3("\\p{N}{1,3}")}},
    {.names =
         "qwen2 deepseek-r1-qwen kormo f2llmv2 stablelm2 megrez hunyuan grok-2 "
         "solar-open",
     .regex = {LLAMA3("\\p{N}")}},
    {.names = "qwen35",
     .regex = {ENDINGS "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| "
                       "?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|" LINES}},
    {.names = "tekken",
     .ignores_merges = true,
     .adds_bos = true,
     .regex = {CAPITALS("", "\\p{N}")}},
    {.names = "gpt-4o llama4 kanana2 minimax-m2 talkie",
     .regex = {CAPITALS(ENDINGS "?", "\\p{N}{1,3}")}},
    {.names = "deepseek-llm",
     .regex = {"[\r\n]", "\\s?" CASED,
               "\\s?[!-/:-~\\x{ff01}-\\x{ff0f}\\x{ff1a}-\\x{ff5e}\\x{2018}-"
               "\\x{201f}\\x{3000}-\\x{3002}]+",
               "\\s+$", HAN, "\\p{N}+"}},
    {.names = "deepseek-coder",
     .regex = {"[\r\n]", "\\s?\\p{L}+", "\\s?\\p{P}+", HAN, "\\p{N}"}},
    {.names = "deepseek-v3 hunyuan-dense hy_v4 joyai-llm",
     .regex = {"\\p{N}{1,3}", KANJI, DEEPSEEK "[\r\n]*|" LINES}},
    {.names = "spark2_5",
     .regex = {"\\p{N}{1,3}", KANJI, DEEPSEEK "|[\r\n]|\\s+(?!\\S)|\\s+",
               "\\p{N}"}},
    {.names = "afmoe", .regex = {THREES, ASIAN, DEEPSEEK "[\r\n]*|" LINES}},
    {.names = "youtu",
     .ignores_merges = true,
     .regex = {"[\\x{ac00}-\\x{d7a3}\\x{3131}-\\x{318e}]+|[\\x{ff01}\\x{2026}"
               "\\x{201c}\\x{201d}\\x{2018}\\x{2019}\\x{2014}\\x{ff1a}\\x{ff1b}"
               "\\x{ff0c}\\x{3001}-\\x{303f}\\x{fe30}-\\x{fe4f}]+|[\\x{3105}-"
               "\\x{312f}]+|" KANJI,
               CAPITALS(ENDINGS "?", "\\p{N}")}},
    {.names = "granite-embed-multi-97m",
     .ignores_merges = true,
     .regex = {CAPITALS(ENDINGS "?", "\\p{N}{1,3}")}},
    {.names = "tiny_aya cohere2moe",
     .regex = {"\\d{1,3}(?=(?:\\d{3})*(?![\\p{L}\\p{M}\\p{N}\\p{Pc}]))",
               CAPITALS(ENDINGS "?", "\\p{N}{1,3}")}},
    {.names = "minicpm5",
     .ignores_merges = true,
     .regex = {"\\p{N}{1,3}", LLAMA3("\\p{N}+")}},
    {.names = "laguna", .regex = {"[^\\n]+|[\\n]+", LLAMA3("\\p{N}")}},
    {.names = "ufakzeka", .regex = {WORDS("\\p{N}") LINES}},
    {.names = "jais-2",
     .regex = {ENDINGS "|" WORDS(
         "\\p{N}{1,3}") "\\s*[\\r\\n]+|\\s{512}(?!\\S)|"
                        "\\s{256}(?!\\S)|\\s{128}(?!\\S)|\\s{64}"
                        "(?!\\S)|\\s{32}(?!\\S)|"
                        "\\s{16}(?!\\S)|\\s{8}(?!\\S)|\\s{4}(?!"
                        "\\S)|\\s{1,2}(?!\\S)|\\s{1}"}},
    {.names = "exaone-moe",
     .regex = {ENDINGS "|" BEFORE
                       "(?:\\p{L}\\p{M}*(?: \\p{L}\\p{M}*)*)+|\\p{N}| "
                       "?[^\\s\\p{L}\\p{N}]+[\\r\\n/]?|\\s*[\\r\\n]|"
                       "\\s+(?!\\S)|\\s+"}},
    {.names = "chameleon",
     .adds_bos = true,
     .regex = {"<sentinel:[0-9]+>", "IMGIMG[A-I]{1,4}Z", "[\\t\\n]|    |  ",
               "\\p{N}", "[\\p{P}!-/:-@\\[-`{-~]", GPT2}},
    {.names = "gemma4 granite-embed-multi-311m sarvam-moe",
     .regex = {"[^\\n]+|[\\n]+"},
     .raw = true},
    {.names = "bloom poro-chat gpt3-finnish", .regex = {COMMAS}},
    {.names = "viking", .regex = {COMMAS, "\\p{N}"}},
    {.names = "bailingmoe bailingmoe2 llada-moe",
     .regex = {"'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| "
               "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]|\\s+(?!\\S)|\\s+"}},
    {.names = "seed-coder",
     .regex = {ENDINGS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| "
                       "?[^\\s\\p{L}\\p{N}\\r\\n]+|" LINES}},
};

const struct kv_cut *kv_cut_find(const char *name, size_t bytes)
{
    for (size_t i = 0; i < sizeof(cuts) / sizeof(*cuts); i++) {
        for (const char *p = cuts[i].names; *p; p += *p == ' ') {
            const size_t n = strcspn(p, " ");

            if (n == bytes && !memcmp(p, name, n))
                return &cuts[i];
            p += n;
        }
    }
    return NULL;
}

static json_t *split(const char *regex)
{
    return json_pack("{s:s, s:{s:s}, s:s, s:b}", "type", "Split", "pattern",
                     "Regex", regex, "behavior", "Isolated", "invert", 0);
}

void kv_cut_add(const struct kv_cut *cut, json_t *out)
{
    json_t *steps = json_array();
    json_t *bytes = json_pack("{s:s, s:b, s:b}", "type", "ByteLevel",
                              "add_prefix_space", 0, "use_regex", 0);

    for (const char *const *regex = cut->regex; *regex; regex++)
        json_array_append_new(steps, split(*regex));
    if (!cut->raw)
        json_array_append(steps, bytes);
    json_object_set_new(
        out, "pre_tokenizer",
        json_pack("{s:s, s:o}", "type", "Sequence", "pretokenizers", steps));
    if (!cut->raw)
        json_object_set(out, "decoder", bytes);
    json_decref(bytes);
}
