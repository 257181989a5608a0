/* One KV head of K's or V's codes, read piece by piece as the right side of
 * hack's products; for hack_attend.c. */
#ifndef KV_HACK_OPERAND_H
#define KV_HACK_OPERAND_H

#include "lib/schemes/hack.h"

enum { KV_HACK_PIECE = 64 }; /* tokens; axes=artifact: a block */

/* One KV head of K or V and the piece of it that is being multiplied: `max`
 * whole lines or fewer, the columns of the product; stride is max filled up. */
struct kv_hack_operand {
    const struct kv_hack *h;
    const struct kv_reader *r;
    size_t head;
    size_t n_coded, n_blocks; /* held as codes, an open block too */
    size_t n_plain, tail;     /* fp16 tokens: the sinks, then from tail */
    float *plain;             /* [n_plain][head_dim] */
    float *open; /* artifact: the decoded open block, all heads; its tokens are
                    plain */
    size_t max, stride;
    uint8_t *code;      /* [n_parts][stride], a part's codes each, arranged */
    int32_t *sum;       /* [n_parts][stride] */
    float *min, *scale; /* [n_parts][stride]; artifact: [n_groups][len] */
    uint32_t *word;     /* the bytes behind each line's codes, transposed */
    uint16_t *half;     /* [max], or a block's codes */
    uint8_t *byte;      /* a block's codes, where lines end within a byte */
    float *wide;        /* [n_ranges] */

    size_t next, next_end;    /* blocks that kv_hack_fetch() has yet to begin */
    uintptr_t line, line_end; /* of the current block, yet to be fetched */
    size_t at_once;           /* lines */
};

struct kv_hack_operand kv_hack_operand_new(const struct kv_reader *r);
void kv_hack_operand_free(struct kv_hack_operand *o);

/* The KV head that is read from now on, and its fp16 tokens. */
void kv_hack_operand_head(struct kv_hack_operand *o, size_t head);

/* Announces that the n blocks from b on are read next, while the current piece
 * is multiplied with `rows` rows.  A core stands still when it asks for more
 * lines than it can wait for: each kv_hack_fetch() between other work asks for
 * a few, all of them for all.  Lines that are not asked for come when they are
 * read. */
void kv_hack_expect(struct kv_hack_operand *o, size_t b, size_t n, size_t rows);
void kv_hack_fetch(struct kv_hack_operand *o);

/* A piece, keys of axes=paper, each in a block of its own: n tokens from coded
 * token t on. */
void kv_hack_read_tokens(struct kv_hack_operand *o, size_t t, size_t n);

/* A piece, everything else: block b, of whose lines m codes count. */
void kv_hack_read_block(struct kv_hack_operand *o, size_t b, size_t m);

/* One part of the piece's lines [line, line + n), m codes each. */
struct kv_hack_columns kv_hack_operand_columns(const struct kv_hack_operand *o,
                                               size_t part, size_t line,
                                               size_t n, size_t m);

#endif
