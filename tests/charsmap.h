/* Makes the smallest table of characters that a tokenizer normalizes
 * (tokenizer_charsmap.h). */
#ifndef KV_TESTS_CHARSMAP_H
#define KV_TESTS_CHARSMAP_H

#include <stdint.h>
#include <string.h>

enum { CHARSMAP_UNITS = 2048, CHARSMAP_BYTES = 4 + 4 * CHARSMAP_UNITS + 8 };

struct charsmap_entry {
    const char *key;
    uint32_t value; /* where its text begins in charsmap_texts */
};

/* The replacements: at 0 "a", for the wide A; at 2 "\xc3\xa9", for e with a
 * combining acute; at 5 "E", for e alone. */
static const char charsmap_texts[8] = "a\0\xc3\xa9\0E";
static const struct charsmap_entry charsmap_entries[] = {
    {"\xef\xbc\xa1", 0}, {"e", 5}, {"e\xcc\x81", 2}};

static inline void charsmap_put(uint8_t *to, uint32_t x)
{
    for (unsigned i = 0; i < 4; i++)
        to[i] = (uint8_t)(x >> (8 * i));
}

static inline uint32_t charsmap_get(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 |
           (uint32_t)p[3] << 24;
}

/* Each node has 256 units for its children, from unit 256 times its number on;
 * the unit for byte 0 holds the node's value. */
static inline void make_charsmap(uint8_t table[CHARSMAP_BYTES])
{
    uint8_t *units = table + 4;
    uint32_t n_nodes = 1;

    memset(table, 0, CHARSMAP_BYTES);
    charsmap_put(table, 4 * CHARSMAP_UNITS);
    charsmap_put(units, 256u << 10);
    n_nodes++;
    for (unsigned i = 0; i < 3; i++) {
        const struct charsmap_entry *x = &charsmap_entries[i];
        uint32_t base = 256, at = 0;

        for (const char *p = x->key; *p; p++) {
            at = base ^ (uint8_t)*p;
            if (!charsmap_get(units + 4 * at))
                charsmap_put(units + 4 * at,
                             (uint8_t)*p | (at ^ (n_nodes++ * 256)) << 10);
            base = at ^ charsmap_get(units + 4 * at) >> 10;
        }
        charsmap_put(units + 4 * at, charsmap_get(units + 4 * at) | 1 << 8);
        charsmap_put(units + 4 * base, x->value | 1u << 31);
    }
    memcpy(units + 4 * CHARSMAP_UNITS, charsmap_texts, sizeof(charsmap_texts));
}

#endif
