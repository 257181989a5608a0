#include "lib/base/child.h"
#include "lib/base/file.h"
#include "lib/base/file_impl.h"
#include "lib/base/opt.h"
#include "lib/base/waits.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { STACK_BYTES = 1 << 16, WAIT_TICKS = 10, TICK_NS = 10000000 };

static struct sigaction before[NSIG]; /* the handlers before ours */

/* Ends the process as if there were no handler, so that the exit status names
 * the signal, and a sanitizer reports it. */
static void end(int number)
{
    struct sigaction *was = &before[number];
    sigset_t one;

    kv_temporaries_remove();
    kv_children_kill();
    if (was->sa_handler == SIG_IGN)
        was->sa_handler = SIG_DFL;
    sigaction(number, was, NULL);
    sigemptyset(&one);
    sigaddset(&one, number);
    pthread_sigmask(SIG_UNBLOCK, &one, NULL);
    raise(number);
    _exit(128 + number);
}

static void on_stop(int number)
{
    if (kv_stop)
        end(number);
    kv_stop = number;
}

static void put(const char *text)
{
    if (write(STDERR_FILENO, text, strlen(text)) < 0)
        errno = 0; /* nowhere else to report it */
}

/* SIGBUS: mapped memory that no longer exists, such as the end of a file that
 * was truncated. */
static void on_bus(int number, siginfo_t *info, void *context)
{
    bool shortened;
    const char *path = kv_input_at(info->si_addr, &shortened);

    (void)context;
    if (info->si_code <= 0 || !path)
        end(number);
    put(kv_program());
    put(": ");
    put(path);
    put(shortened ? " was shortened while it was read\n"
                  : " can no longer be read\n");
    kv_temporaries_remove();
    kv_children_kill();
    _exit(KV_EXIT_CANNOT);
}

/* Called once the end is asked for.  Ends the program when it has spent
 * WAIT_TICKS more in waits.  Writing the last messages and rows counts as
 * waiting too, but takes less time. */
static void end_a_wait(void)
{
    const struct timespec tick = {.tv_nsec = TICK_NS};

    unsigned waited = 0;

    while (waited < WAIT_TICKS) {
        nanosleep(&tick, NULL);
        if (kv_waiting)
            waited++;
    }
    end(kv_stop);
}

/* The signal thread.  It is started with these signals blocked, and receives
 * them only in sigsuspend(). */
static void *wait_for_signals(void *from_outside)
{
    sigset_t open;

    pthread_sigmask(SIG_BLOCK, NULL, &open);
    for (int number = 1; number <= SIGRTMAX; number++)
        if (sigismember(from_outside, number) == 1)
            sigdelset(&open, number);
    while (!kv_stop)
        sigsuspend(&open);
    pthread_sigmask(SIG_SETMASK, &open, NULL);
    end_a_wait();
    return NULL;
}

/* Signals that an error of the program, or access to a mapped file, raises on
 * the thread at fault. */
static bool is_fault(int number)
{
    return number == SIGSEGV || number == SIGBUS || number == SIGFPE ||
           number == SIGILL || number == SIGABRT || number == SIGTRAP ||
           number == SIGSYS;
}

static bool is_stop(int number)
{
    return number == SIGINT || number == SIGTERM || number == SIGHUP;
}

/* Whether the signal ends a program and can have a handler. */
static bool ends(int number)
{
    switch (number) {
    case SIGKILL:
    case SIGSTOP:
    case SIGTSTP:
    case SIGTTIN:
    case SIGTTOU:
    case SIGCONT:
    case SIGCHLD:
    case SIGURG:
    case SIGWINCH:
    case SIGXFSZ: /* ignored: a file-size limit is a failed write */
        return false;
    }
    return true;
}

/* Installs our handler; false: not installed.  Other handlers stay, except for
 * faults, for which theirs run after ours.  Ignored signals stay ignored,
 * except requests to stop (without nohup, background jobs of scripts ignore
 * SIGINT). */
static bool take(int number)
{
    struct sigaction a = {.sa_flags = SA_ONSTACK};

    if (!ends(number) || sigaction(number, NULL, &before[number]))
        return false;
    if (before[number].sa_handler == SIG_IGN &&
        (!is_stop(number) || number == SIGHUP))
        return false;
    if (before[number].sa_handler != SIG_DFL &&
        before[number].sa_handler != SIG_IGN && !is_fault(number))
        return false;
    sigemptyset(&a.sa_mask);
    if (number == SIGBUS) {
        a.sa_flags |= SA_SIGINFO;
        a.sa_sigaction = on_bus;
    } else {
        a.sa_handler = is_stop(number) ? on_stop : end;
    }
    return !sigaction(number, &a, NULL);
}

/* A stack for handlers when a thread's own stack is full; a sanitizer has its
 * own. */
static void set_stack(void)
{
    static char stack[STACK_BYTES];
    stack_t now;

    if (!sigaltstack(NULL, &now) && now.ss_flags & SS_DISABLE)
        sigaltstack(&(stack_t){.ss_sp = stack, .ss_size = sizeof(stack)}, NULL);
}

/* Handlers run on a thread of their own: BLAS libraries work with the stack
 * pointer amid other memory, which a handler on their stack would overwrite.
 * Faults, and writing to a pipe without a reader, are handled on the computing
 * thread itself, which then ends. */
void kv_catch_signals(void)
{
    static sigset_t from_outside;
    pthread_t waiting_thread;
    FILE *out;

    set_stack();
    signal(SIGXFSZ, SIG_IGN);
    sigemptyset(&from_outside);
    for (int number = 1; number <= SIGRTMAX; number++)
        if (take(number) && !is_fault(number) && number != SIGPIPE)
            sigaddset(&from_outside, number);

    out = kv_wait_stream(STDOUT_FILENO);
    if (out)
        stdout = out;

    /* threads started later inherit this mask */
    pthread_sigmask(SIG_BLOCK, &from_outside, NULL);
    if (pthread_create(&waiting_thread, NULL, wait_for_signals, &from_outside))
        pthread_sigmask(SIG_UNBLOCK, &from_outside, NULL);
    else
        pthread_detach(waiting_thread);
}
