// SPDX-License-Identifier: Apache-2.0
// The unix sockets that a daemon binds: their files, with owner and mode, and the end of those files.
//
// Threads   The event loop's thread only.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "core/base/result.h"
#include "core/base/unique_fd.h"

namespace terrace::daemon {

struct SocketPlace {
  std::string path;
  uint32_t mode = 0600;
  std::optional<uint32_t> owner, group;  // none: the daemon's
};

// The file of a socket that was bound. Removes it at its end, unless another one has taken its place meanwhile.
class SocketFile {
 public:
  SocketFile() = default;
  // `itself`: the file, open, so that no other one gets its number.
  SocketFile(std::string path, UniqueFd itself) : path_(std::move(path)), itself_(std::move(itself)) {}
  SocketFile(SocketFile&&) = default;
  SocketFile& operator=(SocketFile&&) = delete;
  ~SocketFile() { remove(); }

  void remove();

 private:
  std::string path_;
  UniqueFd itself_;  // not valid: nothing is left to remove
};

struct BoundSocket {
  SocketFile file;
  UniqueFd listener;
};

// Binds and listens there. A socket file that nobody answers on is replaced. Nobody can connect before owner and mode are
// set, and these are set on the file that was bound, whoever may write to its folder.
// Errors    busy   another daemon answers there
//           already_exists   something there is no socket
//           invalid_argument   the path is longer than a unix socket's name can be
Result<BoundSocket> listen_unix(const SocketPlace& place);

}  // namespace terrace::daemon
