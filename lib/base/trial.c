#include "lib/base/trial.h"
#include "lib/base/file.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

/* Limits the data segment (RLIMIT_DATA), which works even if a sanitizer has
 * mapped terabytes. */
static void limit_memory(size_t more)
{
    unsigned long data = 0;
    FILE *f = fopen("/proc/self/statm", "r");

    if (!f)
        return;
    if (fscanf(f, "%*u %*u %*u %*u %*u %lu", &data) == 1) {
        const rlim_t max = data * (rlim_t)sysconf(_SC_PAGESIZE) + more;
        struct rlimit r;

        getrlimit(RLIMIT_DATA, &r);
        r.rlim_cur = max < r.rlim_cur ? max : r.rlim_cur;
        setrlimit(RLIMIT_DATA, &r);
    }
    fclose(f);
}

static struct itimerval once(size_t ms)
{
    return (struct itimerval){
        .it_value = {.tv_sec = (time_t)(ms / 1000),
                     .tv_usec = (suseconds_t)(ms % 1000 * 1000)}};
}

/* SIGPROF ends the process after ms of CPU time; SIGALRM ends a process that
 * waits for ever. */
static void limit_time(size_t ms)
{
    const struct itimerval computed = once(ms), passed = once(10 * ms + 10000);

    setitimer(ITIMER_PROF, &computed, NULL);
    setitimer(ITIMER_REAL, &passed, NULL);
}

/* Restores every signal's default action and unblocks all signals. */
static void forget_signals(void)
{
    sigset_t all;

    for (int number = 1; number <= SIGRTMAX; number++) {
        struct sigaction now;

        if (!sigaction(number, NULL, &now) && now.sa_handler != SIG_IGN)
            signal(number, SIG_DFL);
    }
    sigfillset(&all);
    pthread_sigmask(SIG_UNBLOCK, &all, NULL);
}

int kv_trial(void (*run)(const void *), const void *arg, size_t ms,
             size_t bytes, struct kv_err *e)
{
    const pid_t child = fork();
    int status = 0;

    if (child < 0)
        return kv_fail(e, "cannot start a process: %s", strerror(errno));
    if (!child) {
        setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
        limit_memory(bytes);
        forget_signals();
        limit_time(ms);
        run(arg);
        _exit(0);
    }
    while (waitpid(child, &status, 0) < 0 && errno == EINTR)
        ;
    if (kv_interrupted(e))
        return -1;
    if (WIFSIGNALED(status) &&
        (WTERMSIG(status) == SIGPROF || WTERMSIG(status) == SIGALRM))
        return kv_fail(e, "it was not done in %zu ms", ms);
    if (WIFSIGNALED(status))
        return kv_fail(e, "it crashed (%s)", strsignal(WTERMSIG(status)));
    if (WEXITSTATUS(status))
        return kv_fail(e, "it ended with %d", WEXITSTATUS(status));
    return 0;
}
