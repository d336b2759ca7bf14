// What libstdc++'s headers take from glibc after 2.28, for wheels that run on 2.28
// (old_libraries.py). Hidden: each module has its own, and nobody else's binding changes.
#include <dlfcn.h>
#include <pthread.h>
#include <time.h>

#define HIDDEN __attribute__((visibility("hidden")))

extern "C" {

// 2.32: false means that reference counts are counted atomically, which is always right.
HIDDEN char __libc_single_threaded = 0;

// 2.30: the system's own where it has one, or else what libstdc++ did before there was one: the
// time left, on the clock that may be set. A waiter looks at its condition and clock again.
HIDDEN int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock,
                                  const struct timespec* until) {
  using Wait = int (*)(pthread_cond_t*, pthread_mutex_t*, clockid_t, const struct timespec*);
  static const Wait own = reinterpret_cast<Wait>(dlsym(RTLD_DEFAULT, "pthread_cond_clockwait"));
  if (own != nullptr) return own(condition, mutex, clock, until);
  struct timespec now, wall;
  clock_gettime(clock, &now);
  clock_gettime(CLOCK_REALTIME, &wall);
  wall.tv_sec += until->tv_sec - now.tv_sec;
  wall.tv_nsec += until->tv_nsec - now.tv_nsec;
  if (wall.tv_nsec < 0) {
    wall.tv_nsec += 1000000000;
    wall.tv_sec -= 1;
  } else if (wall.tv_nsec >= 1000000000) {
    wall.tv_nsec -= 1000000000;
    wall.tv_sec += 1;
  }
  return pthread_cond_timedwait(condition, mutex, &wall);
}
}
