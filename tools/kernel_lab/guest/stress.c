/* stress SECONDS SEED ROOT OTHER ALIGNMENT: load on a file system mounted twice, every byte and every name verified.
 *
 * ROOT and OTHER are the same folder through two mounts, that is, through two clients. Four processes work at the same time: two on a file each
 * (random writes, reads, truncations, maps, syncs, reopens, compared with a copy in memory) and two on a folder each (files
 * created, rewritten, renamed, removed, compared with a table). Each works through one mount and lets others check the result
 * through the other, after a sync, while its own caches and handles still exist. Exit status 0: everything was correct.
 *
 * A client that caches reads or names learns of a change by a lease break that is not acknowledged (MS-SMB2 3.3.4.7: no
 * acknowledgment is required), so the other client may be behind for a moment. A mismatch that lasts a second is an error;
 * a shorter one is counted as late.
 *
 * Offsets and lengths in files are multiples of ALIGNMENT bytes.
 *
 * stress locks ONE OTHER: byte-range locks on the same file through two mounts keep each other out.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { FILE_MAX = 1 << 20, NAMES = 40, CONTENT_MAX = 9000 };

static const char *self;
static unsigned long done, crossed, late;
static jmp_buf again;
static int patient, other_fd = -1;
static DIR *other_dir;
static unsigned random_state, alignment = 1;

static unsigned below(unsigned limit) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 17;
    random_state ^= random_state << 5;
    return random_state % limit;
}

enum { REMEMBERED = 24 };
static struct {
    const char *what;
    size_t offset, length, size;
} history[REMEMBERED];

static void remember(const char *what, size_t offset, size_t length, size_t size) {
    history[done % REMEMBERED].what = what;
    history[done % REMEMBERED].offset = offset;
    history[done % REMEMBERED].length = length;
    history[done % REMEMBERED].size = size;
}

/* The last operations of a file worker, oldest first: operation, offset, length, size before. */
static void tell_history(void) {
    for (unsigned long i = done < REMEMBERED ? 0 : done - REMEMBERED + 1; i <= done && history[0].what; i++) {
        unsigned long slot = i % REMEMBERED;
        fprintf(stderr, "  %s %lu: %s %zu+%zu of %zu\n", self, i, history[slot].what, history[slot].offset,
                history[slot].length, history[slot].size);
    }
}

static void die(const char *format, ...) {
    int error = errno;
    if (patient)
        longjmp(again, 1);
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "stress %s, operation %lu: ", self, done);
    vfprintf(stderr, format, arguments);
    fprintf(stderr, " (errno %d: %s)\n", error, strerror(error));
    va_end(arguments);
    tell_history();
    exit(1);
}

static void fill(unsigned char *data, size_t length) {
    for (size_t i = 0; i < length; i++)
        data[i] = (unsigned char)below(256);
}

static void read_all(int fd, unsigned char *data, size_t length, off_t offset, const char *what) {
    for (size_t got = 0; got < length;) {
        ssize_t n = pread(fd, data + got, length - got, offset + (off_t)got);
        if (n <= 0)
            die("%s: read of %zu at %lld returned %zd after %zu", what, length, (long long)offset, n, got);
        got += (size_t)n;
    }
}

static void write_all(int fd, const unsigned char *data, size_t length, off_t offset) {
    for (size_t put = 0; put < length;) {
        ssize_t n = pwrite(fd, data + put, length - put, offset + (off_t)put);
        if (n <= 0)
            die("write of %zu at %lld returned %zd", length, (long long)offset, n);
        put += (size_t)n;
    }
}

static void compare(const unsigned char *got, const unsigned char *want, size_t length, off_t offset, const char *what) {
    for (size_t i = 0; i < length; i++)
        if (got[i] != want[i])
            die("%s: byte %lld is %02x, should be %02x", what, (long long)offset + (long long)i, got[i], want[i]);
}

static int reopen(int fd, const char *path, int flags) {
    if (fd >= 0 && close(fd))
        die("close %s", path);
    fd = open(path, flags, 0644);
    if (fd < 0)
        die("open %s", path);
    return fd;
}

/* Retry from here after errors until `patience_ends`, for a second. */
#define PATIENTLY(check)                                                                                               \
    do {                                                                                                               \
        volatile int tries = 0;                                                                                        \
        patient = 1;                                                                                                   \
        if (setjmp(again)) {                                                                                           \
            if (other_fd >= 0)                                                                                         \
                close(other_fd);                                                                                       \
            if (other_dir)                                                                                             \
                closedir(other_dir);                                                                                   \
            other_fd = -1;                                                                                             \
            other_dir = NULL;                                                                                          \
            late += tries++ == 0;                                                                                      \
            nanosleep(&(struct timespec){0, 20000000}, NULL);                                                          \
            patient = tries < 50;                                                                                      \
        }                                                                                                              \
        check;                                                                                                         \
        patient = 0;                                                                                                   \
        crossed++;                                                                                                     \
    } while (0)

/* The whole file as the other client sees it. */
static void check_file(const char *path, const unsigned char *want, size_t size, unsigned char *scratch, const char *what) {
    int fd = other_fd = reopen(-1, path, O_RDONLY);
    struct stat st;
    if (fstat(fd, &st))
        die("%s: fstat", what);
    if ((size_t)st.st_size != size)
        die("%s: size %lld, should be %zu", what, (long long)st.st_size, size);
    read_all(fd, scratch, size, 0, what);
    compare(scratch, want, size, 0, what);
    if (pread(fd, scratch, 1, (off_t)size) != 0)
        die("%s: data behind the end", what);
    other_fd = -1;
    close(fd);
}

static void map_range(int fd, unsigned char *copy, size_t size, size_t offset, size_t length) {
    size_t start = offset & ~4095ul;
    unsigned char *map = mmap(NULL, offset + length - start, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)start);
    if (map == MAP_FAILED)
        die("mmap of %zu at %zu of %zu", length, offset, size);
    compare(map + (offset - start), copy + offset, length, (off_t)offset, "map");
    fill(copy + offset, length);
    memcpy(map + (offset - start), copy + offset, length);
    if (msync(map, offset + length - start, MS_SYNC) || munmap(map, offset + length - start))
        die("msync or munmap");
}

static void file_worker(const char *root, const char *other, time_t until) {
    char path[256], path2[256];
    unsigned char *copy = calloc(1, FILE_MAX), *scratch = malloc(FILE_MAX + 1);
    size_t size = 0;
    snprintf(path, sizeof path, "%s/file-%s", root, self);
    snprintf(path2, sizeof path2, "%s/file-%s", other, self);
    int fd = reopen(-1, path, O_RDWR | O_CREAT | O_TRUNC);
    for (; time(NULL) < until; done++) {
        unsigned choice = below(100);
        size_t offset = below(FILE_MAX), length = 1 + below(below(4) ? 20000 : 200000);
        offset -= offset % alignment;
        length += alignment - 1 - (length - 1) % alignment;
        if (length > FILE_MAX - offset)
            length = FILE_MAX - offset;
        remember(choice < 35 ? "write" : choice < 70 ? "read" : choice < 76 ? "truncate" : choice < 84 ? "map"
                 : choice < 88 ? "fsync" : choice < 93 ? "reopen" : "other", offset, length, size);
        if (choice < 35) {
            fill(copy + offset, length);
            write_all(fd, copy + offset, length, (off_t)offset);
            /* Linux 6.12 reads nothing in a hole that the server does not know of yet. */
            if (offset > size && fsync(fd))
                die("fsync");
            if (offset + length > size)
                size = offset + length;
        } else if (choice < 70) {
            if (offset + length <= size) {
                read_all(fd, scratch, length, (off_t)offset, "read");
                compare(scratch, copy + offset, length, (off_t)offset, "read");
            }
        } else if (choice < 76) {
            size_t now = below(FILE_MAX);
            now -= now % alignment;
            if (ftruncate(fd, (off_t)now))
                die("truncation from %zu to %zu", size, now);
            if (now < size)
                memset(copy + now, 0, size - now);
            size = now;
        } else if (choice < 84) {
            if (offset + length <= size)
                map_range(fd, copy, size, offset, length);
        } else if (choice < 88) {
            if (fsync(fd))
                die("fsync");
        } else if (choice < 93) {
            fd = reopen(fd, path, O_RDWR | (below(3) ? 0 : O_SYNC));
            struct stat st;
            if (fstat(fd, &st) || (size_t)st.st_size != size)
                die("size %lld after reopening, should be %zu", (long long)st.st_size, size);
        } else {
            /* Linux 6.12 keeps writes in its cache even without a write lease (against ksmbd, too). */
            if (fsync(fd))
                die("fsync");
            PATIENTLY(check_file(path2, copy, size, scratch, "the other client's read"));
        }
    }
    if (close(fd))
        die("close");
    PATIENTLY(check_file(path2, copy, size, scratch, "the last read"));
    if (unlink(path))
        die("unlink");
}

static struct {
    int there;
    size_t length;
    unsigned char content[CONTENT_MAX];
} names[NAMES];

static void check_names(const char *folder, const char *what) {
    int found[NAMES] = {0};
    DIR *dir = other_dir = opendir(folder);
    struct dirent *entry;
    if (!dir)
        die("%s: opendir %s", what, folder);
    errno = 0;
    while ((entry = readdir(dir))) {
        int number = -1;
        if (entry->d_name[0] == '.')
            continue;
        if (sscanf(entry->d_name, "name-%d", &number) != 1 || number < 0 || number >= NAMES || !names[number].there)
            die("%s: %s should not be there", what, entry->d_name);
        if (found[number]++)
            die("%s: %s twice", what, entry->d_name);
    }
    if (errno)
        die("%s: readdir", what);
    other_dir = NULL;
    closedir(dir);
    for (int i = 0; i < NAMES; i++)
        if (names[i].there && !found[i])
            die("%s: name-%d is missing", what, i);
}

static void folder_worker(const char *root, const char *other, time_t until) {
    char folder[256], folder2[256], path[300], target[300];
    unsigned char scratch[CONTENT_MAX + 1];
    snprintf(folder, sizeof folder, "%s/folder-%s", root, self);
    snprintf(folder2, sizeof folder2, "%s/folder-%s", other, self);
    if (mkdir(folder, 0755))
        die("mkdir %s", folder);
    for (; time(NULL) < until; done++) {
        unsigned choice = below(100), i = below(NAMES), j = below(NAMES);
        snprintf(path, sizeof path, "%s/name-%u", folder, i);
        snprintf(target, sizeof target, "%s/name-%u", folder, j);
        if (choice < 40) {
            int fd = reopen(-1, path, O_WRONLY | O_CREAT | O_TRUNC);
            names[i].there = 1;
            names[i].length = below(CONTENT_MAX);
            fill(names[i].content, names[i].length);
            write_all(fd, names[i].content, names[i].length, 0);
            if (close(fd))
                die("close %s", path);
        } else if (choice < 55) {
            int status = rename(path, target);
            if (!names[i].there ? status == 0 || errno != ENOENT : status != 0)
                die("rename of name-%u to name-%u returned %d", i, j, status);
            if (names[i].there && i != j) {
                names[j] = names[i];
                names[i].there = 0;
            }
        } else if (choice < 70) {
            int status = unlink(path);
            if (!names[i].there ? status == 0 || errno != ENOENT : status != 0)
                die("unlink of name-%u returned %d", i, status);
            names[i].there = 0;
        } else if (choice < 85) {
            if (names[i].there)
                check_file(path, names[i].content, names[i].length, scratch, path);
        } else if (choice < 90) {
            check_names(folder, "list");
        } else {
            PATIENTLY(check_names(folder2, "the other client's list"));
            snprintf(path, sizeof path, "%s/name-%u", folder2, i);
            if (names[i].there)
                PATIENTLY(check_file(path, names[i].content, names[i].length, scratch, path));
        }
    }
    PATIENTLY(check_names(folder2, "the last list"));
    for (int i = 0; i < NAMES; i++) {
        snprintf(path, sizeof path, "%s/name-%d", folder, i);
        if (names[i].there && unlink(path))
            die("unlink %s", path);
    }
    if (rmdir(folder))
        die("rmdir");
}

static int locks(const char *one, const char *other) {
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 100, .l_len = 50};
    int mine = reopen(-1, one, O_RDWR | O_CREAT), theirs = reopen(-1, other, O_RDWR);
    if (fcntl(mine, F_SETLK, &lock))
        die("the first lock");
    if (fcntl(theirs, F_SETLK, &lock) == 0)
        die("a lock in spite of the other client's");
    lock.l_start = 150;
    if (fcntl(theirs, F_SETLK, &lock))
        die("a lock behind the other client's");
    close(mine);
    lock.l_start = 100;
    if (fcntl(theirs, F_SETLK, &lock))
        die("a lock after the other client's");
    return close(theirs);
}

int main(int count, char **arguments) {
    static const char *const workers[] = {"a", "b", "c", "d"};
    self = "locks";
    if (count == 4)
        return locks(arguments[2], arguments[3]);
    if (count != 6 || (alignment = (unsigned)atoi(arguments[5])) == 0)
        return 2;
    time_t until = time(NULL) + atoi(arguments[1]);
    unsigned seed = (unsigned)atoi(arguments[2]);
    for (int i = 0; i < 4; i++)
        if (fork() == 0) {
            int swapped = i & 1;
            self = workers[i];
            random_state = seed * 4 + (unsigned)i + 1;
            (i < 2 ? file_worker : folder_worker)(arguments[3 + swapped], arguments[4 - swapped], until);
            printf("stress %s: %lu operations, %lu checks through the other client, %lu late\n", self, done, crossed, late);
            exit(crossed ? 0 : 3);
        }
    int worst = 0, status;
    while (wait(&status) > 0)
        if (status)
            worst = 1;
    return worst;
}
