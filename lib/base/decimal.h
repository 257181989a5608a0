/* Decimal numbers in the form that specs use. */
#ifndef KV_BASE_DECIMAL_H
#define KV_BASE_DECIMAL_H

/* 18 digits, a point and 20 places; a longer text is cut at the end. */
enum { KV_DECIMAL_CHARS = 40 };

struct kv_decimal {
    char text[KV_DECIMAL_CHARS];
};

/* The shortest plain decimal, without an exponent, that reads back as value. */
struct kv_decimal kv_decimal(double value);

#endif
