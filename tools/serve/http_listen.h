/* Opens a listening socket. */
#ifndef KV_SERVE_HTTP_LISTEN_H
#define KV_SERVE_HTTP_LISTEN_H

#include "lib/base/err.h"

#include <stdbool.h>

/* address: 127.0.0.1:8080, [::1]:8080 or localhost:8080; port 0: any, and *port
 * says which.  open: other hosts may connect; without it, an address other than
 * loopback fails.  Returns the descriptor, or -1. */
int kv_http_listen(const char *address, bool open, unsigned *port,
                   struct kv_err *e);

#endif
