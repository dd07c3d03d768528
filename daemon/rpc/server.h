// Accepts connections on the unix socket: authenticates each by the kernel (SO_PEERCRED), bounds what it may
// send, and serves it until it goes away. A bad message costs its own connection only.
//
// Threads   The event loop's thread only.
#pragma once

#include <kj/async-io.h>

#include <memory>
#include <string>

#include "core/base/result.h"
#include "daemon/rpc/service.h"

namespace terrace::daemon {

// Binds and listens at `path` with the given mode. A socket file that nobody answers on is replaced.
// Errors    busy   another daemon answers there
//           invalid_argument   the path is longer than a unix socket's name can be
Result<UniqueFd> listen_unix(const std::string& path, uint32_t mode);

class RpcServer final : private kj::TaskSet::ErrorHandler {
 public:
  RpcServer(Service& service, kj::LowLevelAsyncIoProvider& io, kj::Timer& timer, UniqueFd listener);

  // Serves one already connected stream; resolves when it is gone. Also the way in for tests and fuzzing.
  kj::Promise<void> serve(kj::Own<kj::AsyncCapabilityStream> stream, PeerCredentials peer);

 private:
  kj::Promise<void> accept_loop();
  void take(kj::AuthenticatedStream accepted);
  kj::Promise<void> run(kj::Own<kj::AsyncCapabilityStream> stream, PeerCredentials peer);
  void taskFailed(kj::Exception&& exception) override;

  Service& service_;
  kj::Timer& timer_;
  UniqueFd spare_;
  uint64_t refusal_logged_ns_ = 0;
  kj::Own<kj::ConnectionReceiver> receiver_;
  kj::TaskSet tasks_;
};

}  // namespace terrace::daemon
