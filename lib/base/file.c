#include "lib/base/file.h"
#include "lib/base/alloc.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int kv_lfs_check(const char *path, const void *data, size_t bytes,
                 struct kv_err *e)
{
    static const char first[] = "version https://git-lfs.github.com/spec/";
    const size_t n = strlen(first);

    if (bytes >= n && !memcmp(data, first, n))
        return kv_fail(e,
                       "%s is a Git LFS pointer, not the file itself: fetch "
                       "it with `git lfs pull`",
                       path);
    return 0;
}

bool kv_file_exists(const char *path)
{
    struct stat st;

    return !lstat(path, &st) || (errno != ENOENT && errno != ENOTDIR);
}

bool kv_is_dir(const char *path)
{
    struct stat st;

    return !stat(path, &st) && S_ISDIR(st.st_mode);
}

bool kv_same_file(const char *a, const char *b)
{
    struct stat x, y;

    return !stat(a, &x) && !stat(b, &y) && x.st_dev == y.st_dev &&
           x.st_ino == y.st_ino;
}

char *kv_path_join(const char *dir, const char *name)
{
    const size_t n = strlen(dir), capacity = n + strlen(name) + 2;
    char *p = kv_alloc(capacity, 1);

    snprintf(p, capacity, "%s%s%s", dir, n && dir[n - 1] == '/' ? "" : "/",
             name);
    return p;
}

char *kv_path_folder(const char *path, const char **name)
{
    const char *slash = strrchr(path, '/');

    *name = slash ? slash + 1 : path;
    if (!slash)
        return kv_strdup(".");
    return kv_strndup(path, slash == path ? 1 : (size_t)(slash - path));
}

static const char *scratch_folder(void)
{
    const char *set = getenv("TMPDIR");

    return set && *set ? set : "/tmp";
}

/* Creates a scratch file without a name; where the file system cannot, creates
 * a named file and unlinks it. */
static int open_unnamed(void)
{
    char *path = kv_path_join(scratch_folder(), "kvtools-XXXXXX");
    int fd = open(scratch_folder(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);

    if (fd < 0 && (fd = mkstemp(path)) >= 0)
        unlink(path);
    free(path);
    return fd;
}

FILE *kv_scratch_open(struct kv_err *e)
{
    const int fd = open_unnamed();
    FILE *f = fd < 0 ? NULL : fdopen(fd, "w+");

    if (!f)
        kv_fail(e, "cannot make a temporary file in %s: %s", scratch_folder(),
                strerror(errno));
    return f;
}

int kv_scratch_write(FILE *f, size_t at, const void *data, size_t n,
                     struct kv_err *e)
{
    errno = 0;
    if (fseeko(f, (off_t)at, SEEK_SET) || fwrite(data, 1, n, f) != n ||
        fflush(f))
        return kv_fail(e, "cannot write a temporary file in %s: %s",
                       scratch_folder(), strerror(errno));
    return 0;
}

int kv_scratch_read(FILE *f, size_t at, void *data, size_t n, struct kv_err *e)
{
    errno = 0;
    if (fseeko(f, (off_t)at, SEEK_SET) || fread(data, 1, n, f) != n)
        return kv_fail(e, "cannot read a temporary file in %s: %s",
                       scratch_folder(),
                       errno ? strerror(errno) : "it is cut short");
    return 0;
}
