// SPDX-License-Identifier: Apache-2.0
#include "daemon/tls/tls.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/x509v3.h>
#include <sys/socket.h>

#include "core/base/units.h"
#include "daemon/tls/x509.h"

namespace terrace::daemon {
namespace {

constexpr const char* where = "tls";
Error wrong(std::string detail) {
  return Error{.code = ErrorCode::invalid_argument, .where = where, .detail = std::move(detail)};
}

Result<std::string> read_pem(const std::string& path, const char* what, bool secret) {
  if (path.empty()) {
    return wrong(std::string("no ") + what +
                 " is given; [tls] in the configuration, or --tls-ca, --tls-cert and "
                 "--tls-key name the files that `terrace cert` makes");
  }
  return read_credential(path, what, secret);
}

Ssl<X509> parse_certificate(const std::string& pem) {
  const Ssl<BIO> bio = pem_reader(pem);
  return Ssl<X509>(PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr));
}

Ssl<EVP_PKEY> parse_key(const std::string& pem) {
  const Ssl<BIO> bio = pem_reader(pem);
  return Ssl<EVP_PKEY>(PEM_read_bio_PrivateKey(bio.get(), nullptr, nullptr, nullptr));
}

std::string prefix_of(TlsRole role) {
  return std::string(role == TlsRole::manager ? manager_certificate_prefix : host_certificate_prefix);
}

// What the peer would find wrong, said here first.
Status check(const TlsFiles& files, X509& ca, X509& certificate, EVP_PKEY& key, TlsRole role) {
  if (X509_check_private_key(&certificate, &key) != 1)
    return wrong("the key " + files.key + " does not belong to the certificate " + files.certificate);
  if (const std::string name = facts_of(certificate).name; !name.starts_with(prefix_of(role))) {
    return wrong("the certificate " + files.certificate + " is for '" + name + "', and this is " +
                 (role == TlsRole::manager ? "a manager; `terrace cert issue NAME --manager` makes one"
                                           : "an agent; `terrace cert issue NAME` makes one"));
  }
  const Ssl<X509_STORE> store(X509_STORE_new());
  const Ssl<X509_STORE_CTX> context(X509_STORE_CTX_new());
  X509_STORE_add_cert(store.get(), &ca);
  X509_STORE_CTX_init(context.get(), store.get(), &certificate, nullptr);
  X509_STORE_CTX_set_purpose(context.get(),
                             role == TlsRole::manager ? X509_PURPOSE_SSL_SERVER : X509_PURPOSE_SSL_CLIENT);
  if (X509_verify_cert(context.get()) != 1) {
    return wrong("the certificate " + files.certificate + " cannot be used with the CA " + files.ca + ": " +
                 X509_verify_cert_error_string(X509_STORE_CTX_get_error(context.get())) +
                 "; `terrace cert show` tells its dates and names, `terrace cert issue` makes a new one");
  }
  return {};
}

}  // namespace

Result<TlsIdentity> read_tls_identity(const TlsFiles& files, TlsRole role) {
  TERRACE_ASSIGN_OR_RETURN(const std::string ca_pem, read_pem(files.ca, "CA certificate", false));
  TERRACE_ASSIGN_OR_RETURN(const std::string certificate_pem,
                           read_pem(files.certificate, "certificate", false));
  TERRACE_ASSIGN_OR_RETURN(const std::string key_pem, read_pem(files.key, "key", true));
  const Ssl<X509> ca = parse_certificate(ca_pem);
  if (ca == nullptr) return wrong(files.ca + " is no PEM certificate");
  const Ssl<X509> certificate = parse_certificate(certificate_pem);
  if (certificate == nullptr) return wrong(files.certificate + " is no PEM certificate");
  const Ssl<EVP_PKEY> key = parse_key(key_pem);
  if (key == nullptr) return wrong(files.key + " is no PEM key without a password");
  TERRACE_RETURN_IF_ERROR(check(files, *ca, *certificate, *key, role));
  const kj::TlsCertificate trusted{kj::StringPtr(ca_pem.c_str(), ca_pem.size())};
  const kj::TlsKeypair pair{kj::TlsPrivateKey(kj::StringPtr(key_pem.c_str(), key_pem.size())),
                            kj::TlsCertificate(kj::StringPtr(certificate_pem.c_str(), certificate_pem.size()))};
  kj::TlsContext::Options options;
  options.useSystemTrustStore = false;
  options.verifyClients = true;
  options.trustedCertificates = kj::arrayPtr(&trusted, 1);
  options.minVersion = kj::TlsVersion::TLS_1_2;
  options.defaultKeypair = pair;
  TlsIdentity identity;
  identity.context = std::make_shared<kj::TlsContext>(options);
  identity.ca = facts_of(*ca);
  identity.own = facts_of(*certificate);
  return identity;
}

Result<RevocationList> read_revoked(const TlsFiles& files) {
  TERRACE_ASSIGN_OR_RETURN(const std::string pem, read_pem(files.ca, "CA certificate", false));
  const Ssl<X509> ca = parse_certificate(pem);
  if (ca == nullptr) return wrong(files.ca + " is no PEM certificate");
  return read_revocation_list(files.revoked, *ca);
}

Result<std::string> peer_name(const CertificateFacts& peer, TlsRole role) {
  const std::string prefix = prefix_of(role);
  if (!peer.name.starts_with(prefix)) {
    return Error{.code = ErrorCode::permission_denied,
                 .where = where,
                 .detail = "its certificate is for '" + peer.name + "', not for a " +
                           prefix.substr(0, prefix.size() - 1)};
  }
  return peer.name.substr(prefix.size());
}

bool spoke_plain_http(const kj::Exception& exception) {
  return std::string(exception.getDescription().cStr()).find("http request") != std::string::npos;
}

std::string tls_failure(const kj::Exception& exception) {
  const std::string text = exception.getDescription().cStr();
  const auto says = [&text](const char* part) { return text.find(part) != std::string::npos; };
  if (says("alert certificate expired"))
    return "the other side refused our certificate: it has expired. `terrace cert issue` makes a new one";
  if (says("alert certificate revoked"))
    return "the other side refused our certificate: it was revoked. `terrace cert issue` makes a new one";
  if (says("alert unknown ca") || says("alert bad certificate") || says("alert unsupported certificate"))
    return "the other side refused our certificate: it is of another CA than its own";
  if (says("certificate verify failed") || says("not trusted"))
    return "the other side's certificate was refused: it is of another CA than ours, has expired, or is not "
           "for "
           "what it does (" +
           text + ")";
  if (says("peer did not return a certificate")) return "the other side showed no certificate";
  if (spoke_plain_http(exception)) return "the other side speaks plain HTTP, and does not speak TLS";
  if (says("wrong version number") || says("unknown protocol") || says("packet length"))
    return "the other side does not speak TLS";
  return text;
}

void set_keep_alive(int fd, uint64_t give_up_ns) {
  const int on = 1;
  const int seconds = static_cast<int>(std::max<uint64_t>(give_up_ns / ns_per_s, 1));
  const unsigned milliseconds = static_cast<unsigned>(give_up_ns / ns_per_ms);
  ::setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &seconds, sizeof(seconds));
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &seconds, sizeof(seconds));
  ::setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &milliseconds, sizeof(milliseconds));
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

}  // namespace terrace::daemon
