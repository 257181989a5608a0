/* Files: whole reads, maps, and outputs that appear only when complete. */
#ifndef KV_BASE_FILE_H
#define KV_BASE_FILE_H

#include "lib/base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* A file mapped read-only.  An empty file gives bytes 0 and data NULL. */
struct kv_map {
    const uint8_t *data;
    size_t bytes;
};

int kv_map_open(struct kv_map *m, const char *path, struct kv_err *e);
void kv_map_close(struct kv_map *m);

/* The whole file; "-" is standard input.  *text is the caller's to free and
 * has a zero byte after its end. */
int kv_file_read(const char *path, char **text, size_t *bytes,
                 struct kv_err *e);

bool kv_file_exists(const char *path);
bool kv_is_dir(const char *path);
/* True when both exist and are one file, whatever they are called. */
bool kv_same_file(const char *a, const char *b);

/* dir/name, the caller's to free. */
char *kv_path_join(const char *dir, const char *name);

/* An output under a temporary name in the folder of its final one.
 * kv_out_open: fails when the folder cannot be written.  Write to out.temp
 * (or to out.file when as_stream).  kv_out_commit flushes, syncs and renames;
 * kv_out_discard removes; both are safe after the other.  Every open output
 * is also removed when the program is interrupted or exits early.  A pipe or a
 * device is written in place, and only as a stream. */
struct kv_out {
    char *path, *temp; /* temp: NULL in place */
    FILE *file;
};

int kv_out_open(struct kv_out *o, const char *path, bool as_stream,
                struct kv_err *e);
int kv_out_commit(struct kv_out *o, struct kv_err *e);
void kv_out_discard(struct kv_out *o);

/* An unlinked file in $TMPDIR (/tmp), to read and write; closed, it is gone.
 * NULL when the folder cannot be written. */
FILE *kv_scratch_open(struct kv_err *e);
/* n bytes at an offset; fails naming the folder. */
int kv_scratch_write(FILE *f, size_t at, const void *data, size_t n,
                     struct kv_err *e);
int kv_scratch_read(FILE *f, size_t at, void *data, size_t n, struct kv_err *e);

/* Ctrl-C, SIGTERM and SIGHUP (but under nohup) set a flag; long loops ask for
 * it between steps and fail with the sentence, so that everything is released
 * on the usual way out.  A second signal ends the program at once.  Both are
 * taken on a thread of their own: call it before the threads that compute are
 * started, which then block them as the caller does. */
void kv_catch_signals(void);
int kv_interrupted(struct kv_err *e); /* 0, or -1 with "interrupted" */

#endif
