/* Trellis-coded quantization (Marcellin and Fischer 1990) on the bit-shift
 * trellis (QTIP, arXiv 2406.11235): at the same fixed rate it closes a part of
 * the gap between a scalar quantizer and the rate-distortion bound.
 *
 * A transition encodes `values` numbers in `bits` bits.  The state after a
 * transition is the last KV_TRELLIS_BITS bits of the bitstream so far (zeros
 * before its beginning), and the numbers are the entries of the transition's
 * table for that state:
 *
 *   bitstream   0 0 0 ... | u u | u | u u u | u ...        high bit first
 *                  state of transition i ^ ends with its own bits
 *
 * So a decoder can begin anywhere: it needs only the bits before a transition.
 * The encoder searches all paths (Viterbi).  Rates below one bit come from
 * transitions of several numbers. */
#ifndef KV_TRELLIS_H
#define KV_TRELLIS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    KV_TRELLIS_BITS = 9,
    KV_TRELLIS_STATES = 1 << KV_TRELLIS_BITS,
    KV_TRELLIS_ENTRIES = 256, /* maximum entries of a short table */
    KV_TRELLIS_MAX_BITS = 8,  /* of one transition */
    KV_TRELLIS_MAX_VALUES = 4 /* of one transition */
};

struct kv_trellis_transition {
    unsigned bits, values; /* 1 to the maximum; with 4 bits at most 2 values,
                            * with more bits 1 */
    const float *table;    /* [values][KV_TRELLIS_STATES] */
    /* Only for encoding, set by kv_trellis_transition(): */
    bool folded;  /* kv_trellis_unfold() made the table; required with several
                   * values */
    double error; /* expected error of a value: the table's mean square times
                   * 4^(-bits / values) */
    float reach;  /* the largest size of a number */
    float gap;    /* the largest gap between neighbouring numbers of a value */
};

/* Also fills in the fields that only the encoder needs.  table:
 * [values][KV_TRELLIS_STATES]. */
struct kv_trellis_transition kv_trellis_transition(unsigned bits,
                                                   unsigned values,
                                                   const float *table,
                                                   bool folded);

/* An encoder computes in whole numbers.  x and decoded numbers are positions.
 * A value's cost is in units of a quarter of the expected error of a value,
 * averaged over the bitstream (an error above 16 times the geometric mean
 * counts as 16 times).  For one value of a bitstream: */
struct kv_trellis_whole {
    float x, number; /* position of the value 1, for x and for the table's
                      * numbers */
    int16_t max;     /* limit of x's position on either side, somewhat past all
                      * numbers */
    uint8_t shift;   /* log2 of the factor by which positions are coarser */
    uint8_t slope;   /* a far distance costs an extra distance >> slope */
};

/* whole: [values of all transitions]; scale: one for each value, as for
 * decoding.  whole is all 0 if decoded numbers are 0, or too large for their
 * error to fit a double; all bytes are then equally good. */
void kv_trellis_count(const struct kv_trellis_transition *transition,
                      size_t n_transitions, const float *scale,
                      struct kv_trellis_whole *whole);

/* Bytes of the whole bitstream; zero bits fill up the last byte. */
size_t kv_trellis_bytes(const struct kv_trellis_transition *transition,
                        size_t n_transitions);

/* Bytes of workspace that encode needs for n bitstreams.  Tables and workspace
 * memory are best at the start of a cache line (kv_lines()). */
size_t kv_trellis_workspace(const struct kv_trellis_transition *transition,
                            size_t n_transitions, size_t n);

/* Encodes n bitstreams of the same transitions.  Value i of bitstream s is x[s
 * * x_stride + place[i]], finite; whole: from kv_trellis_count(); bytes:
 * [n][stride].  Finds the bytes whose decoded numbers have the least sum of
 * costs.  A transition costs (x - decoded)^2 for each value, rounded to a whole
 * number, or less at large distances (impl.h).  On ties the lowest predecessor
 * wins.  Every level gives the same bytes. */
void kv_trellis_encode(const struct kv_trellis_transition *transition,
                       size_t n_transitions, const float *x, size_t x_stride,
                       const uint32_t *place,
                       const struct kv_trellis_whole *whole, size_t n,
                       void *workspace, uint8_t *bytes, size_t stride);

/* Decodes: x = scale * table[state]. */
void kv_trellis_decode(const struct kv_trellis_transition *transition,
                       size_t n_transitions, const uint8_t *bytes,
                       size_t stride, const float *scale, size_t n, float *x,
                       size_t x_stride, const uint32_t *place);

/* The state after each transition: [n_transitions]. */
void kv_trellis_states(const struct kv_trellis_transition *transition,
                       size_t n_transitions, const uint8_t *bytes,
                       uint16_t *state);

/* Which entry of a short table a state has: bit i of the entry's number is the
 * parity of the state's bits that are set in of[i].  So each byte of a state
 * gives its part of the number, and XOR combines the parts. */
struct kv_trellis_map {
    unsigned bits; /* bits of an entry's number, at most 8 */
    uint16_t of[8];
};

/* The map in which a state's last 1 to 8 bits are the number. */
const struct kv_trellis_map *kv_trellis_last_bits(unsigned bits);

/* The map for transitions of `bits` bits and `values` values: 128 entries, or
 * 256 for more than KV_TRELLIS_NARROW bits; the last half are the first half,
 * negated.  States that share a number have to be far from each other on every
 * path, so a map folds the first bits of a state onto its last bits.  Of some
 * hundred maps drawn at random, these left the least error on normal sequences.
 * The map for 4 bits and 2 values leaves 1.5 % less error than the other narrow
 * map, 2 % less on Laplacian sequences.  A table with a number for each state
 * and its negative would leave the same error on normal sequences up to 4 bits
 * and up to 4 % less above; on Laplacian sequences 1 % (2 bits), 5 % (5 bits),
 * 15 % (8 bits) less. */
enum { KV_TRELLIS_NARROW = 5 };
const struct kv_trellis_map *kv_trellis_map(unsigned bits, unsigned values);

static inline unsigned kv_trellis_entry(const struct kv_trellis_map *map,
                                        unsigned state)
{
    unsigned entry = 0;

    for (unsigned i = 0; i < map->bits; i++)
        entry |= (unsigned)__builtin_parity(state & map->of[i]) << i;
    return entry;
}

/* The number of stored numbers in a transition's table: the first half of its
 * entries. */
size_t kv_trellis_kept(unsigned bits);

/* The table by states: [values][KV_TRELLIS_STATES] from kept [values]
 * [kv_trellis_kept()]. */
void kv_trellis_unfold(unsigned bits, unsigned values, const float *kept,
                       float *table);

/* Trains the stored part of the table of one kind of transition on n >= 1
 * sequences of len values, x [n][len] of about unit variance; len is a multiple
 * of `values`.  Numbers start as the values' quantiles in random order, with
 * more rare values at higher rates.  In each of `rounds` rounds a number
 * becomes the mean of the values it stood for; the first half of the rounds
 * uses a quarter of the sequences.  kept: [values][kv_trellis_kept()].  The
 * same for any number of threads. */
void kv_trellis_train(unsigned bits, unsigned values, const float *x, size_t n,
                      size_t len, size_t rounds, uint64_t seed, float *kept);

/* The mean squared error per value that the table `kept` leaves on the
 * sequences x. */
double kv_trellis_error(unsigned bits, unsigned values, const float *kept,
                        const float *x, size_t n, size_t len);

#endif
