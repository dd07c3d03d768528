// SPDX-License-Identifier: Apache-2.0
// Mutual TLS between a manager and its agents: the names in certificates of `terrace cert`, and contexts that
// accept no others. Certificates are of one private CA; a manager's has the common name "manager:NAME" and is
// valid for the server name `tls_server_name`, an agent's has "host:NAME".
//
// Place     daemon/tls/credentials.h, which agents.cc (manager) and daemon/agent/uplink.cc have; cli/tools/cert.cc
//           makes the certificates.
// Threads   The event loop's thread only.
#pragma once

#include <kj/async-io.h>
#include <kj/compat/tls.h>

#include <memory>
#include <string>

#include "core/base/host_names.h"
#include "core/base/result.h"
#include "daemon/tls/certificate.h"
#include "daemon/tls/revocation_list.h"

namespace terrace::daemon {

struct TlsFiles {
  std::string ca, certificate, key;  // PEM
  std::string revoked;               // a list of `terrace cert revoke`; empty: none
};

enum class TlsRole { manager, agent };

// What the files make: who this machine is, and whose word counts.
struct TlsIdentity {
  std::shared_ptr<kj::TlsContext> context;
  CertificateFacts ca, own;
};

// Reads and checks the files: the key fits, the CA signed it, its dates hold, it is for `role`.
// Errors    not_found, permission_denied, io_error   a file cannot be read
//           permission_denied   the key can be read by others
//           invalid_argument    one of them is not what it should be; says which, and what to do
Result<TlsIdentity> read_tls_identity(const TlsFiles& files, TlsRole role);

// The list of revoked certificates, which is of the CA in `files`.
// Errors    as read_revocation_list, and for the CA as above
Result<RevocationList> read_revoked(const TlsFiles& files);

// The name of the peer: "hostb" of "host:hostb".
// Errors    permission_denied   it is no certificate for `role`
Result<std::string> peer_name(const CertificateFacts& peer, TlsRole role);

// A failed handshake or connection in words that say whose certificate is wrong, and how.
std::string tls_failure(const kj::Exception& exception);
// Whether a handshake failed since a request of HTTP came in its place.
bool spoke_plain_http(const kj::Exception& exception);

// Keeps a connection from being taken for alive for long when the network is cut.
void set_keep_alive(int fd, uint64_t give_up_ns);

}  // namespace terrace::daemon
