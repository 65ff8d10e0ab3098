// posix.bin CHECK DIRECTORY: one thing that programs on Linux expect of a file system. Exits with 0 if it is so.
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>
#include <unistd.h>

static const char *here;

static void die(const char *what, const char *about) {
    fprintf(stderr, "%s: %s (%s)\n", what, about, strerror(errno));
    exit(1);
}
#define must(condition) do { errno = 0; if (!(condition)) die(#condition, here); } while (0)

static void fill(const char *name, const char *text) {
    int fd = open(name, O_CREAT | O_TRUNC | O_WRONLY, 0644);
    must(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text) && close(fd) == 0);
}

static int holds(const char *name, const char *text) {
    char got[256] = "";
    int fd = open(name, O_RDONLY);
    if (fd < 0) return 0;
    ssize_t count = read(fd, got, sizeof got - 1);
    close(fd);
    return count == (ssize_t)strlen(text) && memcmp(got, text, count) == 0;
}

static mode_t mode_of(const char *name) {
    struct stat st;
    must(lstat(name, &st) == 0);
    return st.st_mode;
}

static void forget(void) {   // Linux 6.12 makes the mode of a file up that it has just created, and keeps it in its cache
    int fd = open("/proc/sys/vm/drop_caches", O_WRONLY);
    must(fd >= 0 && write(fd, "2", 1) == 1 && close(fd) == 0);
}

static void is(const char *name, mode_t wanted) {
    char text[100];
    mode_t mode = mode_of(name);
    errno = 0;
    if (mode == wanted) return;
    snprintf(text, sizeof text, "%s has mode %o, not %o", name, mode, wanted);
    die(text, here);
}

static void modes(void) {
    char name[32];
    umask(0);
    for (mode_t mode = 0; mode <= 0777; mode += 037) {
        snprintf(name, sizeof name, "file-%o", mode);
        int fd = open(name, O_CREAT | O_EXCL | O_RDWR, mode);   // open for writing, whatever the mode is
        must(fd >= 0 && write(fd, "x", 1) == 1 && close(fd) == 0);
        snprintf(name, sizeof name, "folder-%o", mode);
        must(mkdir(name, mode) == 0);
    }
    umask(027);
    must(close(creat("masked", 0666)) == 0 && mkdir("sticky", 0777) == 0 && chmod("sticky", 01777) == 0);
    forget();
    for (mode_t mode = 0; mode <= 0777; mode += 037) {
        snprintf(name, sizeof name, "file-%o", mode);
        is(name, S_IFREG | mode);
        must(unlink(name) == 0);
        snprintf(name, sizeof name, "folder-%o", mode);
        is(name, S_IFDIR | mode);
        must(rmdir(name) == 0);
    }
    is("masked", S_IFREG | 0640);
    is("sticky", S_IFDIR | 01777);
    for (mode_t mode = 0; mode <= 0777; mode += 0111) {
        must(chmod("masked", mode) == 0);
        forget();
        is("masked", S_IFREG | mode);
    }
    must(unlink("masked") == 0 && rmdir("sticky") == 0);
}

static void names(void) {
    char all[128];
    int length = 0;
    for (int c = 1; c < 128; c++) if (c != '/') all[length++] = c;
    all[length] = 0;
    const char *odd[] = {"a", "A", "a.", "a ", "a..", " a", ".a", "a:b", "a:b:$DATA", "con", "a*", "a?", "a<b>", "a|b", "\"", "b\\c", "...", ". ",
        "ä", "Ä", "line\nline", "tab\t", "日本語", all};
    int count = sizeof odd / sizeof *odd;
    for (int i = 0; i < count; i++) { must(access(odd[i], F_OK) < 0); fill(odd[i], odd[i]); }
    for (int i = 0; i < count; i++) must(holds(odd[i], odd[i]));
    DIR *folder = opendir(".");
    must(folder);
    int seen = 0;
    for (struct dirent *entry; (entry = readdir(folder));) {
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..")) continue;
        int i = 0;
        while (i < count && strcmp(odd[i], entry->d_name)) i++;
        here = entry->d_name;
        must(i < count && entry->d_type == DT_REG);
        seen++;
    }
    closedir(folder);
    must(seen == count);
    must(mkdir("dir:\\ ", 0755) == 0);
    for (int i = 0; i < count; i++) {
        char to[300];
        snprintf(to, sizeof to, "dir:\\ /%s", odd[i]);
        here = odd[i];
        must(rename(odd[i], to) == 0 && holds(to, odd[i]) && access(odd[i], F_OK) < 0 && unlink(to) == 0);
    }
    must(rmdir("dir:\\ ") == 0);
}

static int listed(const char *name) {
    DIR *folder = opendir(".");
    must(folder);
    int found = 0;
    for (struct dirent *entry; (entry = readdir(folder));) found |= !strcmp(entry->d_name, name);
    closedir(folder);
    return found;
}

// access(2) says nothing here: Linux 6.12 asks about a path by way of the open file that once had it.
static void unlinking(void) {
    char got[8];
    struct stat st;
    fill("open", "before");
    int fd = open("open", O_RDWR);
    must(fd >= 0 && unlink("open") == 0 && !listed("open"));
    must(rename("../beside", "open") == 0 && listed("open"));     // the name is free at once
    must(pread(fd, got, 6, 0) == 6 && !memcmp(got, "before", 6));
    must(pwrite(fd, "after!!", 7, 0) == 7 && fsync(fd) == 0 && pread(fd, got, 7, 0) == 7 && !memcmp(got, "after!!", 7));
    must(fstat(fd, &st) == 0 && st.st_size == 7);
    must(ftruncate(fd, 3) == 0 && fstat(fd, &st) == 0 && st.st_size == 3);
    must(close(fd) == 0 && holds("open", "beside") && unlink("open") == 0 && !listed("open"));
    must(mkdir("gone", 0755) == 0);
    fd = open("gone", O_RDONLY | O_DIRECTORY);
    must(fd >= 0 && rmdir("gone") == 0 && !listed("gone") && mkdir("gone", 0700) == 0 && close(fd) == 0 && rmdir("gone") == 0);
}

static void renaming(void) {
    char got[8];
    fill("one", "first");
    fill("two", "second");
    int one = open("one", O_RDWR), two = open("two", O_RDWR);
    must(one >= 0 && two >= 0 && rename("one", "two") == 0);      // both are open, and one replaces the other
    must(access("one", F_OK) < 0 && holds("two", "first"));
    must(pread(two, got, 6, 0) == 6 && !memcmp(got, "second", 6) && pwrite(one, "F", 1, 0) == 1 && fsync(one) == 0);
    must(close(one) == 0 && close(two) == 0 && holds("two", "First"));
    must(rename("two", "TWO") == 0 && holds("TWO", "First") && access("two", F_OK) < 0);
    must(mkdir("from", 0755) == 0 && chdir("from") == 0);
    fill("inside", "data");
    must(chdir("..") == 0);
    int inside = open("from/inside", O_RDONLY);
    must(inside >= 0 && rename("from", "to") == 0 && holds("to/inside", "data"));   // a folder with an open file
    must(pread(inside, got, 4, 0) == 4 && !memcmp(got, "data", 4) && close(inside) == 0);
    must(mkdir("empty", 0755) == 0 && rename("to", "empty") == 0 && holds("empty/inside", "data"));
    must(unlink("empty/inside") == 0 && rmdir("empty") == 0 && unlink("TWO") == 0);
}

static void links(void) {
    struct stat one, two;
    fill("one", "data");
    must(link("one", "two") == 0 && stat("one", &one) == 0 && stat("two", &two) == 0);
    must(one.st_ino == two.st_ino && one.st_nlink == 2 && link("one", "two") < 0 && errno == EEXIST);
    must(unlink("one") == 0 && holds("two", "data") && stat("two", &two) == 0 && two.st_nlink == 1 && unlink("two") == 0);
}

static void points_to(const char *name, const char *target) {
    char got[PATH_MAX] = "";
    must(S_ISLNK(mode_of(name)));
    errno = 0;
    if (readlink(name, got, sizeof got - 1) != (ssize_t)strlen(target) || strcmp(got, target)) die(got, target);
}

static void symlinks(void) {
    fill("file", "data");
    must(mkdir("folder", 0755) == 0);
    must(symlink("file", "link") == 0 && symlink("../file", "folder/up") == 0 && symlink("nowhere/at all", "dangling") == 0);
    must(symlink("folder", "way") == 0 && symlink("a:b. ", "odd") == 0);
    points_to("link", "file");
    points_to("folder/up", "../file");
    points_to("dangling", "nowhere/at all");
    points_to("way", "folder");
    points_to("odd", "a:b. ");
    must(holds("link", "data") && holds("folder/up", "data") && holds("way/up", "data"));
    must(open("dangling", O_RDONLY) < 0 && errno == ENOENT);
    must(unlink("link") == 0 && holds("file", "data") && rename("way", "another") == 0);
    points_to("another", "folder");
    must(unlink("another") == 0 && unlink("dangling") == 0 && unlink("odd") == 0 && unlink("folder/up") == 0);
    must(rmdir("folder") == 0 && unlink("file") == 0);
}

static void special(void) {
    struct { const char *name; mode_t type; dev_t device; int listed; } nodes[] = {
        {"fifo", S_IFIFO, 0, DT_FIFO}, {"socket", S_IFSOCK, 0, DT_SOCK}, {"char", S_IFCHR, makedev(1, 3), DT_CHR}, {"block", S_IFBLK, makedev(7, 200), DT_BLK}};
    struct stat st;
    for (int i = 0; i < 4; i++) {
        here = nodes[i].name;
        must(mknod(nodes[i].name, nodes[i].type | 0644, nodes[i].device) == 0);
        must(lstat(nodes[i].name, &st) == 0 && (st.st_mode & S_IFMT) == nodes[i].type && st.st_rdev == nodes[i].device);
    }
    DIR *folder = opendir(".");
    must(folder);
    int seen = 0;
    for (struct dirent *entry; (entry = readdir(folder));)
        for (int i = 0; i < 4; i++)
            if (!strcmp(entry->d_name, nodes[i].name)) { here = nodes[i].name; must(entry->d_type == nodes[i].listed); seen++; }
    closedir(folder);
    must(seen == 4);
    for (int i = 0; i < 4; i++) must(unlink(nodes[i].name) == 0);
}


static void volume(void) {
    struct statvfs found;
    must(statvfs(".", &found) == 0 && found.f_blocks && found.f_bfree <= found.f_blocks && found.f_bavail <= found.f_bfree);
    must(found.f_bsize >= 512 && found.f_files && found.f_ffree <= found.f_files);
}

static void appending(void) {
    int one = open("log", O_CREAT | O_WRONLY | O_APPEND, 0644);
    must(one >= 0 && write(one, "ab", 2) == 2 && write(one, "cd", 2) == 2 && close(one) == 0 && holds("log", "abcd") && unlink("log") == 0);
    must(close(open("only", O_CREAT | O_EXCL | O_RDWR, 0444)) == 0 && open("only", O_CREAT | O_EXCL | O_RDWR, 0444) < 0 && errno == EEXIST && unlink("only") == 0);
}

int main(int argc, char **argv) {
    struct { const char *name; void (*check)(void); } checks[] = {{"modes", modes}, {"names", names}, {"unlinking", unlinking},
        {"renaming", renaming}, {"links", links}, {"symlinks", symlinks}, {"special", special}, {"volume", volume}, {"appending", appending}};
    if (argc != 3 || chdir(argv[2])) return 2;
    here = argv[1];
    for (unsigned i = 0; i < sizeof checks / sizeof *checks; i++)
        if (!strcmp(checks[i].name, argv[1])) { checks[i].check(); return 0; }
    return 2;
}
