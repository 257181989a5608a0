/* Files: inputs that no output may replace, and outputs that appear only when
 * complete. */
#ifndef KV_BASE_FILE_H
#define KV_BASE_FILE_H

#include "lib/base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* A regular file that is read: its state when opened is kept until it is
 * closed, and a change meanwhile is an error.  kv_map_open() and kv_file_read()
 * make such inputs; a library that opens a file by its name does not. */
struct kv_input;

/* Fails when it cannot be read or is not a regular file. */
int kv_input_open(struct kv_input **in, const char *path, struct kv_err *e);
/* The file's size when it was opened.  kv_input_read(): reads n bytes from `at`
 * on; any number of threads may read at a time.  Returns 0 or an errno (ENODATA
 * past the end). */
uint64_t kv_input_size(const struct kv_input *in);
int kv_input_read(const struct kv_input *in, uint64_t at, void *data, size_t n);
/* False when the file was changed since it was opened.  NULL is fine. */
bool kv_input_close(struct kv_input *in);

/* From this call on, every file that is read is remembered until the program
 * ends, and no output may replace it.  For programs that do one run and end. */
void kv_inputs_guard(void);

/* Fails, naming the file, when an input was changed while it was open.
 * kv_out_commit() and kv_close_stdout() call it; call it wherever else a result
 * leaves the program. */
int kv_inputs_unchanged(struct kv_err *e);

/* A file mapped read-only.  An empty file gives bytes 0 and data NULL.  If the
 * file is shortened meanwhile, reading ends the program with a sentence
 * (kv_catch_signals). */
struct kv_map {
    const uint8_t *data;
    size_t bytes;
    struct kv_input *input;
};

int kv_map_open(struct kv_map *m, const char *path, struct kv_err *e);
void kv_map_close(struct kv_map *m);

/* The name of an input in error messages: "standard input" for "-". */
const char *kv_input_name(const char *path);

/* Reads all of a regular file of at most max bytes.  *text is the caller's to
 * free and has a zero byte after its end.  Fails on a pipe, a device and a
 * folder without reading them. */
int kv_file_read_most(const char *path, size_t max, char **text, size_t *bytes,
                      struct kv_err *e);
/* kv_file_read_most() with a maximum of KV_FILE_MAX bytes. */
enum { KV_FILE_MAX = 128 << 20 };
int kv_file_read(const char *path, char **text, size_t *bytes,
                 struct kv_err *e);

/* As kv_file_read_most(), but also reads a pipe, a FIFO, a socket and a
 * terminal, and "-" is standard input.  Reading stops at a zero byte, since no
 * text has one. */
int kv_stream_read(const char *path, size_t max, char **text, size_t *bytes,
                   struct kv_err *e);

/* Reads the first bytes of a regular file, at most n.  Returns their number; 0
 * if the file is not regular. */
size_t kv_file_head(const char *path, void *head, size_t n);

/* Fails when data, the beginning of a file of any kind, is a pointer of Git
 * LFS: the large file was not fetched. */
int kv_lfs_check(const char *path, const void *data, size_t bytes,
                 struct kv_err *e);

/* Whether the folder has an entry of this name, also a broken link. */
bool kv_file_exists(const char *path);
bool kv_is_dir(const char *path);
/* True when both exist and are one file, also by different names. */
bool kv_same_file(const char *a, const char *b);

/* dir/name, the caller's to free. */
char *kv_path_join(const char *dir, const char *name);
/* The part of path before the last '/', or "."; the caller frees it. *name:
 * points into path, after the last '/'. */
char *kv_path_folder(const char *path, const char **name);

/* An output is written to a temporary file in the same folder, whose name is
 * the final name and .kvtools-XXXXXX.  Symbolic links are followed to their
 * last target, which need not exist.  A replaced file keeps its mode, and its
 * owner where permitted.
 *
 * kv_out_open() fails when the folder is not writable, when the file exists and
 * is not writable, and (kv_inputs_guard) when the file is an input.  Write to
 * out.temp (or to out.file when as_stream).  kv_out_commit() flushes, syncs and
 * renames, unless an input has changed; it prints a note when it replaces a
 * file.  kv_out_discard() removes the temporary file.  Each of the two may be
 * called after the other.  An open output is also removed when the program is
 * interrupted or exits early.  If the program was killed, the next run that
 * opens an output of this name removes the temporary file.
 *
 * A pipe, a device and an open descriptor (/dev/stdout, /dev/fd/3) are written
 * in place, and only as a stream. */
struct kv_out {
    char *path;          /* as given */
    char *target, *temp; /* NULL: path is written in place */
    int held; /* descriptor of temp; while it is open, no other run removes
               * temp */
    FILE *file;
    bool terminal; /* the output is a terminal */
    bool adds;     /* the file keeps its content, and no message says that it is
                    * replaced */
};

int kv_out_open(struct kv_out *o, const char *path, bool as_stream,
                struct kv_err *e);
int kv_out_commit(struct kv_out *o, struct kv_err *e);
void kv_out_discard(struct kv_out *o);

/* Call these around code that makes a temporary file again: a signal that ends
 * the program then waits, so that the file does not come back after its
 * removal.  Not nested. */
void kv_temporaries_hold(void);
void kv_temporaries_release(void);

/* Names that are removed if the program ends before kv_temporary_forget(); only
 * a few at a time.  kv_temporary_add() takes a file, existing or not.
 * kv_temporary_folder() makes a folder, which is removed if it is empty by
 * then; path ends in XXXXXX, which is replaced. */
int kv_temporary_add(const char *path, struct kv_err *e);
int kv_temporary_folder(char *path, struct kv_err *e);
void kv_temporary_forget(const char *path);

/* An unlinked file in $TMPDIR (/tmp), to read and write; closed, it is gone.
 * NULL when the folder cannot be written. */
FILE *kv_scratch_open(struct kv_err *e);
/* Write or read n bytes at an offset.  Fail naming the folder. */
int kv_scratch_write(FILE *f, size_t at, const void *data, size_t n,
                     struct kv_err *e);
int kv_scratch_read(FILE *f, size_t at, void *data, size_t n, struct kv_err *e);

/* Ctrl-C, SIGTERM and SIGHUP (not under nohup) set a flag.  Long loops check it
 * between steps and fail with the sentence, so that everything is released in
 * the usual way.  A second signal ends the program at once, whatever the
 * program is doing; so does the first signal while the program waits for
 * another program (lib/base/waits.h), and so does every other fatal signal:
 * temporary files are removed, then the signal has its usual effect.  A mapped
 * input that was shortened is named, with exit code 2.
 *
 * stdout becomes a stream whose writes count as waits.  A thread of its own
 * takes signals from outside.  Call this function before computing threads are
 * started, so that they block these signals, as the caller then does. */
void kv_catch_signals(void);
int kv_interrupted(struct kv_err *e); /* Returns 0, or -1 with "interrupted" */

#endif
