/* One KV head of K's or V's codes, read piece by piece as the right side of
 * hack's products; for hack_attend.c. */
#ifndef KV_HACK_OPERAND_H
#define KV_HACK_OPERAND_H

#include "lib/schemes/hack.h"

enum { KV_HACK_PIECE = 64 }; /* tokens; axes=artifact: a block */

/* One KV head of K or V and the piece of it that is being multiplied: up to
 * `max` whole lines, which are the columns of the product; stride is max
 * rounded up. */
struct kv_hack_operand {
    const struct kv_hack *h;
    const struct kv_reader *r;
    size_t head;
    size_t n_coded, n_blocks; /* tokens held as codes, including an open block;
                               * their blocks */
    size_t n_plain, tail;     /* fp16 tokens: the sinks, then from tail */
    float *plain;             /* [n_plain][head_dim] */
    float *open; /* artifact: the decoded open block, all heads; its tokens are
                  * plain */
    size_t max, stride;
    uint8_t *code;      /* [n_parts][stride], the arranged codes of each part */
    int32_t *sum;       /* [n_parts][stride] */
    float *min, *scale; /* [n_parts][stride]; artifact: [n_groups][len] */
    uint32_t *word;     /* the bytes after each line's codes, transposed */
    uint16_t *half;     /* [max], or a block's codes */
    uint8_t *byte;      /* a block's codes, where lines end within a byte */
    float *wide;        /* [n_ranges] */

    size_t next, next_end;    /* blocks that kv_hack_fetch() has yet to begin */
    uintptr_t line, line_end; /* the part of the current block that is not yet
                               * fetched */
    size_t at_once;           /* lines that each fetch prefetches */
};

struct kv_hack_operand kv_hack_operand_new(const struct kv_reader *r);
void kv_hack_operand_free(struct kv_hack_operand *o);

/* Selects the KV head to read, and its fp16 tokens. */
void kv_hack_operand_head(struct kv_hack_operand *o, size_t head);

/* Announces that the n blocks from b on are read next, while the current piece
 * is multiplied with `rows` rows.  A core stalls if it prefetches too many
 * cache lines at a time, so each kv_hack_fetch(), called between other work,
 * prefetches a few; together they prefetch all.  Other lines are loaded when
 * they are read. */
void kv_hack_expect(struct kv_hack_operand *o, size_t b, size_t n, size_t rows);
void kv_hack_fetch(struct kv_hack_operand *o);

/* Loads a piece of keys with axes=paper, where each token is a block: n tokens
 * from coded token t on. */
void kv_hack_read_tokens(struct kv_hack_operand *o, size_t t, size_t n);

/* Loads any other piece: block b, whose lines have m valid codes. */
void kv_hack_read_block(struct kv_hack_operand *o, size_t b, size_t m);

/* Reads one part of the piece's lines [line, line + n), m codes each. */
struct kv_hack_columns kv_hack_operand_columns(const struct kv_hack_operand *o,
                                               size_t part, size_t line,
                                               size_t n, size_t m);

#endif
