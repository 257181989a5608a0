/* A file of tiktoken's ranks as Llama 3's tokenizer.model, and one text: the
 * input is its first lines, and the other lines are made here.  With another
 * number of lines the file would be refused before it is used. */
#include "lib/base/alloc.h"
#include "lib/base/base64.h"
#include "tests/fuzz/read_text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS = 128000 };

/* Line n: a byte, else three of them. */
static size_t put_line(char *to, size_t n)
{
    const uint8_t token[] = {(uint8_t)n, (uint8_t)(n >> 8), (uint8_t)(n >> 16)};
    char *s = kv_base64_encode(token, n < 256 ? 1 : 3);
    const size_t bytes = (size_t)sprintf(to, "%s %zu\n", s, n);

    free(s);
    return bytes;
}

static size_t lines_of(const uint8_t *data, size_t n)
{
    size_t lines = 0;

    for (size_t i = 0; i < n; i++)
        lines += data[i] == '\n';
    return lines;
}

/* Few files are made whole: that takes long, and most are refused before. */
static int is_whole(const uint8_t *data, size_t n)
{
    return n && n % 64 == 0 && data[n - 1] == '\n';
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static const char text[] = "abba <|eot_id|> 1234\n\xc3\xa9\xc3";
    const size_t room = is_whole(data, n) ? 32 * (size_t)RANKS : 0;
    char *file = kv_alloc(n + room + 1, 1);
    size_t at = n;

    if (n)
        memcpy(file, data, n);
    for (size_t i = lines_of(data, n); room && i < RANKS; i++)
        at += put_line(file + at, i);
    fuzz_file("tokenizer.model", (uint8_t *)file, at);
    free(file);
    fuzz_text(fuzz_folder(), text, sizeof(text) - 1);
    return 0;
}

void fuzz_make_seeds(void)
{
    char lines[256 * 16];
    size_t n = 0;

    fuzz_seed("few", "AA== 0\nAQ== 1\n", 14);
    for (size_t i = 0; i < 256; i++) {
        n += put_line(lines + n, i);
        if (n % 64 == 0)
            fuzz_seed("whole", lines, n);
    }
}
