// SPDX-License-Identifier: Apache-2.0
#include "core/base/sync/mutex.h"

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>

using namespace terrace;
using namespace std::chrono_literals;

namespace {

struct Counter {
  Mutex mutex;
  ConditionVariable changed;
  int value TERRACE_GUARDED_BY(mutex) = 0;
};

}  // namespace

static_assert(sizeof(Mutex) == sizeof(std::mutex));
static_assert(sizeof(ConditionVariable) == sizeof(std::condition_variable));
static_assert(sizeof(SharedMutex) == sizeof(std::shared_mutex));

TEST_CASE("Mutex: what two threads do under it is not torn, and a lock ends with its block") {
  Counter counter;
  auto count = [&counter] {
    for (int i = 0; i < 20'000; ++i) {
      const MutexLock lock(counter.mutex);
      counter.value = counter.value + 1;
    }
  };
  std::thread other(count);
  count();
  other.join();
  const bool free = counter.mutex.try_lock();
  REQUIRE(free);
  CHECK(counter.value == 40'000);
  counter.mutex.unlock();
}

TEST_CASE("ReleasableMutexLock: gives the mutex back and takes it again, and unlocks once") {
  Mutex mutex;
  auto held = [&mutex] {
    bool is = true;
    std::thread([&] {
      if (mutex.try_lock()) {
        is = false;
        mutex.unlock();
      }
    }).join();
    return is;
  };
  {
    ReleasableMutexLock lock(mutex);
    CHECK(held());
    lock.unlock();
    CHECK(!held());
    lock.lock();
    CHECK(held());
  }
  CHECK(!held());
  {
    ReleasableMutexLock lock(mutex);
    lock.unlock();
  }
  CHECK(!held());
}

TEST_CASE("MutexUnlock: gives a held mutex up for its block, also when an exception ends that") {
  Mutex mutex;
  bool was_free = false;
  try {
    const MutexLock lock(mutex);
    const MutexUnlock unlocked(mutex);
    std::thread([&] {
      was_free = mutex.try_lock();
      if (was_free) mutex.unlock();
    }).join();
    throw 1;
  } catch (int) {
  }
  CHECK(was_free);
  const bool free = mutex.try_lock();
  CHECK(free);
  if (free) mutex.unlock();
}

TEST_CASE("SharedMutex: readers beside each other, no writer beside them") {
  SharedMutex mutex;
  auto one = std::make_unique<ReaderLock>(mutex);
  std::atomic<bool> read = false, written = false;
  std::thread([&] {
    const ReaderLock two(mutex);
    read = true;
  }).join();
  CHECK(read);
  std::thread writer([&] {
    const WriterLock lock(mutex);
    written = true;
  });
  std::this_thread::sleep_for(20ms);
  CHECK(!written);
  one.reset();
  writer.join();
  CHECK(written);
}

TEST_CASE("ConditionVariable: the mutex is free during a wait, and held after it") {
  Counter counter;
  std::thread other([&counter] {
    const MutexLock lock(counter.mutex);
    counter.value = 1;
    counter.changed.notify_all();
  });
  {
    const MutexLock lock(counter.mutex);
    counter.changed.wait(counter.mutex,
                         [&counter]() TERRACE_REQUIRES(counter.mutex) { return counter.value == 1; });
    CHECK(counter.value == 1);
    bool taken = false;
    std::thread([&] {
      taken = counter.mutex.try_lock();
      if (taken) counter.mutex.unlock();
    }).join();
    CHECK(!taken);
  }
  other.join();
}

TEST_CASE("ConditionVariable: a bound of time ends a wait, and tells whether the predicate holds") {
  Counter counter;
  const MutexLock lock(counter.mutex);
  auto never = [] { return false; };
  auto always = [] { return true; };
  const auto begin = std::chrono::steady_clock::now();
  CHECK(!counter.changed.wait_for(counter.mutex, 30ms, never));
  CHECK(std::chrono::steady_clock::now() - begin >= 30ms);
  CHECK(!counter.changed.wait_until(counter.mutex, begin, never));
  CHECK(counter.changed.wait_for(counter.mutex, 1h, always));
  CHECK(counter.changed.wait_until(counter.mutex, begin, always));
  CHECK(counter.changed.wait_until(counter.mutex, begin) == std::cv_status::timeout);
}
