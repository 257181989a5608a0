#include "lib/base/decimal.h"

#include <stdio.h>
#include <stdlib.h>

struct kv_decimal kv_decimal(double value)
{
    enum { PLACES = 20 };
    struct kv_decimal d;

    for (int places = 0; places <= PLACES; places++) {
        snprintf(d.text, sizeof(d.text), "%.*f", places, value);
        if (strtod(d.text, NULL) == value)
            break;
    }
    return d;
}
