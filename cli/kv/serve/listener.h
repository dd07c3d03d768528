// SPDX-License-Identifier: Apache-2.0
// The socket on which `terrace kv serve` is found: TCP, or a path.
//
// Ownership Removes a path that it made, unless somebody else has it by then.
// Threads   One.
#pragma once

#include <sys/stat.h>

#include <string>

#include "core/base/result.h"
#include "core/base/unique_fd.h"

namespace terrace::kv_serve {

class Listener {
 public:
  // `address`: "unix:PATH", "HOST:PORT" or "[HOST]:PORT"; a host is a number or localhost, port 0 any free one.
  // `anywhere`: also where other machines can reach it.
  // Errors    invalid_argument   it is no such address
  //           permission_denied  others than this machine could reach it
  //           busy               somebody listens there
  //           others             as os_error
  static Result<Listener> open(const std::string& address, bool anywhere);
  Listener(Listener&& other) noexcept;
  Listener& operator=(Listener&&) = delete;
  ~Listener();

  int fd() const { return socket_.get(); }
  bool is_tcp() const { return path_.empty(); }
  const std::string& shown() const { return shown_; }  // "127.0.0.1:6399", with the port that it has

 private:
  Listener() = default;
  static Result<Listener> open_tcp(const std::string& address, bool anywhere);
  static Result<Listener> open_path(const std::string& path);

  UniqueFd socket_;
  std::string shown_;
  std::string path_;
  struct stat made_ {};  // the path, when it was made
};

}  // namespace terrace::kv_serve
