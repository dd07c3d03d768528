// SPDX-License-Identifier: Apache-2.0
#include "daemon/tls/handshakes.h"

#include <kj/exception.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>

namespace terrace::daemon {

Handshakes::Place::Place(Handshakes& all_in, std::string source_in, kj::Own<kj::PromiseRejector> give_up_in)
    : all(all_in),
      source(std::move(source_in)),
      give_up(kj::mv(give_up_in)),
      at(all.places_.insert(all.places_.end(), this)) {}

Handshakes::Place::~Place() noexcept(false) {
  if (at != all.places_.end()) all.places_.erase(at);
}

void Handshakes::make_room(const std::string& source) {
  const auto of_source = [&source](const Place* one) { return one->source == source; };
  const auto count = std::count_if(places_.begin(), places_.end(), of_source);
  if (static_cast<size_t>(count) >= of_source_max) {
    give_up(std::find_if(places_.begin(), places_.end(), of_source),
            "it showed no certificate, and others have come from its address since");
  } else if (places_.size() >= all_max) {
    give_up(places_.begin(), "it showed no certificate, and others have come since");
  }
}

void Handshakes::give_up(std::list<Place*>::iterator at, const char* why) {
  Place& place = **at;
  places_.erase(at);
  place.at = places_.end();
  place.give_up->reject(kj::Exception(kj::Exception::Type::OVERLOADED, __FILE__, __LINE__, kj::str(why)));
}

std::string source_of(int fd) {
  sockaddr_storage peer{};
  socklen_t bytes = sizeof(peer);
  if (::getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &bytes) != 0) return {};
  if (peer.ss_family == AF_INET) {
    const auto& address = reinterpret_cast<const sockaddr_in&>(peer).sin_addr;
    return {reinterpret_cast<const char*>(&address), sizeof(address)};
  }
  if (peer.ss_family != AF_INET6) return {};
  const auto& address = reinterpret_cast<const sockaddr_in6&>(peer).sin6_addr;
  const auto* octets = reinterpret_cast<const char*>(&address);
  constexpr size_t mapped_at = 12, network_bytes = 8;
  if (IN6_IS_ADDR_V4MAPPED(&address)) return {octets + mapped_at, sizeof(in_addr)};
  return {octets, network_bytes};
}

}  // namespace terrace::daemon
