// SPDX-License-Identifier: Apache-2.0
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

// Told of a peer that was refused although the CA signed its certificate: it was revoked, or its time is over. `why`
// names it.
using CertificateRefused = std::function<void(const CertificateFacts& peer, const std::string& why)>;

// `begin` has kj begin one handshake; `is_revoked` is asked for the serial when the peer shows a certificate that the
// CA signed, and once more at the end. `refused` may be empty; it is called once at most, before the promise is rejected.
// Rejected  as kj's promise; "its certificate (host:hostb, serial 12ab) was revoked", "... has expired",
//           "... is not valid yet"
kj::Promise<Shaken> watch_handshake(std::function<bool(const std::string& serial)> is_revoked,
                                    const std::function<kj::Promise<kj::AuthenticatedStream>()>& begin,
                                    CertificateRefused refused = {});

// "(host:hostb, serial 12ab)"
std::string shown_certificate(const CertificateFacts& facts);

}  // namespace terrace::daemon
