// SPDX-License-Identifier: Apache-2.0
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
bool links_forbidden();

// What `failure` (errno of a link that did not open or did not answer) means, for a message; static.
const char* link_failure(int failure);

// In a fork's child whose parent has interrupted a conversation of this thread's: what comes is for the parent,
// here the connection is broken.
void break_link_in_child();

// Where the supervisor listens; copied. False: too long for a socket address.
bool set_supply_path(const char* path);

// A connection. The descriptors that it received are closed with it unless taken.
class Link {
 public:
  Link() = default;
  ~Link();
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  // False: it cannot be opened (errno; EPERM also where links are forbidden).
  bool open();

  // Sends one request and waits for its reply. False: broken connection or malformed reply
  // (errno: EAGAIN no answer in time, ECONNRESET closed, EPROTO another version, EMFILE no room
  // for its descriptor, or the kernel's). `*fd`: the descriptor that came along, or -1; the
  // caller closes it.
  bool ask(const supply::Request& request, supply::Reply* reply, int* fd);

 private:
  int socket_ = -1;
  int interrupted_ =
      -1;  // this thread's open connection of before: a signal handler's fork asks for descriptors
};

void close_raw(int fd);

}  // namespace terrace::preload
