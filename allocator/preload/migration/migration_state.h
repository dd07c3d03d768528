// SPDX-License-Identifier: Apache-2.0
// The state that the engine's thread and the program's threads share. Internal to this folder
// and to fork/threads.cc; all others use movement.h.
#pragma once

#include <pthread.h>

#include <atomic>
#include <cstdint>

#include "allocator/preload/window/movement.h"
#include "allocator/preload/window/window.h"
#include "tiering/engine/engine.h"

namespace terrace::preload::migration {

enum class State : uint32_t { off, starting, moving, forked, ended };
enum class Asked : uint32_t { nothing, waiting, working, done, failed };

// What the engine's thread owns. Never destroyed: it may run until the process ends.
struct Migration {
  tiering::TieredMemory memory;
  tiering::Engine engine;
  uint32_t range = 0;
  int descriptors[sources_max];                       // in the thread's own table
  uint32_t segment_slots[supply::segments_max] = {};  // of those that `memory` knows; 0: it does not
  uint64_t ddr_wanted = 0;  // granules: the run's budget, or what `terrace tier set` said since
  uint64_t ddr_set = 0;     // what the engine was told last
};

struct Shared {
  std::atomic<State> state{State::off};
  std::atomic<Migration*> opened{nullptr};  // its `memory` can be asked and held
  std::atomic<bool> engine_loops{false};    // Engine::wake() has an effect
  std::atomic<bool> engine_ended{false};    // its thread has nothing more to do
  std::atomic<bool> running{false};         // there is a thread that nobody has waited for
  std::atomic<uint32_t> named{0};           // that thread has its name; a word to wait for
  pthread_t thread = {};
  Migration* self = nullptr;  // as `opened`, from before the thread starts

  std::atomic<uint32_t> early_holds{0};  // of before `opened`: nothing moves until they are gone
  bool holds_applied = false;            // those of before `opened` that last; heap_lock
  std::atomic<bool> ending{false};
  std::atomic<supply::EndReason> end_reason{supply::EndReason::none};

  std::atomic<bool> give_back_asked{false};
  std::atomic<bool> leases_asked{false}, all_leases_asked{false};
  std::atomic<uint32_t> given_back{0};  // granules and leases, ever
  std::atomic<uint32_t> wanted_pages{0}, wanted_align{0};
  std::atomic<uint32_t> settled{0};  // rounds in which the engine's thread met the heap, and how many of them
  std::atomic<uint32_t> settled_with_memory{0};  // found memory for the reserve

  Migration* locked = nullptr;  // by the fork under way; heap_lock
  std::atomic<uint32_t> asked{static_cast<uint32_t>(Asked::nothing)};
  SwitchPages asked_switch = nullptr;
  void* asked_argument = nullptr;
};
extern Shared shared;

// lease_return.cc; the engine's thread. return_leases(): with heap_lock and the range's lock, the others: with
// neither of them.
void ask_for_room();  // where leases that are taken back do not fit into what there is
void return_leases();
bool has_left(uint32_t index);  // the segment's lease is given back, its addresses are in use
void empty_leases();

inline constexpr char engine_thread_name[] = "terrace-tier";
bool start_thread();  // of Shared::self; false: there is none
// threads.cc. It runs, and what it opens (the reader of faults is a second thread) is not all there.
bool engine_is_opening();
// By the names of the threads in /proc; false where that cannot be read. Allocates nothing, takes no lock.
bool proc_shows_one_program_thread();

void futex_wait(std::atomic<uint32_t>* word, uint32_t value, uint64_t ns);
void futex_wake(std::atomic<uint32_t>* word);
void wake_engine();
void put_state(supply::MigrationState now, uint32_t os_errno = 0);

// Of the engine's thread, with heap_lock and the range's lock held.
void import_heap_changes();  // it learns of charged granules and new segments
void resume_moving();        // nothing is private any more

}  // namespace terrace::preload::migration
