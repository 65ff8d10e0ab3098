/* transfer write|read FILE SECONDS MIB: moves MIB of data repeatedly, past the client's cache, in blocks of 1 MiB with THREADS of them in flight, for SECONDS;
 * prints the longest time of a block. Direct reads of Linux 6.12 fail with EAGAIN when their channel dies: they are repeated. Every block is stamped with its
 * number and round: `read` checks the data that `write` left, and `write` checks at its end that the file holds each block's last round, no older one.
 * Exit status 0: no error, and all data right. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define BLOCK (1 << 20)
#define WORDS (BLOCK / 8)
#define THREADS 4
#define MOST 1024

static int fd, blocks, writing, seconds;
static uint64_t rounds[MOST];
static double started, worst, worst_at;
static long done, again;
static volatile int failed;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

static uint64_t word(uint64_t block, uint64_t round, uint64_t i)
{
	return (block << 48 ^ round << 24 ^ i) * 0x9e3779b97f4a7c15u;
}

static void fill(uint64_t *data, uint64_t block, uint64_t round)
{
	for (uint64_t i = 0; i < WORDS; i++)
		data[i] = word(block, round, i);
}

static int check(const uint64_t *data, uint64_t block, uint64_t round)
{
	for (uint64_t i = 0; i < WORDS; i++)
		if (data[i] != word(block, round, i)) {
			printf("block %lu is wrong from byte %lu on: not what round %lu wrote\n", block, i * 8, round);
			return failed = 1;
		}
	return 0;
}

static int move(uint64_t *data, uint64_t block, int out)
{
	double from = now(), took;
	ssize_t n;
	do {
		n = out ? pwrite(fd, data, BLOCK, (off_t)block * BLOCK) : pread(fd, data, BLOCK, (off_t)block * BLOCK);
	} while (n < 0 && errno == EAGAIN && !out && __sync_add_and_fetch(&again, 1) < 1000);
	took = now() - from;
	pthread_mutex_lock(&lock);
	if (took > worst)
		worst = took, worst_at = from - started;
	done++;
	pthread_mutex_unlock(&lock);
	if (n == BLOCK)
		return 0;
	printf("%s block %lu: %ld, %s\n", out ? "write" : "read", block, n, n < 0 ? strerror(errno) : "short");
	return failed = 1;
}

static void *work(void *argument)
{
	uint64_t *data, first = (uintptr_t)argument;
	if (posix_memalign((void **)&data, 4096, BLOCK))
		return failed = 1, NULL;
	for (uint64_t round = 1; !failed && now() - started < seconds; round++)
		for (uint64_t block = first; block < blocks && !failed; block += THREADS) {
			if (writing)
				fill(data, block, round), rounds[block] = round;
			if (move(data, block, writing))
				break;
			if (!writing)
				check(data, block, 0);
		}
	free(data);
	return NULL;
}

int main(int argc, char **argv)
{
	pthread_t threads[THREADS];
	uint64_t *data;
	writing = argc == 5 && !strcmp(argv[1], "write");
	if (argc != 5 || (blocks = atoi(argv[4])) < 1 || blocks > MOST || posix_memalign((void **)&data, 4096, BLOCK))
		return 2;
	seconds = atoi(argv[3]);
	setvbuf(stdout, NULL, _IOLBF, 0);
	fd = open(argv[2], O_RDWR | O_CREAT | O_DIRECT, 0644);
	if (fd < 0) {
		printf("%s: %s\n", argv[2], strerror(errno));
		return 1;
	}
	for (int block = 0; !writing && block < blocks && !failed; block++)
		fill(data, block, 0), move(data, block, 1);
	worst = done = 0;
	started = now();
	for (uintptr_t i = 0; i < THREADS; i++)
		pthread_create(&threads[i], NULL, work, (void *)i);
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	printf("STALL %s: %.2f s at worst, from second %.1f on; %ld MiB in %.1f s", argv[1], worst, worst_at, done, now() - started);
	printf(again ? "; %ld reads told to try again\n" : "\n", again);
	for (int block = 0; writing && block < blocks && !failed; block++)
		if (!move(data, block, 0))
			check(data, block, rounds[block]);
	if (close(fd)) {
		printf("close: %s\n", strerror(errno));
		return 1;
	}
	return failed;
}
