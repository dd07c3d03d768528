// SPDX-License-Identifier: Apache-2.0
#include "daemon/tls/watched_handshake.h"

#include <openssl/ssl.h>

#include <utility>

#include "daemon/tls/x509.h"

namespace terrace::daemon {
namespace {

thread_local SSL* newest_connection = nullptr;

void connection_made(void* parent, void*, CRYPTO_EX_DATA*, int, long, void*) {
  newest_connection = static_cast<SSL*>(parent);
}

int handshake_slot() {
  static const int index = SSL_get_ex_new_index(0, nullptr, connection_made, nullptr, nullptr);
  return index;
}

struct WatchedHandshake {
  std::function<bool(const std::string&)> is_revoked;
  CertificateRefused refused;
  std::optional<CertificateFacts> peer;
  const char* why = nullptr;  // it is refused
};

// What libcrypto finds wrong with a certificate only once its signature held.
const char* out_of_time(int error) {
  if (error == X509_V_ERR_CERT_HAS_EXPIRED) return "has expired";
  if (error == X509_V_ERR_CERT_NOT_YET_VALID) return "is not valid yet";
  return nullptr;
}

// For each certificate from the CA's down; `ok`: nothing is wrong with it otherwise.
int judge(int ok, X509_STORE_CTX* context) {
  if (X509_STORE_CTX_get_error_depth(context) != 0) return ok;
  const char* late = ok == 1 ? nullptr : out_of_time(X509_STORE_CTX_get_error(context));
  if (ok != 1 && late == nullptr) return ok;
  auto* ssl = static_cast<SSL*>(X509_STORE_CTX_get_ex_data(context, SSL_get_ex_data_X509_STORE_CTX_idx()));
  auto* handshake =
      ssl == nullptr ? nullptr : static_cast<WatchedHandshake*>(SSL_get_ex_data(ssl, handshake_slot()));
  X509* certificate = X509_STORE_CTX_get_current_cert(context);
  if (handshake == nullptr || certificate == nullptr) return 0;
  handshake->peer = facts_of(*certificate);
  handshake->why = late;
  if (late != nullptr) return 0;
  if (!handshake->is_revoked(handshake->peer->serial)) return 1;
  handshake->why = "was revoked";
  X509_STORE_CTX_set_error(context, X509_V_ERR_CERT_REVOKED);
  return 0;
}

// A browser takes up an earlier session where it was given one: no certificate would be shown, and judged, again.
void never_resume(SSL& ssl) {
  SSL_set_options(&ssl, SSL_OP_NO_TICKET);
  SSL_set_num_tickets(&ssl, 0);
  SSL_CTX_set_session_cache_mode(SSL_get_SSL_CTX(&ssl), SSL_SESS_CACHE_OFF);
}

// Of all certificates that a browser has its user is asked for one of these CAs' only.
void name_authorities(SSL& ssl) {
  const auto* trusted = X509_STORE_get0_objects(SSL_CTX_get_cert_store(SSL_get_SSL_CTX(&ssl)));
  for (int i = 0; i < sk_X509_OBJECT_num(trusted); ++i) {
    const X509* ca = X509_OBJECT_get0_X509(sk_X509_OBJECT_value(trusted, i));
    if (ca != nullptr) SSL_add_client_CA(&ssl, const_cast<X509*>(ca));
  }
}

[[noreturn]] void refuse_handshake(const std::string& why) {
  kj::throwFatalException(kj::Exception(kj::Exception::Type::FAILED, __FILE__, __LINE__, kj::str(why.c_str())));
}

void throw_if_refused(const WatchedHandshake& handshake) {
  if (handshake.why == nullptr) return;
  const std::string why = "its certificate " + shown_certificate(*handshake.peer) + " " + handshake.why;
  if (handshake.refused) handshake.refused(*handshake.peer, why);
  refuse_handshake(why);
}

}  // namespace

std::string shown_certificate(const CertificateFacts& facts) {
  return "(" + facts.name + ", serial " + facts.serial + ")";
}

kj::Promise<Shaken> watch_handshake(std::function<bool(const std::string& serial)> is_revoked,
                                    const std::function<kj::Promise<kj::AuthenticatedStream>()>& begin,
                                    CertificateRefused refused) {
  const int slot = handshake_slot();
  newest_connection = nullptr;
  kj::Promise<kj::AuthenticatedStream> shaking = begin();
  SSL* ssl = std::exchange(newest_connection, nullptr);
  auto handshake = kj::heap<WatchedHandshake>();
  handshake->is_revoked = std::move(is_revoked);
  handshake->refused = std::move(refused);
  WatchedHandshake& watched = *handshake;
  // Without it nothing would be looked at: rather no connection.
  if (ssl == nullptr || SSL_set_ex_data(ssl, slot, &watched) != 1)
    refuse_handshake("this TLS library does not tell of its connections");
  SSL_set_verify(ssl, SSL_get_verify_mode(ssl), judge);
  never_resume(*ssl);
  if (SSL_is_server(ssl) == 1) name_authorities(*ssl);
  return shaking
      .then(
          [&watched, ssl, slot](kj::AuthenticatedStream stream) {
            SSL_set_ex_data(ssl, slot, nullptr);  // another handshake of this connection would be refused
            if (!watched.peer.has_value()) refuse_handshake("it showed no certificate in this handshake");
            if (watched.is_revoked(watched.peer->serial)) watched.why = "was revoked";  // by now
            throw_if_refused(watched);
            return Shaken{kj::mv(stream), *watched.peer};
          },
          [&watched](kj::Exception&& exception) -> Shaken {
            throw_if_refused(watched);
            kj::throwFatalException(kj::mv(exception));
          })
      .attach(kj::mv(handshake));
}

}  // namespace terrace::daemon
