#include "lib/base/leftovers.h"
#include "lib/base/file.h"
#include "lib/base/progress.h"
#include "lib/base/waits.h"

#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Locks the open file description, so the lock lasts as long as the
 * description.  flock() would conflict with HDF5, which calls flock()
 * itself. */
static int lock(int fd, int command)
{
    struct flock all = {.l_type = F_WRLCK, .l_whence = SEEK_SET};

    return fcntl(fd, command, &all);
}

int kv_leftover_hold(int fd)
{
    struct stat st;

    kv_wait_begin();
    lock(fd, F_OFD_SETLKW); /* waits a moment while another run looks at the
                             * file */
    kv_wait_end();
    return !fstat(fd, &st) && !st.st_nlink;
}

/* Whether the output's temporary files have names like this one. */
static bool is_temporary(const char *name, const char *output)
{
    const size_t n = strlen(output), digits = strlen("XXXXXX");
    const size_t mark = strlen(KV_TEMPORARY) - digits;

    if (strncmp(name, output, n) || strncmp(name + n, KV_TEMPORARY, mark))
        return false;
    name += n + mark;
    for (size_t i = 0; i < digits; i++)
        if (!isalnum((unsigned char)name[i]))
            return false;
    return !name[digits];
}

static void remove_one(const char *path)
{
    const int fd = open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW);
    struct stat st;

    if (fd < 0)
        return;
    if (!fstat(fd, &st) && S_ISREG(st.st_mode) && st.st_uid == geteuid() &&
        !lock(fd, F_OFD_SETLK) && !unlink(path))
        kv_note("%s: removed, a killed run left it", path);
    close(fd);
}

void kv_leftovers_remove(const char *target)
{
    const char *output;
    char *folder = kv_path_folder(target, &output);
    DIR *d = opendir(folder);

    for (const struct dirent *f; d && (f = readdir(d));) {
        char *path = is_temporary(f->d_name, output)
                         ? kv_path_join(folder, f->d_name)
                         : NULL;

        if (path)
            remove_one(path);
        free(path);
    }
    if (d)
        closedir(d);
    free(folder);
}
