#include "lib/base/child.h"
#include "lib/base/alloc.h"
#include "lib/base/progress.h"
#include "lib/base/waits.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
    MAX = 4096,       /* children at a time */
    AHEAD = 64 << 20, /* bytes read from a child while writing to it */
    LOOK_MS = 100,    /* between two checks whether the child lives */
    LAST_MS = 200,    /* for the last output of an ended child */
    END_MS = 2000     /* for children to end by themselves */
};

struct kv_child {
    pid_t pid; /* 0: the child has ended, and was waited for */
    int to, from, words;
    char *got; /* bytes read ahead */
    size_t n_got, capacity;
    char line[256], last[256]; /* stderr's unfinished line, and its last whole
                                * line */
    size_t n_line;
    char how[64]; /* how it ended */
};

/* ---- all children ------------------------------------------------------ */

/* ending: the program ends, so no new child starts.  starting: children that
 * are being started, which the end waits for. */
static atomic_bool ending;
static atomic_int starting;
static _Atomic pid_t group[MAX];
static struct kv_child *_Atomic known[MAX];

static void pause_ms(long ms)
{
    nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000}, NULL);
}

static void remember(struct kv_child *c)
{
    for (size_t i = 0; i < MAX; i++) {
        pid_t none = 0;

        if (atomic_compare_exchange_strong(&group[i], &none, c->pid)) {
            known[i] = c;
            return;
        }
    }
}

static void forget(const struct kv_child *c)
{
    for (size_t i = 0; i < MAX; i++)
        if (group[i] == c->pid) {
            known[i] = NULL;
            group[i] = 0;
        }
}

static void hold(void)
{
    ending = true;
    for (int i = 0; starting && i < 1000; i++)
        pause_ms(1);
}

void kv_children_kill(void)
{
    hold();
    for (size_t i = 0; i < MAX; i++) {
        const pid_t pid = group[i];

        if (pid > 0)
            kill(-pid, SIGKILL);
    }
}

void kv_children_end(void)
{
    bool left = true;

    hold();
    for (size_t i = 0; i < MAX; i++) {
        struct kv_child *c = known[i];

        if (c && c->to >= 0)
            close(c->to);
        if (c)
            c->to = -1;
    }
    for (int ms = 0; left && ms < END_MS; ms += 5) {
        left = false;
        for (size_t i = 0; i < MAX; i++) {
            const pid_t pid = group[i];

            if (pid > 0 && waitpid(pid, NULL, WNOHANG) == pid) {
                kill(-pid, SIGKILL); /* processes left in its group */
                group[i] = 0;
            }
            left |= group[i] > 0;
        }
        if (left)
            pause_ms(5);
    }
    kv_children_kill();
    for (size_t i = 0; i < MAX; i++)
        if (group[i] > 0)
            waitpid(group[i], NULL, 0);
}

static void end_at_exit(void)
{
    atexit(kv_children_end);
}

/* ---- one child --------------------------------------------------------- */

static int spawn(struct kv_child *c, const char *command, const int end[3])
{
    char *const argv[] = {"sh", "-c", (char *)command, NULL};
    posix_spawn_file_actions_t files;
    posix_spawnattr_t how;
    sigset_t none, all;
    int rc;

    sigemptyset(&none);
    sigfillset(&all);
    posix_spawn_file_actions_init(&files);
    posix_spawnattr_init(&how);
    for (int i = 0; i < 3; i++)
        posix_spawn_file_actions_adddup2(&files, end[i], i);
    posix_spawn_file_actions_addclosefrom_np(&files, 3);
    posix_spawnattr_setflags(&how, POSIX_SPAWN_SETPGROUP |
                                       POSIX_SPAWN_SETSIGMASK |
                                       POSIX_SPAWN_SETSIGDEF);
    posix_spawnattr_setsigmask(&how, &none);
    posix_spawnattr_setsigdefault(&how, &all);
    rc = posix_spawn(&c->pid, "/bin/sh", &files, &how, argv, environ);
    posix_spawnattr_destroy(&how);
    posix_spawn_file_actions_destroy(&files);
    return rc;
}

static void close_ends(int (*pipes)[2])
{
    for (int i = 0; i < 3; i++)
        for (int j = 0; j < 2; j++)
            if (pipes[i][j] >= 0)
                close(pipes[i][j]);
}

int kv_child_start(struct kv_child **out, const char *command, struct kv_err *e)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    int pipes[3][2] = {{-1, -1}, {-1, -1}, {-1, -1}};
    struct kv_child *c = kv_alloc(1, sizeof(*c));
    int rc = 0;

    pthread_once(&once, end_at_exit);
    for (int i = 0; i < 3 && !rc; i++)
        rc = pipe2(pipes[i], O_CLOEXEC) ? errno : 0;
    starting++;
    if (ending) {
        starting--;
        for (;;)
            pause(); /* another thread ends the program */
    }
    if (!rc)
        rc = spawn(c, command, (int[]){pipes[0][0], pipes[1][1], pipes[2][1]});
    if (!rc)
        remember(c);
    starting--;
    if (rc) {
        close_ends(pipes);
        free(c);
        return kv_fail(e, "cannot start '%.200s': %s", command, strerror(rc));
    }
    close(pipes[0][0]);
    close(pipes[1][1]);
    close(pipes[2][1]);
    c->to = pipes[0][1];
    c->from = pipes[1][0];
    c->words = pipes[2][0];
    fcntl(c->to, F_SETFL, O_NONBLOCK);
    fcntl(c->from, F_SETFL, O_NONBLOCK);
    fcntl(c->words, F_SETFL, O_NONBLOCK);
    *out = c;
    return 0;
}

/* Kills the group, and waits for its leader. */
static void end(struct kv_child *c)
{
    int status = 0;

    if (!c->pid)
        return;
    kill(-c->pid, SIGKILL);
    waitpid(c->pid, &status, 0);
    forget(c);
    c->pid = 0;
    if (WIFSIGNALED(status))
        snprintf(c->how, sizeof(c->how), "was ended by signal %d (%s)",
                 WTERMSIG(status), strsignal(WTERMSIG(status)));
    else
        snprintf(c->how, sizeof(c->how), "ended with exit code %d",
                 WEXITSTATUS(status));
}

void kv_child_free(struct kv_child *c)
{
    if (!c)
        return;
    end(c);
    if (c->to >= 0)
        close(c->to);
    close(c->from);
    close(c->words);
    free(c->got);
    free(c);
}

/* ---- its stderr --------------------------------------------------------- */

static void end_line(struct kv_child *c)
{
    if (c->n_line)
        memcpy(c->last, c->line, sizeof(c->last));
    memset(c->line, 0, sizeof(c->line));
    c->n_line = 0;
}

static void keep_words(struct kv_child *c, const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (text[i] == '\n' || text[i] == '\r')
            end_line(c);
        else if (c->n_line + 1 < sizeof(c->line))
            c->line[c->n_line++] = text[i];
}

/* Reads what the child wrote to stderr; false at the end of the stream. */
static bool take_words(struct kv_child *c)
{
    char text[4096];
    const ssize_t n = read(c->words, text, sizeof(text));

    if (n <= 0)
        return n < 0 && (errno == EAGAIN || errno == EINTR);
    keep_words(c, text, (size_t)n);
    if (kv_verbosity())
        fwrite(text, 1, (size_t)n, stderr);
    return true;
}

/* Reads the bytes in the pipe, and bytes that come within LAST_MS, but not to
 * the end: a grandchild may hold the pipe open for ever. */
static void take_last_words(struct kv_child *c)
{
    struct pollfd p = {.fd = c->words, .events = POLLIN};

    for (int i = 0; i < 256 && poll(&p, 1, LAST_MS) > 0; i++)
        if (!take_words(c))
            break;
    end_line(c);
}

/* Waits for ever if the program is ending: its end killed the child, so no
 * error message about the child may come first. */
static void leave_to_the_end(void)
{
    while (ending)
        pause();
}

static int add_words(const struct kv_child *c, struct kv_err *e)
{
    struct kv_err is;

    if (!e)
        return -1;
    is = *e;
    return c->last[0] ? kv_fail(e, "%.700s; the last line of its stderr: %s",
                                is.msg, c->last)
                      : kv_fail(e, "%.700s; its stderr is empty", is.msg);
}

int kv_child_fail(struct kv_child *c, struct kv_err *e, const char *fmt, ...)
{
    char text[700];
    va_list ap;

    leave_to_the_end();
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    end(c);
    take_last_words(c);
    kv_fail(e, "%s", text);
    return add_words(c, e);
}

static bool has_ended(const struct kv_child *c)
{
    siginfo_t is = {.si_pid = 0};

    return !c->pid ||
           waitid(P_PID, (id_t)c->pid, &is, WEXITED | WNOHANG | WNOWAIT) ||
           is.si_pid;
}

/* The child closed its pipe.  Gives it a moment to end by itself, so that the
 * error message can say how it ended. */
static int fail_ended(struct kv_child *c, struct kv_err *e)
{
    for (int ms = 0; !has_ended(c) && ms < LAST_MS; ms += 5)
        pause_ms(5);
    if (!has_ended(c))
        return kv_child_fail(c, e, "it closed its stdin or stdout");
    end(c);
    return kv_child_fail(c, e, "it %s", c->how);
}

/* ---- its bytes --------------------------------------------------------- */

static bool again(void)
{
    return errno == EAGAIN || errno == EINTR;
}

/* write(2) that reports a missing reader as an error, not by SIGPIPE. */
static ssize_t write_quietly(int fd, const void *data, size_t n)
{
    const struct timespec now = {0};
    sigset_t broken, before;
    ssize_t put;
    int was;

    sigemptyset(&broken);
    sigaddset(&broken, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &broken, &before);
    put = write(fd, data, n);
    was = errno;
    if (put < 0 && was == EPIPE && !sigismember(&before, SIGPIPE))
        sigtimedwait(&broken, NULL, &now);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    errno = was;
    return put;
}

/* Reads bytes from the child's stdout; false at the end of the stream. */
static bool take_bytes(struct kv_child *c)
{
    enum { PIECE = 1 << 16 };
    ssize_t n;

    if (c->n_got + PIECE > c->capacity) {
        c->capacity = (c->n_got + PIECE) * 2;
        c->got = kv_realloc(c->got, c->capacity, 1);
    }
    n = read(c->from, c->got + c->n_got, PIECE);
    if (n > 0)
        c->n_got += (size_t)n;
    return n > 0 || (n < 0 && again());
}

/* The bytes to write, and the number of bytes that must be readable. */
struct wish {
    const char *data;
    size_t n, want;
    double silence, quiet; /* the limit; the silence so far */
};

/* Called when nothing came.  Returns 1 if the child has ended and a grandchild
 * still holds its stdout; fails if the silence was too long. */
static int be_patient(struct kv_child *c, const struct wish *w,
                      struct kv_err *e)
{
    if (has_ended(c))
        return 1;
    return w->silence > 0 && w->quiet >= w->silence
               ? kv_child_fail(c, e, "it was silent for %g s", w->silence)
               : 0;
}

/* Waits once for the child's stdin, stdout or stderr; returns 1 if the child
 * has ended. */
static int step(struct kv_child *c, struct wish *w, bool *words,
                struct kv_err *e)
{
    const size_t room = w->n ? AHEAD : w->want;
    struct pollfd p[3] = {
        {.fd = w->n ? c->to : -1, .events = POLLOUT},
        {.fd = c->n_got < room ? c->from : -1, .events = POLLIN},
        {.fd = *words ? c->words : -1, .events = POLLIN}};
    int ready;

    kv_wait_begin();
    ready = poll(p, 3, LOOK_MS);
    kv_wait_end();
    if (ready >= 0) /* not a signal */
        w->quiet = ready ? 0 : w->quiet + LOOK_MS / 1000.0;
    if (ready <= 0)
        return ready ? 0 : be_patient(c, w, e);
    if (p[2].revents)
        *words = take_words(c);
    if (p[1].revents && !take_bytes(c))
        return 1;
    if (p[0].revents) {
        const ssize_t put = write_quietly(c->to, w->data, w->n);

        if (put < 0 && !again())
            return 1;
        w->data += put > 0 ? put : 0;
        w->n -= put > 0 ? (size_t)put : 0;
    }
    return 0;
}

static int fulfil(struct kv_child *c, struct wish w, struct kv_err *e)
{
    bool words = true;

    if (!c->pid)
        return fail_ended(c, e);
    while (w.n || c->n_got < w.want) {
        const int rc = step(c, &w, &words, e);

        if (rc)
            return rc < 0 ? -1 : fail_ended(c, e);
    }
    return 0;
}

int kv_child_send(struct kv_child *c, const void *data, size_t n,
                  double silence, struct kv_err *e)
{
    return fulfil(c, (struct wish){data, n, 0, silence, 0}, e);
}

int kv_child_read(struct kv_child *c, void *data, size_t n, double silence,
                  struct kv_err *e)
{
    if (fulfil(c, (struct wish){NULL, 0, n, silence, 0}, e))
        return -1;
    memcpy(data, c->got, n);
    memmove(c->got, c->got + n, c->n_got - n);
    c->n_got -= n;
    return 0;
}
