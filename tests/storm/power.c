/* Keeps what a power cut would leave of the files below $POWER_ROOT, for processes that are started with LD_PRELOAD=power.so: each
 * fsync copies the file's content, or a folder's entries, into $POWER_KEPT, under a name made of the inode and the time at which it
 * was made (inodes come again); that of the root is "root". What was not synced is not there: this is the worst that POSIX allows. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

typedef int (*sync_call)(int);

static const char *root, *kept;
static atomic_int drafts;

__attribute__((constructor)) static void begin(void) {
    root = getenv("POWER_ROOT");
    kept = getenv("POWER_KEPT");
}

/* The inode and the time at which it was made; 0: there is no such file. */
static int key_of(int folder, const char *name, char *key, size_t size, unsigned *mode) {
    struct statx found;
    if (statx(folder, name, AT_SYMLINK_NOFOLLOW | AT_EMPTY_PATH, STATX_INO | STATX_BTIME | STATX_MODE, &found)) return 0;
    *mode = found.stx_mode;
    snprintf(key, size, "%llx-%llx-%x", (unsigned long long)found.stx_ino, (unsigned long long)found.stx_btime.tv_sec,
             found.stx_btime.tv_nsec);
    return 1;
}

static int copy_from(int from, int into) {
    off_t at = 0;
    ssize_t copied;
    while ((copied = sendfile(into, from, &at, 1 << 30)) > 0) {}
    return copied == 0;
}

/* A file that can be read is not opened again: closing it would release the locks that its process has on it, those of SQLite. */
static int copy_file(int file, const char *self, int into) {
    if ((fcntl(file, F_GETFL) & O_ACCMODE) != O_WRONLY) return copy_from(file, into);
    int from = open(self, O_RDONLY | O_CLOEXEC);
    int whole = from >= 0 && copy_from(from, into);
    if (from >= 0) close(from);
    return whole;
}

/* The files and folders of a folder, each ended by 0: mode, kind, key, name. */
static int copy_entries(const char *self, int into) {
    int from = open(self, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *folder = from < 0 ? NULL : fdopendir(from);
    if (!folder) return 0;
    char key[64];
    unsigned mode;
    for (struct dirent *one; (one = readdir(folder));) {
        if (!strcmp(one->d_name, ".") || !strcmp(one->d_name, "..") || !key_of(from, one->d_name, key, sizeof key, &mode)) continue;
        if (S_ISDIR(mode) || S_ISREG(mode))
            dprintf(into, "%o %c %s %s%c", mode & 07777, S_ISDIR(mode) ? 'd' : 'f', key, one->d_name, 0);
    }
    closedir(folder);
    return 1;
}

static int synced(int file, sync_call real) {
    char self[64], path[4096], key[64], lock[4400], draft[4400], target[4400];
    unsigned mode = 0;
    snprintf(self, sizeof self, "/proc/self/fd/%d", file);
    ssize_t length = root && kept ? readlink(self, path, sizeof path - 1) : -1;
    if (length >= 0) path[length] = 0;
    size_t rooted = length < 0 ? 0 : strlen(root);
    if (length < 0 || strncmp(path, root, rooted) || (path[rooted] && path[rooted] != '/') || !key_of(file, "", key, sizeof key, &mode))
        return real(file);
    if (!path[rooted]) strcpy(key, "root");
    snprintf(lock, sizeof lock, "%s/lock-%s", kept, key);
    snprintf(draft, sizeof draft, "%s/draft-%d-%d", kept, getpid(), atomic_fetch_add(&drafts, 1));
    snprintf(target, sizeof target, "%s/%s", kept, key);
    int locked = open(lock, O_CREAT | O_RDWR | O_CLOEXEC, 0600), into = open(draft, O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600);
    if (locked < 0 || into < 0) abort();
    flock(locked, LOCK_EX);
    int whole = S_ISDIR(mode) ? copy_entries(self, into) : copy_file(file, self, into);
    int done = real(file);
    if (whole && done == 0) rename(draft, target);
    else unlink(draft);
    close(into);
    close(locked);
    return done;
}

int fsync(int file) {
    static sync_call real;
    if (!real) real = (sync_call)dlsym(RTLD_NEXT, "fsync");
    return synced(file, real);
}

int fdatasync(int file) {
    static sync_call real;
    if (!real) real = (sync_call)dlsym(RTLD_NEXT, "fdatasync");
    return synced(file, real);
}
