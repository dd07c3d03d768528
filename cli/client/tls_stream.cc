// SPDX-License-Identifier: Apache-2.0
#include "cli/client/tls_stream.h"

#include <fcntl.h>
#include <kj/compat/tls.h>
#include <kj/debug.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <vector>

#include "cli/terminal/manager_place.h"
#include "core/base/host_names.h"
#include "core/base/unique_fd.h"

namespace terrace::cli {
namespace {

constexpr const char* tls_where = "connect";
constexpr size_t tls_file_bytes_max = 1 << 20;

Error tls_error(ErrorCode code, std::string detail) {
  return Error{.code = code, .where = tls_where, .detail = std::move(detail)};
}

// The option, else the variable, else the file of this user.
std::string choose(const std::string& option, const char* variable, const char* file) {
  if (!option.empty()) return option;
  if (const char* set = std::getenv(variable); set != nullptr && *set != '\0') return set;
  const char* config = std::getenv("XDG_CONFIG_HOME");
  const char* home = std::getenv("HOME");
  if (config != nullptr && *config == '/') return std::string(config) + "/terrace/" + file;
  return std::string(home == nullptr ? "" : home) + "/.config/terrace/" + file;
}

Result<std::string> read_tls_file(const std::string& path, const std::string& what, bool secret) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.valid()) {
    return os_error(
        errno, tls_where,
        "the " + what + " " + path + " cannot be read; `terrace cert client` makes it where the CA is");
  }
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) return os_error(errno, tls_where, "cannot look at " + path);
  if (secret && (status.st_mode & 077) != 0) {
    return tls_error(
        ErrorCode::permission_denied,
        "the " + what + " " + path + " can be read by others; whoever has it is this client. chmod 600 it");
  }
  std::string content(tls_file_bytes_max + 1, '\0');
  size_t bytes = 0;
  while (bytes < content.size()) {
    const ssize_t n = ::read(file.get(), content.data() + bytes, content.size() - bytes);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return os_error(errno, tls_where, "cannot read " + path);
    if (n == 0) break;
    bytes += static_cast<size_t>(n);
  }
  if (bytes > tls_file_bytes_max)
    return tls_error(ErrorCode::invalid_argument, "the " + what + " " + path + " is larger than any should be");
  content.resize(bytes);
  return content;
}

// "HOST:PORT" of "tls://HOST:PORT".
Result<std::string> host_and_port(const std::string& address) {
  constexpr std::string_view scheme = "tls://";
  const std::string rest = address.starts_with(scheme) ? address.substr(scheme.size()) : "";
  const size_t colon = rest.rfind(':');
  const std::string port = colon == std::string::npos ? "" : rest.substr(colon + 1);
  const bool digits =
      !port.empty() && port.size() <= 5 && port.find_first_not_of("0123456789") == std::string::npos;
  if (!digits || colon == 0 || std::stoul(port) < 1 || std::stoul(port) > 65535 ||
      rest.find_first_of(" /@*") != std::string::npos) {
    return tls_error(ErrorCode::invalid_argument, "'" + address +
                                                      "' is no manager's address: write tls://HOST:PORT, as "
                                                      "tls://10.0.0.1:7443 or tls://[fd00::1]:7443");
  }
  return rest;
}

// kj throws at a file that is no PEM, and at a key that is another certificate's.
Result<kj::Own<kj::TlsContext>> make_context(const ClientFiles& files) {
  const auto text = [](const std::string& pem) { return kj::StringPtr(pem.c_str(), pem.size()); };
  const char* what = "";
  const std::string* path = nullptr;
  try {
    what = "is no PEM certificate of a CA";
    path = &files.ca_path;
    const kj::TlsCertificate trusted{text(files.ca)};
    what = "is no PEM key without a password";
    path = &files.key_path;
    kj::TlsPrivateKey key(text(files.key));
    what = "is no PEM certificate";
    path = &files.certificate_path;
    const kj::TlsKeypair pair{kj::mv(key), kj::TlsCertificate(text(files.certificate))};
    what = "cannot be used with its key (--tls-key): it is another certificate's, or too weak";
    kj::TlsContext::Options options;
    options.useSystemTrustStore = false;
    options.trustedCertificates = kj::arrayPtr(&trusted, 1);
    options.minVersion = kj::TlsVersion::TLS_1_2;
    options.defaultKeypair = pair;
    return kj::heap<kj::TlsContext>(options);
  } catch (const kj::Exception&) {
    return tls_error(ErrorCode::invalid_argument, *path + " " + what);
  }
}

// A manager that is gone without a word is found by this, where no call waits: `events --follow`.
void keep_alive(int fd) {
  const int on = 1, seconds = 20;
  ::setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &seconds, sizeof(seconds));
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &seconds, sizeof(seconds));
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

// The manager judges our certificate when our first messages are on their way already. A write that fails would then end
// the connection before the alert that says why was read: so it fails a moment later.
class LateWriteErrors final : public kj::AsyncIoStream {
 public:
  LateWriteErrors(kj::Own<kj::AsyncIoStream> inner, kj::Timer& timer) : inner_(kj::mv(inner)), timer_(timer) {}

  kj::Promise<size_t> tryRead(void* buffer, size_t bytes_min, size_t bytes_max) override {
    return inner_->tryRead(buffer, bytes_min, bytes_max);
  }
  kj::Promise<void> write(const void* buffer, size_t bytes) override {
    return later(inner_->write(buffer, bytes));
  }
  kj::Promise<void> write(kj::ArrayPtr<const kj::ArrayPtr<const kj::byte>> pieces) override {
    return later(inner_->write(pieces));
  }
  kj::Promise<void> whenWriteDisconnected() override { return inner_->whenWriteDisconnected(); }
  void shutdownWrite() override { inner_->shutdownWrite(); }
  void abortRead() override { inner_->abortRead(); }

 private:
  kj::Promise<void> later(kj::Promise<void> written) {
    return written.catch_([this](kj::Exception&& exception) {
      return timer_.afterDelay(500 * kj::MILLISECONDS).then([exception = kj::mv(exception)]() mutable {
        kj::throwFatalException(kj::mv(exception));
      });
    });
  }

  kj::Own<kj::AsyncIoStream> inner_;
  kj::Timer& timer_;
};

bool says(const std::string& text, const char* part) {
  return text.find(part) != std::string::npos;
}

Error handshake_error(const std::string& address, const std::string& text) {
  if (const std::string refused = refused_over_tls(text); !refused.empty())
    return tls_error(ErrorCode::permission_denied, "the manager at " + address + " " + refused);
  if (says(text, "certificate verify failed") || says(text, "not trusted") || says(text, "ostname mismatch")) {
    return tls_error(ErrorCode::permission_denied,
                     "what answers at " + address +
                         " is not a manager of the CA in --tls-ca, or its certificate "
                         "has expired (" +
                         text + ")");
  }
  if (says(text, "wrong version number") || says(text, "unknown protocol") || says(text, "packet length"))
    return tls_error(ErrorCode::unavailable, "what answers at " + address + " does not speak TLS");
  return tls_error(ErrorCode::unavailable,
                   "no manager answers at " + address + " (" + text +
                       "); name its [[sockets]] listen with --connect or TERRACE_CONNECT");
}

}  // namespace

std::string refused_over_tls(const std::string& description) {
  if (says(description, "alert certificate expired"))
    return "refused our certificate: it has expired. `terrace cert client` makes a new one";
  if (says(description, "alert certificate revoked"))
    return "refused our certificate: it was revoked. `terrace cert client` makes a new one";
  if (says(description, "alert unknown ca") || says(description, "alert bad certificate") ||
      says(description, "alert unsupported certificate"))
    return "refused our certificate: it is of another CA than the manager's, or for something else";
  if (says(description, "alert certificate required")) return "wants a certificate, and got none";
  return "";
}

Result<ClientFiles> read_client_files(const RemoteOptions& options) {
  ClientFiles files;
  files.ca_path = choose(options.ca, "TERRACE_TLS_CA", "ca.pem");
  files.certificate_path = choose(options.certificate, "TERRACE_TLS_CERT", "client.pem");
  files.key_path = choose(options.key, "TERRACE_TLS_KEY", "client.key");
  TERRACE_ASSIGN_OR_RETURN(files.ca, read_tls_file(files.ca_path, "CA certificate (--tls-ca)", false));
  TERRACE_ASSIGN_OR_RETURN(files.certificate,
                           read_tls_file(files.certificate_path, "certificate (--tls-cert)", false));
  TERRACE_ASSIGN_OR_RETURN(files.key, read_tls_file(files.key_path, "key (--tls-key)", true));
  return files;
}

Result<kj::Own<kj::AsyncIoStream>> connect_over_tls(const Context& context, const ClientFiles& files,
                                                    kj::AsyncIoContext& io) {
  const std::string address = remote_address(context);
  TERRACE_ASSIGN_OR_RETURN(const std::string place, host_and_port(address));
  TERRACE_ASSIGN_OR_RETURN(kj::Own<kj::TlsContext> tls, make_context(files));
  const std::string name = context.remote.server_name.empty() ? tls_server_name : context.remote.server_name;
  bool late = false;
  try {
    kj::Network& network = io.provider->getNetwork();
    auto shaken = network.parseAddress(place.c_str())
                      .then([](kj::Own<kj::NetworkAddress> found) {
                        auto connecting = found->connect();
                        return connecting.attach(kj::mv(found));
                      })
                      .then([&tls, &name](kj::Own<kj::AsyncIoStream> stream) {
                        KJ_IF_MAYBE (fd, stream->getFd()) keep_alive(*fd);
                        return tls->wrapClient(kj::mv(stream), name.c_str());
                      });
    auto limit = io.provider->getTimer()
                     .afterDelay(static_cast<int64_t>(context.call_timeout_ns) * kj::NANOSECONDS)
                     .then([&late]() -> kj::Promise<kj::Own<kj::AsyncIoStream>> {
                       late = true;
                       return KJ_EXCEPTION(OVERLOADED, "time limit");
                     });
    kj::Own<kj::AsyncIoStream> stream = shaken.exclusiveJoin(kj::mv(limit)).wait(io.waitScope);
    return kj::Own<kj::AsyncIoStream>(kj::heap<LateWriteErrors>(kj::mv(stream), io.provider->getTimer()));
  } catch (const kj::Exception& exception) {
    if (late) {
      return tls_error(ErrorCode::unavailable,
                       "nothing came from " + address + " within " + format_duration(context.call_timeout_ns));
    }
    return handshake_error(address, exception.getDescription().cStr());
  }
}

}  // namespace terrace::cli
