// SPDX-License-Identifier: Apache-2.0
// Peers of the agents' port without a certificate yet: each costs a TLS state, and may be an attacker. So there
// are few places, and a new peer always gets one: the oldest peer is dropped, of the same source first. An
// honest handshake takes milliseconds; a silent one soon is the oldest.
//
// Threads   The event loop's thread only.
#pragma once

#include <kj/async.h>
#include <kj/memory.h>

#include <list>
#include <string>

namespace terrace::daemon {

class Handshakes {
 public:
  static constexpr size_t all_max = 64;
  static constexpr size_t of_source_max = 8;

  Handshakes() = default;
  Handshakes(const Handshakes&) = delete;
  Handshakes& operator=(const Handshakes&) = delete;

  // `work` to its end, in a place of its own; rejected when that is needed for a newer one. `this` outlives it.
  template <typename T>
  kj::Promise<T> run(std::string source, kj::Promise<T> work) {
    make_room(source);
    auto given_up = kj::newPromiseAndFulfiller<T>();
    auto place = kj::heap<Place>(*this, std::move(source), kj::mv(given_up.fulfiller));
    return work.exclusiveJoin(kj::mv(given_up.promise)).attach(kj::mv(place));
  }
  size_t under_way() const { return places_.size(); }

 private:
  struct Place {
    Place(Handshakes& all_in, std::string source_in, kj::Own<kj::PromiseRejector> give_up_in);
    ~Place() noexcept(false);
    Handshakes& all;
    const std::string source;
    kj::Own<kj::PromiseRejector> give_up;
    std::list<Place*>::iterator at;  // end: given up already
  };

  void make_room(const std::string& source);
  void give_up(std::list<Place*>::iterator at, const char* why);

  std::list<Place*> places_;  // oldest first
};

// What counts as one source: an IPv4 address, an IPv6 network of 64 bits. Empty: `fd` is no such socket.
std::string source_of(int fd);

}  // namespace terrace::daemon
