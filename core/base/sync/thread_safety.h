// SPDX-License-Identifier: Apache-2.0
// What a lock protects, in words that clang checks (-Wthread-safety): empty for other compilers. Macros only, so that
// any module may include it, also those that go into other people's programs.
//
// Place     `scripts/dev static` has clang look at every source that includes this file; docs/testing.md says how to
//           annotate. Locks of the standard library carry no such words: use those of core/base/sync/mutex.h.
#pragma once

#if defined(__clang__)
#define TERRACE_THREAD_SAFETY(words) __attribute__((words))
#else
#define TERRACE_THREAD_SAFETY(words)
#endif

// A class whose objects are locks, and one whose objects hold a lock for as long as they live.
#define TERRACE_CAPABILITY(name) TERRACE_THREAD_SAFETY(capability(name))
#define TERRACE_SCOPED_CAPABILITY TERRACE_THREAD_SAFETY(scoped_lockable)

// A field that is touched only by who holds the lock; likewise what a pointer points at.
#define TERRACE_GUARDED_BY(lock) TERRACE_THREAD_SAFETY(guarded_by(lock))
#define TERRACE_PT_GUARDED_BY(lock) TERRACE_THREAD_SAFETY(pt_guarded_by(lock))

// A lock that is taken before, or after, another one: the other way round two threads could wait for each other.
#define TERRACE_ACQUIRED_BEFORE(...) TERRACE_THREAD_SAFETY(acquired_before(__VA_ARGS__))
#define TERRACE_ACQUIRED_AFTER(...) TERRACE_THREAD_SAFETY(acquired_after(__VA_ARGS__))

// A function whose caller holds the lock (_SHARED: at least as a reader), or must not, since the function takes it.
// Behind the parameters of a lambda, too: what a lambda does is looked at by itself.
#define TERRACE_REQUIRES(...) TERRACE_THREAD_SAFETY(requires_capability(__VA_ARGS__))
#define TERRACE_REQUIRES_SHARED(...) TERRACE_THREAD_SAFETY(requires_shared_capability(__VA_ARGS__))
#define TERRACE_EXCLUDES(...) TERRACE_THREAD_SAFETY(locks_excluded(__VA_ARGS__))

// A function that returns with the lock held, or not held; without arguments its object is the lock.
// TRY_ACQUIRE(result, lock...): held if it returned `result`.
#define TERRACE_ACQUIRE(...) TERRACE_THREAD_SAFETY(acquire_capability(__VA_ARGS__))
#define TERRACE_ACQUIRE_SHARED(...) TERRACE_THREAD_SAFETY(acquire_shared_capability(__VA_ARGS__))
#define TERRACE_RELEASE(...) TERRACE_THREAD_SAFETY(release_capability(__VA_ARGS__))
#define TERRACE_RELEASE_SHARED(...) TERRACE_THREAD_SAFETY(release_shared_capability(__VA_ARGS__))
#define TERRACE_RELEASE_GENERIC(...) TERRACE_THREAD_SAFETY(release_generic_capability(__VA_ARGS__))
#define TERRACE_TRY_ACQUIRE(...) TERRACE_THREAD_SAFETY(try_acquire_capability(__VA_ARGS__))

// A function that returns a reference to this lock.
#define TERRACE_RETURN_CAPABILITY(lock) TERRACE_THREAD_SAFETY(lock_returned(lock))

// A function that the analysis cannot follow: a lock in a run-time choice, one that another function gives back. A
// comment says why, and the function is as short as it can be.
#define TERRACE_NO_THREAD_SAFETY_ANALYSIS TERRACE_THREAD_SAFETY(no_thread_safety_analysis)
