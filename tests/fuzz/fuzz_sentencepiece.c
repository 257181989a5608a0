/* A tokenizer.model of SentencePiece, and one text. */
#include "tests/charsmap.h"
#include "tests/fuzz/read_text.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static const char text[] = "<s>abba ab<unk> a  aab\n\xc3\xa9\xc3";

    fuzz_file("tokenizer.model", data, n);
    fuzz_text(fuzz_folder(), text, sizeof(text) - 1);
    return 0;
}

/* <unk> (unknown), <s> (control), a, b, ab (-1), the space; type 2 is BPE, 1
 * Unigram; field 4 of the normalizer keeps its spaces. */
#define SEED(type)                                       \
    "\x0a\x09\x0a\x05<unk>\x18\x02"                      \
    "\x0a\x07\x0a\x03<s>\x18\x03"                        \
    "\x0a\x03\x0a\x01"                                   \
    "a\x0a\x03\x0a\x01"                                  \
    "b\x0a\x09\x0a\x02"                                  \
    "ab\x15\x00\x00\x80\xbf\x0a\x05\x0a\x03\xe2\x96\x81" \
    "\x12\x02\x18" type "\x1a\x02\x20\x00"

void fuzz_make_seeds(void)
{
    static const char bpe[] = SEED("\x02"), unigram[] = SEED("\x01");
    /* the last field again, with a table: 8204 bytes in one of 8209 */
    static const char head[] = SEED("\x01") "\x1a\x91\x40\x20\x01\x12\x8c\x40";
    char table[sizeof(head) - 1 + CHARSMAP_BYTES];

    memcpy(table, head, sizeof(head) - 1);
    make_charsmap((uint8_t *)table + sizeof(head) - 1);
    fuzz_seed("table", table, sizeof(table));
    fuzz_seed("bpe", bpe, sizeof(bpe) - 1);
    fuzz_seed("unigram", unigram, sizeof(unigram) - 1);
}
