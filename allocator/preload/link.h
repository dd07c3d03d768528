// The way to the supervisor: one short connection for each need, nothing kept open in between.
//
// Threads   The caller's supply lock. Raw system calls only: no cancellation point, no allocation.
#pragma once

#include <cstddef>
#include <cstdint>

#include "allocator/supply/protocol.h"

namespace terrace::preload {

// From now on no link opens: the program filters its system calls, and a filter may kill for a socket.
void forbid_links();

// Where the supervisor listens; copied. False: too long for a socket address.
bool set_supply_path(const char* path);

// A connection. The descriptors that it received are closed with it unless taken.
class Link {
 public:
  Link() = default;
  ~Link();
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  // False: nobody listens there (errno).
  bool open();

  // Sends one request and waits for its reply. False: broken connection or malformed reply.
  // `*fd`: the descriptor that came along, or -1; the caller closes it.
  bool ask(const supply::Request& request, supply::Reply* reply, int* fd);

 private:
  int socket_ = -1;
};

void close_raw(int fd);

}  // namespace terrace::preload
