#include "tools/serve/http_listen.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* Splits an address into host and port; drops the brackets of IPv6. */
static int split(const char *address, char host[64], const char **port,
                 struct kv_err *e)
{
    const char *colon = strrchr(address, ':');
    const size_t n = colon ? (size_t)(colon - address) : 0;
    const bool bracket = n > 2 && *address == '[' && address[n - 1] == ']';

    if (!n || n >= 64 || (!bracket && memchr(address, ':', n)) ||
        strspn(colon + 1, "0123456789") != strlen(colon + 1) || !colon[1])
        return kv_fail(e,
                       "--serve %s: expected ADDRESS:PORT, such as "
                       "127.0.0.1:8080 or [::1]:8080",
                       address);
    if (strtoul(colon + 1, NULL, 10) > UINT16_MAX)
        return kv_fail(e, "--serve %s: expected a port up to %d", address,
                       UINT16_MAX);
    snprintf(host, 64, "%.*s", (int)(bracket ? n - 2 : n),
             bracket ? address + 1 : address);
    if (!strcmp(host, "localhost"))
        strcpy(host, "127.0.0.1");
    *port = colon + 1;
    return 0;
}

static bool is_loopback(const struct sockaddr *a)
{
    if (a->sa_family == AF_INET)
        return ntohl(((const struct sockaddr_in *)a)->sin_addr.s_addr) >> 24 ==
               127;
    return IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)a)->sin6_addr);
}

static unsigned port_of(int fd)
{
    struct sockaddr_storage a;
    socklen_t n = sizeof(a);

    getsockname(fd, (struct sockaddr *)&a, &n);
    return ntohs(a.ss_family == AF_INET
                     ? ((struct sockaddr_in *)&a)->sin_port
                     : ((struct sockaddr_in6 *)&a)->sin6_port);
}

static int listen_at(const struct addrinfo *a, const char *address,
                     struct kv_err *e)
{
    const int fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;

    if (fd >= 0 && !setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) &&
        !bind(fd, a->ai_addr, a->ai_addrlen) && !listen(fd, SOMAXCONN))
        return fd;
    kv_fail(e, "--serve %s: %s", address, strerror(errno));
    if (fd >= 0)
        close(fd);
    return -1;
}

int kv_http_listen(const char *address, bool open, unsigned *port,
                   struct kv_err *e)
{
    const struct addrinfo want = {.ai_socktype = SOCK_STREAM,
                                  .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV};
    struct addrinfo *found;
    const char *service = NULL;
    char host[64];
    int fd = -1, rc;

    if (split(address, host, &service, e))
        return -1;
    rc = getaddrinfo(host, service, &want, &found);
    if (rc)
        return kv_fail(e, "--serve %s: %s", address, gai_strerror(rc));
    if (!open && !is_loopback(found->ai_addr))
        kv_fail(e,
                "--serve %s: other hosts could connect: expected a loopback "
                "address, or --serve-token FILE",
                address);
    else
        fd = listen_at(found, address, e);
    freeaddrinfo(found);
    if (fd >= 0)
        *port = port_of(fd);
    return fd;
}
