// A TLS handshake whose peer's certificate is looked at: kj tells its name only, and knows no revocation.
//
// libcrypto tells of each connection that is made (ex_data), so kj need not; the certificate is judged inside the
// handshake, so that a peer whose certificate is revoked hears just that.
//
// Threads   The event loop's thread only.
#pragma once

#include <kj/async-io.h>
#include <kj/memory.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "daemon/tls/certificate.h"

namespace terrace::daemon {

struct Shaken {
  kj::AuthenticatedStream stream;
  CertificateFacts peer;
};

// `begin` has kj begin one handshake; `is_revoked` is asked for the serial when the peer shows a certificate that the
// CA signed, and once more at the end.
// Rejected  as kj's promise; "its certificate (host:hostb, serial 12ab) was revoked"
kj::Promise<Shaken> watch_handshake(std::function<bool(const std::string& serial)> is_revoked,
                                    const std::function<kj::Promise<kj::AuthenticatedStream>()>& begin);

// "(host:hostb, serial 12ab)"
std::string shown_certificate(const CertificateFacts& facts);

}  // namespace terrace::daemon
