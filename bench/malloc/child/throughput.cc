// SPDX-License-Identifier: Apache-2.0
// Objects a second where they live longer than a pair: a server's churn whose objects change threads (after
// Larson and Krishnan), a producer and a consumer, random sizes with random lifetimes.
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>

#include <atomic>

#include "bench/malloc/child/child.h"

namespace terrace::bench::child {
namespace {

struct Shared {
  unsigned threads;
  double begin_ns, until_ns;
  std::atomic<uint64_t> operations{0};
  std::atomic<bool> failed{false};

  explicit Shared(unsigned how_many, uint64_t ms)
      : threads(how_many), begin_ns(wall_ns()), until_ns(begin_ns + static_cast<double>(ms) * 1e6) {}
  bool over() const { return failed.load(std::memory_order_relaxed) || wall_ns() >= until_ns; }
  int finish() const {
    if (failed.load()) return 1;
    put(static_cast<double>(operations.load()) / ((wall_ns() - begin_ns) / 1e9));
    put(static_cast<double>(operations.load()) / (process_cpu_ns() / 1e9));
    return 0;
  }
};

// Puts a fresh object into a slot; its first and last bytes are stored to.
bool replace(void** slot, uint64_t bytes) {
  free(*slot);
  auto* block = static_cast<volatile char*>(malloc(bytes));
  *slot = const_cast<char*>(block);
  if (block == nullptr) return false;
  block[0] = 1;
  block[bytes - 1] = 1;
  return true;
}

// ---- larson

constexpr unsigned server_objects = 1000;
constexpr unsigned replacements_a_turn = 5000;
constexpr unsigned turns_a_thread = 40;  // then a successor goes on

struct Server : Shared {
  using Shared::Shared;
  struct Objects {
    void* slots[server_objects];
  };
  std::atomic<Objects*> between{nullptr};  // what one thread left for whoever comes next
};

struct Turn {
  Server* server;
  Server::Objects* objects;
  uint64_t seed;
};

void* serve(void* argument) {
  auto* turn = static_cast<Turn*>(argument);
  Random random{turn->seed};
  for (unsigned i = 0; i < turns_a_thread && !turn->server->over(); ++i) {
    for (unsigned k = 0; k < replacements_a_turn; ++k)
      if (!replace(&turn->objects->slots[random.below(server_objects)], random.log_uniform(4, 10))) {
        turn->server->failed = true;
        return nullptr;
      }
    turn->server->operations.fetch_add(replacements_a_turn, std::memory_order_relaxed);
    turn->objects = turn->server->between.exchange(turn->objects);
  }
  turn->seed = random.next() | 1;
  return nullptr;
}

void server_chain(void* argument, unsigned index) {
  auto* server = static_cast<Server*>(argument);
  Turn turn{server, static_cast<Server::Objects*>(mapped(sizeof(Server::Objects))),
            0x9e3779b97f4a7c15u + index};
  while (!server->over()) {
    pthread_t thread;
    if (pthread_create(&thread, nullptr, serve, &turn) != 0) {
      server->failed = true;
      return;
    }
    pthread_join(thread, nullptr);
  }
}

// ---- xmalloc

constexpr unsigned batch_objects = 64;
constexpr unsigned ring_batches = 64;

struct Ring {
  alignas(64) std::atomic<uint64_t> made{0};
  alignas(64) std::atomic<uint64_t> taken{0};
  void** batches[ring_batches];
};

struct Pairs : Shared {
  using Shared::Shared;
  Ring rings[8];
};

void produce(Pairs& pairs, Ring& ring, uint64_t seed) {
  Random random{seed};
  for (uint64_t made = 0; !pairs.over(); ++made) {
    // acquire: pairs with consume()
    while (made - ring.taken.load(std::memory_order_acquire) >= ring_batches) {
      if (pairs.over()) return;
      sched_yield();
    }
    auto** batch = static_cast<void**>(calloc(batch_objects, sizeof(void*)));
    bool ok = batch != nullptr;
    for (unsigned i = 0; ok && i < batch_objects; ++i) ok = replace(&batch[i], random.log_uniform(4, 9));
    if (!ok) return pairs.failed.store(true);
    ring.batches[made % ring_batches] = batch;
    ring.made.store(made + 1, std::memory_order_release);  // release: pairs with consume()
  }
}

void consume(Pairs& pairs, Ring& ring) {
  for (uint64_t taken = 0; !pairs.over(); ++taken) {
    while (ring.made.load(std::memory_order_acquire) == taken) {  // acquire: pairs with produce()
      if (pairs.over()) return;
      sched_yield();
    }
    void** batch = ring.batches[taken % ring_batches];
    for (unsigned i = 0; i < batch_objects; ++i) free(batch[i]);
    free(batch);
    ring.taken.store(taken + 1, std::memory_order_release);  // release: pairs with produce()
    pairs.operations.fetch_add(batch_objects, std::memory_order_relaxed);
  }
}

void producer_or_consumer(void* argument, unsigned index) {
  auto& pairs = *static_cast<Pairs*>(argument);
  Ring& ring = pairs.rings[index / 2];
  if (index % 2 == 0) return produce(pairs, ring, 0x9e3779b97f4a7c15u + index);
  consume(pairs, ring);
}

// ---- random sizes

constexpr unsigned random_slots = 4000;

void replace_at_random(void* argument, unsigned index) {
  auto& shared = *static_cast<Shared*>(argument);
  auto** slots = static_cast<void**>(mapped(random_slots * sizeof(void*)));
  Random random{0x9e3779b97f4a7c15u + index};
  while (!shared.over()) {
    for (unsigned i = 0; i < 1000; ++i)
      if (!replace(&slots[random.below(random_slots)], random.log_uniform(4, 16)))
        return shared.failed.store(true);
    shared.operations.fetch_add(1000, std::memory_order_relaxed);
  }
}

// ---- blocks of one size

constexpr unsigned set_blocks = 16;

struct Sets : Shared {
  using Shared::Shared;
  uint64_t bytes = 0;
};

void replace_in_set(void* argument, unsigned index) {
  auto& sets = *static_cast<Sets*>(argument);
  void* slots[set_blocks] = {};
  Random random{0x9e3779b97f4a7c15u + index};
  while (!sets.over()) {
    for (unsigned i = 0; i < 100; ++i)
      if (!replace(&slots[random.below(set_blocks)], sets.bytes)) return sets.failed.store(true);
    sets.operations.fetch_add(100, std::memory_order_relaxed);
  }
}

}  // namespace

int larson(const uint64_t* arguments) {
  Server server(static_cast<unsigned>(arguments[0]), arguments[1]);
  server.between = static_cast<Server::Objects*>(mapped(sizeof(Server::Objects)));
  on_threads(server.threads, server_chain, &server);
  return server.finish();
}

int xmalloc(const uint64_t* arguments) {
  static Pairs pairs(static_cast<unsigned>(arguments[0]), arguments[1]);
  if (pairs.threads > 8) return 2;
  on_threads(pairs.threads * 2, producer_or_consumer, &pairs);
  return pairs.finish();
}

int one_size(const uint64_t* arguments) {
  Sets sets(static_cast<unsigned>(arguments[1]), arguments[2]);
  sets.bytes = arguments[0];
  on_threads(sets.threads, replace_in_set, &sets);
  return sets.finish();
}

int random_sizes(const uint64_t* arguments) {
  Shared shared(static_cast<unsigned>(arguments[0]), arguments[1]);
  on_threads(shared.threads, replace_at_random, &shared);
  return shared.finish();
}

}  // namespace terrace::bench::child
