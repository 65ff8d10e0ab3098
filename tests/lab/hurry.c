/* For LD_PRELOAD: a program that waits, and waits for nothing else, waits a hundredth of the time. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <poll.h>
#include <time.h>
#include <unistd.h>

static void wait_for(double seconds)
{
    int (*real)(clockid_t, int, const struct timespec *, struct timespec *) = dlsym(RTLD_NEXT, "clock_nanosleep");
    double less = seconds / 100;
    struct timespec time = {(time_t)less, (long)((less - (time_t)less) * 1e9)};
    real(CLOCK_MONOTONIC, 0, &time, NULL);
}

unsigned sleep(unsigned seconds)
{
    wait_for(seconds);
    return 0;
}

int usleep(useconds_t microseconds)
{
    wait_for(microseconds / 1e6);
    return 0;
}

int nanosleep(const struct timespec *time, struct timespec *left)
{
    wait_for(time->tv_sec + time->tv_nsec / 1e9);
    return 0;
}

int poll(struct pollfd *descriptors, nfds_t count, int milliseconds)
{
    int (*real)(struct pollfd *, nfds_t, int) = dlsym(RTLD_NEXT, "poll");
    if (count == 0 && milliseconds > 0) {
        wait_for(milliseconds / 1e3);
        return 0;
    }
    return real(descriptors, count, milliseconds);
}
