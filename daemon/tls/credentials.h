// SPDX-License-Identifier: Apache-2.0
// This machine's certificate, and whom it lets in: read at the start, and again whenever one of the files changes, so
// that a renewed certificate and a longer list of revoked ones take effect without a restart.
//
// Place     role_manager.cc and role_agent.cc make one; Agents, Clients and Uplink have their handshakes through it.
// Threads   The event loop's thread only.
//
// A file that changed is taken once it has stayed the same for a second (it was being copied). What cannot be used then
// is an error in the log, and what was read before stays; so does a list that is older than the one in use.
#pragma once

#include <kj/async.h>
#include <kj/timer.h>

#include <array>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "daemon/model/certificate_end.h"
#include "daemon/tls/issued.h"
#include "daemon/tls/tls.h"
#include "daemon/tls/watched_handshake.h"

namespace terrace::daemon {

class Credentials {
 public:
  // Errors    as read_tls_identity, read_revoked
  static Result<Credentials> read(TlsFiles files, TlsRole role, kj::Timer& timer);

  // `within`: how long the peer has for its handshake.
  kj::Promise<Shaken> accept(kj::AuthenticatedStream stream, CertificateRefused refused = {},
                             kj::Duration within = 5 * kj::SECONDS);
  kj::Promise<Shaken> connect(kj::AuthenticatedStream stream);  // to a manager

  bool is_revoked(const std::string& serial) const { return revoked_.has(serial); }
  // The names of hosts that our own certificate is for.
  const std::vector<std::string>& own_names() const { return identity_.own.dns_names; }
  // When the CA, the certificate, and the list of revoked ones end.
  std::vector<CertificateEnd> ends(int64_t now_s) const;

  // --- renewing: a manager that has the CA's key, and an agent that asks for it ---
  // Errors    as read_issuer
  Status issue_with(const std::string& ca_key, int64_t days);
  // Another certificate for the holder of `old`, noted beside the CA's key. Whoever asks again with one that was renewed
  // already gets what was made then, until half of that one's life is over: a name has two of each life at most.
  // Errors    unsupported         there is no CA key
  //           busy                it is not time yet, and when it is; or `terrace cert` is at work there
  //           permission_denied   what was made then is revoked
  Result<std::string> renew(const CertificateFacts& old);
  // Whether our own should be renewed now. At most once an hour.
  bool wants_renewal();
  // Puts another certificate for our own key and name in the place of ours; it is read as any change is.
  Status install(const std::string& pem);

  // Has `changed` called after a file that has changed was taken, as long as this lives.
  void on_change(std::function<void()> changed) { changed_.push_back(std::move(changed)); }
  // Looks at the files each second; says once a day what ends soon. Never ends.
  kj::Promise<void> watch();

 private:
  struct Seen {  // of one file, by stat
    uint64_t device = 0, inode = 0, bytes = 0;
    int64_t changed_s = 0, changed_ns = 0;
    bool operator==(const Seen&) const = default;
  };
  using SeenAll = std::array<Seen, 4>;

  Credentials(TlsFiles files, TlsRole role, kj::Timer& timer, SeenAll seen, TlsIdentity identity,
              RevocationList revoked);
  static SeenAll look_at(const TlsFiles& files);
  bool look_again();
  bool take_identity();
  bool take_list();
  void warn_of_ends();
  void renew_own();

  TlsFiles files_;
  TlsRole role_;
  kj::Timer* timer_;
  SeenAll used_, last_;
  TlsIdentity identity_;
  RevocationList revoked_;  // empty: nobody
  int64_t warned_s_ = 0, asked_s_ = 0;
  std::vector<std::function<void()>> changed_;
  std::optional<Issuer> issuer_;
  std::optional<IssuedFile> issued_;
};

// What to say of one that ends soon. Empty: it does not.
std::string end_warning(const CertificateEnd& end);

}  // namespace terrace::daemon
