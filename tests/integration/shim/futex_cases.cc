// SPDX-License-Identifier: Apache-2.0
// Futexes of the heap that the kernel knows by the page they are in: futex_cases NAME [fork]. Exit 0: whoever
// waits is woken. A thread waits; meanwhile granules move (TERRACE_TEST_POLICY=churn), or (`fork`) the process
// forks, which puts other mappings in place; then it is woken. With TERRACE_TEST_HOLD_NOTHING in the
// environment, or without the protection, it waits for ever, and this program says so after two seconds.
#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <new>
#include <vector>

namespace {

constexpr size_t granule = 2u << 20;
constexpr int object_count = 12;  // more granules than the DDR budget of the tests has

bool forks = false;

[[noreturn]] void wrong(const char* what) {
  fprintf(stderr, "futex_cases: %s\n", what);
  _exit(1);
}

void be_impatient(const char*) {
  signal(SIGALRM, [](int) {
    constexpr char text[] = "futex_cases: a thread was not woken\n";
    if (write(STDERR_FILENO, text, sizeof(text) - 1) < 0) _exit(2);
    _exit(1);
  });
  alarm(2);
}

// What the memory of a waiting thread goes through.
void disturb() {
  usleep(100'000);  // it waits now
  if (!forks) {
    usleep(400'000);
    return;
  }
  for (int round = 0; round < 3; ++round) {
    const pid_t pid = fork();
    if (pid < 0) wrong("fork");
    if (pid == 0) _exit(0);
    int status = 0;
    if (waitpid(pid, &status, 0) != pid || status != 0) wrong("a child failed");
    usleep(50'000);
  }
}

// Objects all over the heap: one in each granule.
template <typename Object>
std::vector<Object*> make_objects() {
  auto* all = static_cast<unsigned char*>(aligned_alloc(granule, granule * object_count));
  if (all == nullptr) wrong("no memory");
  memset(all, 0, granule * object_count);
  std::vector<Object*> objects;
  for (size_t i = 0; i < object_count; ++i)
    objects.push_back(new (all + i * granule + 4096 * (i + 3) + 64) Object());
  usleep(200'000);  // nothing is where it was first
  return objects;
}

template <typename Object>
struct Waiting {
  Object* object;
  void (*wait)(Object*);
  pthread_t thread = {};

  static void* run(void* self) {
    auto* one = static_cast<Waiting*>(self);
    one->wait(one->object);
    return nullptr;
  }
};

// Starts a thread for each object that waits there, disturbs, wakes by `wake`, and joins.
template <typename Object>
void wait_and_wake(const std::vector<Object*>& objects, void (*wait)(Object*), void (*wake)(Object*)) {
  std::vector<Waiting<Object>> threads;
  for (Object* object : objects) threads.push_back({object, wait});
  for (auto& one : threads)
    if (pthread_create(&one.thread, nullptr, Waiting<Object>::run, &one) != 0) wrong("pthread_create");
  disturb();
  be_impatient("woken");
  for (Object* object : objects) wake(object);
  for (auto& one : threads) pthread_join(one.thread, nullptr);
}

// ---- cases

void mutexes(bool robust) {
  pthread_mutexattr_t attributes;
  pthread_mutexattr_init(&attributes);
  if (robust)
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
  else
    pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  const auto objects = make_objects<pthread_mutex_t>();
  for (pthread_mutex_t* mutex : objects)
    if (pthread_mutex_init(mutex, &attributes) != 0 || pthread_mutex_lock(mutex) != 0) wrong("mutex");
  wait_and_wake<pthread_mutex_t>(
      objects,
      [](pthread_mutex_t* mutex) {
        if (pthread_mutex_lock(mutex) != 0 || pthread_mutex_unlock(mutex) != 0) wrong("mutex");
      },
      [](pthread_mutex_t* mutex) { pthread_mutex_unlock(mutex); });
}

void shared_mutexes() {
  mutexes(false);
}
void robust_mutexes() {
  mutexes(true);
}

// Whoever has the mutex ends without giving it back: the kernel wakes who waits.
void dead_owners() {
  pthread_mutexattr_t attributes;
  pthread_mutexattr_init(&attributes);
  pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
  const auto objects = make_objects<pthread_mutex_t>();
  struct Owner {
    const std::vector<pthread_mutex_t*>* all;
    std::atomic<int> stage{0};
  } owner;
  owner.all = &objects;
  for (pthread_mutex_t* mutex : objects) pthread_mutex_init(mutex, &attributes);
  pthread_t owning;
  pthread_create(
      &owning, nullptr,
      [](void* argument) -> void* {
        auto* mine = static_cast<Owner*>(argument);
        for (pthread_mutex_t* mutex : *mine->all) pthread_mutex_lock(mutex);
        mine->stage = 1;
        while (mine->stage != 2) usleep(1000);
        return nullptr;
      },
      &owner);
  while (owner.stage != 1) usleep(1000);
  static Owner* the_owner;
  the_owner = &owner;
  wait_and_wake<pthread_mutex_t>(
      objects,
      [](pthread_mutex_t* mutex) {
        if (pthread_mutex_lock(mutex) != EOWNERDEAD) wrong("EOWNERDEAD");
        pthread_mutex_consistent(mutex);
        pthread_mutex_unlock(mutex);
      },
      [](pthread_mutex_t*) { the_owner->stage = 2; });
  pthread_join(owning, nullptr);
}

void semaphores() {
  const auto objects = make_objects<sem_t>();
  for (sem_t* one : objects)
    if (sem_init(one, 1, 0) != 0) wrong("sem_init");
  wait_and_wake<sem_t>(
      objects,
      [](sem_t* one) {
        if (sem_wait(one) != 0) wrong("sem_wait");
      },
      [](sem_t* one) { sem_post(one); });
}

struct Condition {
  pthread_mutex_t mutex;
  pthread_cond_t condition;
  bool set = false;
};

void conditions() {
  pthread_mutexattr_t of_mutex;
  pthread_mutexattr_init(&of_mutex);
  pthread_mutexattr_setpshared(&of_mutex, PTHREAD_PROCESS_SHARED);
  pthread_condattr_t of_condition;
  pthread_condattr_init(&of_condition);
  pthread_condattr_setpshared(&of_condition, PTHREAD_PROCESS_SHARED);
  const auto objects = make_objects<Condition>();
  for (Condition* one : objects)
    if (pthread_mutex_init(&one->mutex, &of_mutex) != 0 ||
        pthread_cond_init(&one->condition, &of_condition) != 0)
      wrong("condition");
  wait_and_wake<Condition>(
      objects,
      [](Condition* one) {
        pthread_mutex_lock(&one->mutex);
        while (!one->set) pthread_cond_wait(&one->condition, &one->mutex);
        pthread_mutex_unlock(&one->mutex);
      },
      [](Condition* one) {
        pthread_mutex_lock(&one->mutex);
        one->set = true;
        pthread_cond_signal(&one->condition);
        pthread_mutex_unlock(&one->mutex);
      });
}

void readers() {
  pthread_rwlockattr_t attributes;
  pthread_rwlockattr_init(&attributes);
  pthread_rwlockattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  const auto objects = make_objects<pthread_rwlock_t>();
  for (pthread_rwlock_t* one : objects)
    if (pthread_rwlock_init(one, &attributes) != 0 || pthread_rwlock_wrlock(one) != 0) wrong("rwlock");
  wait_and_wake<pthread_rwlock_t>(
      objects,
      [](pthread_rwlock_t* one) {
        if (pthread_rwlock_rdlock(one) != 0 || pthread_rwlock_unlock(one) != 0) wrong("rwlock");
      },
      [](pthread_rwlock_t* one) { pthread_rwlock_unlock(one); });
}

void barriers() {
  pthread_barrierattr_t attributes;
  pthread_barrierattr_init(&attributes);
  pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  const auto objects = make_objects<pthread_barrier_t>();
  for (pthread_barrier_t* one : objects)
    if (pthread_barrier_init(one, &attributes, 2) != 0) wrong("barrier");
  wait_and_wake<pthread_barrier_t>(
      objects, [](pthread_barrier_t* one) { pthread_barrier_wait(one); },
      [](pthread_barrier_t* one) { pthread_barrier_wait(one); });
}

void by_number() {
  const auto objects = make_objects<std::atomic<uint32_t>>();
  wait_and_wake<std::atomic<uint32_t>>(
      objects,
      [](std::atomic<uint32_t>* word) {
        while (*word == 0) syscall(SYS_futex, word, FUTEX_WAIT, 0, nullptr, nullptr, 0);
      },
      [](std::atomic<uint32_t>* word) {
        *word = 1;
        syscall(SYS_futex, word, FUTEX_WAKE, 1, nullptr, nullptr, 0);
      });
}

struct WaitEntry {
  uint64_t value, address;
  uint32_t flags, reserved;
};

void by_number_many() {
  const auto objects = make_objects<std::atomic<uint32_t>>();
  wait_and_wake<std::atomic<uint32_t>>(
      objects,
      [](std::atomic<uint32_t>* word) {
        WaitEntry entry{0, reinterpret_cast<uint64_t>(word), 2, 0};  // of 32 bits
        while (*word == 0)
          if (syscall(SYS_futex_waitv, &entry, 1, 0, nullptr, CLOCK_MONOTONIC) < 0 && errno == ENOSYS) {
            puts("no futex_waitv here");
            _exit(0);
          }
      },
      [](std::atomic<uint32_t>* word) {
        *word = 1;
        syscall(SYS_futex, word, FUTEX_WAKE, 1, nullptr, nullptr, 0);
      });
}

std::atomic<bool> threads_may_end{false};

// pthread_join waits for a word in the thread's own record, which lies on its stack.
void stacks() {
  struct Stack {
    char bytes[512 * 1024];
  };
  auto* all = static_cast<unsigned char*>(aligned_alloc(granule, granule * object_count));
  memset(all, 0, granule * object_count);
  usleep(200'000);
  std::vector<pthread_t> threads;
  for (size_t i = 0; i < object_count; ++i) {
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    if (pthread_attr_setstack(&attributes, all + i * granule + 64 * 1024, sizeof(Stack)) != 0)
      wrong("setstack");
    threads.emplace_back();
    if (pthread_create(
            &threads.back(), &attributes,
            [](void*) -> void* {
              while (!threads_may_end) usleep(1000);
              return nullptr;
            },
            nullptr) != 0)
      wrong("pthread_create");
  }
  // Others wait for their ends, while this one does not.
  std::vector<Waiting<pthread_t>> waiting;
  for (pthread_t& thread : threads)
    waiting.push_back({&thread, [](pthread_t* one) { pthread_join(*one, nullptr); }});
  for (auto& one : waiting) pthread_create(&one.thread, nullptr, Waiting<pthread_t>::run, &one);
  disturb();
  be_impatient("joined");
  threads_may_end = true;
  for (auto& one : waiting) pthread_join(one.thread, nullptr);
}

}  // namespace

int main(int argc, char** argv) {
  struct Case {
    const char* name;
    void (*run)();
  };
  constexpr Case cases[] = {{"shared_mutexes", shared_mutexes},
                            {"robust_mutexes", robust_mutexes},
                            {"dead_owners", dead_owners},
                            {"semaphores", semaphores},
                            {"conditions", conditions},
                            {"readers", readers},
                            {"barriers", barriers},
                            {"by_number", by_number},
                            {"by_number_many", by_number_many},
                            {"stacks", stacks}};
  forks = argc > 2 && strcmp(argv[2], "fork") == 0;
  for (const Case& one : cases)
    if (argc >= 2 && strcmp(argv[1], one.name) == 0) {
      one.run();
      return 0;
    }
  for (const Case& one : cases) puts(one.name);
  return argc == 1 ? 0 : 2;
}
