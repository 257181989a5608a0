#include "lib/base/utf8.h"
#include "lib/json_file.h"
#include "tools/serve/http.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *type_of(int status)
{
    return status == 401   ? "authentication_error"
           : status == 429 ? "rate_limit_error"
           : status >= 500 ? "server_error"
                           : "invalid_request_error";
}

void kv_http_refuse(struct kv_http_reply *to, int status, const char *param,
                    const char *code, const char *fmt, ...)
{
    struct kv_err e;
    va_list ap;
    json_t *json;
    char *text, *message;
    size_t n;

    va_start(ap, fmt);
    vsnprintf(e.msg, sizeof(e.msg), fmt, ap);
    va_end(ap);
    /* a sentence that was cut may end within a character */
    message = kv_utf8_repair(e.msg, strlen(e.msg), &n);
    json = json_pack("{s:{s:s%, s:s, s:s?, s:s?}}", "error", "message", message,
                     n, "type", type_of(status), "param", param, "code", code);
    free(message);
    text = json_dumps(json, JSON_COMPACT);
    to->status = status;
    to->body.n = 0;
    kv_text_add(&to->body, text, strlen(text));
    free(text);
    json_decref(json);
}
