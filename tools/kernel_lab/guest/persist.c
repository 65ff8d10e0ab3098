// persist hold DIR READY GO: keep byte-range locks on DIR/held, data that exists only in the client's cache in DIR/cached, and DIR/gone open without a name,
//   from when READY exists until GO does; then check that all are unchanged.
// persist copy FROM TO: copy 64 KiB at a time, past the client's cache, some thirty times a second, so that it runs while the server fails and returns.
// persist wait FILE: wait for the range that hold has locked exclusively, and then lock it.
// persist try FILE: check that another client finds the ranges locked that hold has locked, and others free.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void die(const char *what) { printf("persist: %s: %s\n", what, strerror(errno)); exit(1); }
static void wrong(const char *what) { printf("persist: %s\n", what); exit(1); }

static int lock(int fd, short type, long start, long length) {
  struct flock range = {.l_type = type, .l_whence = SEEK_SET, .l_start = start, .l_len = length};
  return fcntl(fd, F_SETLK, &range);
}

static int open_in(const char *dir, const char *name) {
  char path[512];
  snprintf(path, sizeof path, "%s/%s", dir, name);
  int fd = open(path, O_RDWR | O_CREAT, 0600);
  if (fd < 0) die(path);
  return fd;
}

static void put(int fd, const char *text, long offset) {
  if (pwrite(fd, text, strlen(text), offset) != (ssize_t)strlen(text)) die("write");
  if (fsync(fd)) die("fsync");
}

static void expect(int fd, const char *text, long offset) {
  char found[64] = "";
  if (pread(fd, found, strlen(text), offset) != (ssize_t)strlen(text)) die("read");
  if (strcmp(found, text)) { printf("persist: found \"%s\", want \"%s\"\n", found, text); exit(1); }
}

static void hold(const char *dir, const char *ready, const char *go) {
  char path[512];
  int held = open_in(dir, "held"), gone = open_in(dir, "gone"), cached = open_in(dir, "cached");
  if (ftruncate(held, 1000)) die("truncate");
  put(held, "before", 0);
  put(gone, "no name", 0);
  if (lock(held, F_WRLCK, 0, 100) || lock(held, F_RDLCK, 200, 100)) die("lock");
  snprintf(path, sizeof path, "%s/gone", dir);
  if (unlink(path)) die("unlink");
  if (write(cached, "dirty\n", 6) != 6) die("write to the cache");
  if (close(open(ready, O_WRONLY | O_CREAT, 0600))) die(ready);
  while (access(go, F_OK)) usleep(50000);
  expect(held, "before", 0);
  put(held, "behind", 10);
  expect(held, "behind", 10);
  expect(gone, "no name", 0);
  put(gone, "still here", 0);
  expect(gone, "still here", 0);
  if (lock(held, F_UNLCK, 200, 100)) die("unlock");
  if (fsync(cached)) die("fsync of what was cached");
  if (close(gone) || close(held) || close(cached)) die("close");
}

static void try(const char *path) {
  int fd = open(path, O_RDWR);
  if (fd < 0) die(path);
  if (!lock(fd, F_WRLCK, 50, 10)) wrong("the exclusive lock is gone");
  if (errno != EACCES && errno != EAGAIN) die("lock that others hold");
  if (!lock(fd, F_WRLCK, 250, 10)) wrong("the shared lock is gone");
  if (errno != EACCES && errno != EAGAIN) die("lock that others share");
  if (lock(fd, F_WRLCK, 120, 10)) die("lock that nobody holds");
  if (close(fd)) die("close");
}

static void wait_for(const char *path) {
  struct flock range = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 0, .l_len = 100};
  int fd = open(path, O_RDWR);
  if (fd < 0) die(path);
  while (fcntl(fd, F_SETLKW, &range)) {
    // Linux 6.12 returns EAGAIN when the connection ends that the program waits on, and EBADF until another operation makes it reopen the file (docs/kernel-lab.md).
    if (errno != EAGAIN && errno != EBADF) die("wait for a lock");
    usleep(100000);
    char byte;
    if (pread(fd, &byte, 1, 500) != 1) die("read beside the lock");
  }
  if (lock(fd, F_UNLCK, 0, 100)) die("unlock");
  if (close(fd)) die("close");
}

static void copy(const char *from, const char *to) {
  enum { BLOCK = 65536 };
  char *block = aligned_alloc(4096, BLOCK);
  int in = open(from, O_RDONLY), out = open(to, O_WRONLY | O_CREAT | O_DIRECT, 0600);
  ssize_t count;
  if (!block || in < 0 || out < 0) die(to);
  while ((count = read(in, block, BLOCK)) > 0) {
    if (write(out, block, count) != count) die("copy");
    usleep(30000);
  }
  if (count < 0 || close(out)) die("copy");
}

int main(int argc, char **argv) {
  setvbuf(stdout, NULL, _IOLBF, 0);
  if (argc == 5 && !strcmp(argv[1], "hold")) hold(argv[2], argv[3], argv[4]);
  else if (argc == 3 && !strcmp(argv[1], "try")) try(argv[2]);
  else if (argc == 3 && !strcmp(argv[1], "wait")) wait_for(argv[2]);
  else if (argc == 4 && !strcmp(argv[1], "copy")) copy(argv[2], argv[3]);
  else wrong("usage");
  return 0;
}
