// SPDX-License-Identifier: Apache-2.0
// The locks of the standard library with the words of thread_safety.h, and waits that go with them.
//
// Each is its counterpart of std and nothing else: as large, as fast, with the same rules. So `mutex_` is declared
// Mutex, its fields TERRACE_GUARDED_BY(mutex_), and clang finds the place that touches one without the lock.
//
// Errors    Those of std: misuse is undefined, as unlocking what another thread holds.
// Threads   Any.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <shared_mutex>
#include <utility>

#include "core/base/sync/thread_safety.h"

namespace terrace {

class TERRACE_CAPABILITY("mutex") Mutex {
 public:
  constexpr Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

  void lock() TERRACE_ACQUIRE() { mutex_.lock(); }
  void unlock() TERRACE_RELEASE() { mutex_.unlock(); }
  bool try_lock() TERRACE_TRY_ACQUIRE(true) { return mutex_.try_lock(); }

 private:
  friend class ConditionVariable;
  std::mutex mutex_;
};

// Holds a mutex for as long as it lives: std::lock_guard.
class TERRACE_SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) TERRACE_ACQUIRE(mutex) : mutex_(mutex) { mutex_.lock(); }
  // Of a mutex that is held already, as after try_lock().
  MutexLock(Mutex& mutex, std::adopt_lock_t) TERRACE_REQUIRES(mutex) : mutex_(mutex) {}
  ~MutexLock() TERRACE_RELEASE() { mutex_.unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

// The same, but the mutex may be given back and taken again meanwhile: what std::unique_lock is used for where
// nothing is handed on.
class TERRACE_SCOPED_CAPABILITY ReleasableMutexLock {
 public:
  explicit ReleasableMutexLock(Mutex& mutex) TERRACE_ACQUIRE(mutex) : mutex_(mutex) { mutex_.lock(); }
  ~ReleasableMutexLock() TERRACE_RELEASE() {
    if (held_) mutex_.unlock();
  }
  ReleasableMutexLock(const ReleasableMutexLock&) = delete;
  ReleasableMutexLock& operator=(const ReleasableMutexLock&) = delete;

  void unlock() TERRACE_RELEASE() {
    mutex_.unlock();
    held_ = false;
  }
  void lock() TERRACE_ACQUIRE() {
    mutex_.lock();
    held_ = true;
  }

 private:
  Mutex& mutex_;
  bool held_ = true;
};

// The other way round: gives up a mutex that is held, and takes it again at its end. For a function that was called with
// the mutex, and does a step without it; an exception in that step finds the caller's lock as it was.
class TERRACE_SCOPED_CAPABILITY MutexUnlock {
 public:
  explicit MutexUnlock(Mutex& mutex) TERRACE_RELEASE(mutex) : mutex_(mutex) { mutex_.unlock(); }
  ~MutexUnlock() TERRACE_RELEASE() { mutex_.lock(); }
  MutexUnlock(const MutexUnlock&) = delete;
  MutexUnlock& operator=(const MutexUnlock&) = delete;

 private:
  Mutex& mutex_;
};

// Readers beside each other, or one writer.
class TERRACE_CAPABILITY("shared mutex") SharedMutex {
 public:
  SharedMutex() = default;
  SharedMutex(const SharedMutex&) = delete;
  SharedMutex& operator=(const SharedMutex&) = delete;

  void lock() TERRACE_ACQUIRE() { mutex_.lock(); }
  void unlock() TERRACE_RELEASE() { mutex_.unlock(); }
  void lock_shared() TERRACE_ACQUIRE_SHARED() { mutex_.lock_shared(); }
  void unlock_shared() TERRACE_RELEASE_SHARED() { mutex_.unlock_shared(); }

 private:
  std::shared_mutex mutex_;
};

class TERRACE_SCOPED_CAPABILITY WriterLock {
 public:
  explicit WriterLock(SharedMutex& mutex) TERRACE_ACQUIRE(mutex) : mutex_(mutex) { mutex_.lock(); }
  ~WriterLock() TERRACE_RELEASE() { mutex_.unlock(); }
  WriterLock(const WriterLock&) = delete;
  WriterLock& operator=(const WriterLock&) = delete;

 private:
  SharedMutex& mutex_;
};

class TERRACE_SCOPED_CAPABILITY ReaderLock {
 public:
  explicit ReaderLock(SharedMutex& mutex) TERRACE_ACQUIRE_SHARED(mutex) : mutex_(mutex) {
    mutex_.lock_shared();
  }
  ~ReaderLock() TERRACE_RELEASE_GENERIC() { mutex_.unlock_shared(); }
  ReaderLock(const ReaderLock&) = delete;
  ReaderLock& operator=(const ReaderLock&) = delete;

 private:
  SharedMutex& mutex_;
};

// Waits by a Mutex that the caller holds, and holds again when they return. A predicate that looks at guarded fields
// says so itself: [&]() TERRACE_REQUIRES(mutex_) { return ready_; }
class ConditionVariable {
 public:
  void notify_one() noexcept { condition_.notify_one(); }
  void notify_all() noexcept { condition_.notify_all(); }

  // May return without a notification.
  void wait(Mutex& mutex) TERRACE_REQUIRES(mutex) {
    Adopted lock(mutex.mutex_);
    condition_.wait(lock.lock);
  }
  // May return before; std::cv_status::timeout once `until` has come.
  template <typename Clock, typename Duration>
  std::cv_status wait_until(Mutex& mutex, const std::chrono::time_point<Clock, Duration>& until)
      TERRACE_REQUIRES(mutex) {
    Adopted lock(mutex.mutex_);
    return condition_.wait_until(lock.lock, until);
  }
  template <typename Rep, typename Period>
  std::cv_status wait_for(Mutex& mutex, const std::chrono::duration<Rep, Period>& time)
      TERRACE_REQUIRES(mutex) {
    Adopted lock(mutex.mutex_);
    return condition_.wait_for(lock.lock, time);
  }

  // Until `done()`; with a bound of time returns what it said last. Not analysed inside: the analysis does not know
  // that the predicate's lock is `mutex`.
  template <typename Predicate>
  void wait(Mutex& mutex, Predicate done) TERRACE_REQUIRES(mutex) TERRACE_NO_THREAD_SAFETY_ANALYSIS {
    while (!done()) wait(mutex);
  }
  template <typename Clock, typename Duration, typename Predicate>
  bool wait_until(Mutex& mutex, const std::chrono::time_point<Clock, Duration>& until, Predicate done)
      TERRACE_REQUIRES(mutex) TERRACE_NO_THREAD_SAFETY_ANALYSIS {
    while (!done())
      if (wait_until(mutex, until) == std::cv_status::timeout) return done();
    return true;
  }
  template <typename Rep, typename Period, typename Predicate>
  bool wait_for(Mutex& mutex, const std::chrono::duration<Rep, Period>& time, Predicate done)
      TERRACE_REQUIRES(mutex) TERRACE_NO_THREAD_SAFETY_ANALYSIS {
    return wait_until(mutex, std::chrono::steady_clock::now() + time, std::move(done));
  }

 private:
  // What std::condition_variable wants, of a mutex that is the caller's before and after.
  struct Adopted {
    explicit Adopted(std::mutex& mutex) : lock(mutex, std::adopt_lock) {}
    ~Adopted() { lock.release(); }
    std::unique_lock<std::mutex> lock;
  };

  std::condition_variable condition_;
};

}  // namespace terrace
