// SPDX-License-Identifier: Apache-2.0
#include "cli/client/own_certificate.h"

#include <fcntl.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <ctime>
#include <memory>

#include "cli/client/connection.h"
#include "cli/client/tls_stream.h"
#include "cli/terminal/manager_place.h"
#include "cli/terminal/output_file.h"
#include "core/base/unique_fd.h"
#include "core/identity/certificate_life.h"

namespace terrace::cli {
namespace {

constexpr const char* renew_where = "renew";

struct FreeCertificate {
  void operator()(X509* one) const { X509_free(one); }
  void operator()(BIO* one) const { BIO_free(one); }
};
using Certificate = std::unique_ptr<X509, FreeCertificate>;

Certificate certificate_of(const std::string& pem) {
  const std::unique_ptr<BIO, FreeCertificate> bio(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
  Certificate found(bio == nullptr ? nullptr : PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr));
  ERR_clear_error();
  return found;
}

int64_t unix_seconds(const ASN1_TIME* time) {
  std::tm broken{};
  return ASN1_TIME_to_tm(time, &broken) == 1 ? static_cast<int64_t>(::timegm(&broken)) : 0;
}

// The whole extension as it stands: the rights are in it.
std::string alternative_names_der(const X509& certificate) {
  const int at = X509_get_ext_by_NID(&certificate, NID_subject_alt_name, -1);
  X509_EXTENSION* extension = at < 0 ? nullptr : X509_get_ext(&certificate, at);
  if (extension == nullptr) return "";
  const ASN1_OCTET_STRING* value = X509_EXTENSION_get_data(extension);
  return {reinterpret_cast<const char*>(ASN1_STRING_get0_data(value)),
          static_cast<size_t>(ASN1_STRING_length(value))};
}

bool may_replace(X509& fresh, X509& old, X509& ca) {
  const bool may = X509_NAME_cmp(X509_get_subject_name(&fresh), X509_get_subject_name(&old)) == 0 &&
                   alternative_names_der(fresh) == alternative_names_der(old) &&
                   EVP_PKEY_eq(X509_get0_pubkey(&fresh), X509_get0_pubkey(&old)) == 1 &&
                   unix_seconds(X509_get0_notAfter(&fresh)) > unix_seconds(X509_get0_notAfter(&old)) &&
                   X509_verify(&fresh, X509_get0_pubkey(&ca)) == 1;
  ERR_clear_error();
  return may;
}

std::string folder_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, slash + 1);
}

}  // namespace

OwnCertificate::OwnCertificate(const ClientFiles& files) : files_(files) {
  const Certificate read = certificate_of(files_.certificate);
  if (read == nullptr) return;
  char name[256] = "";
  X509_NAME_get_text_by_NID(X509_get_subject_name(read.get()), NID_commonName, name, sizeof(name));
  name_ = name;
  begins_s_ = unix_seconds(X509_get0_notBefore(read.get()));
  ends_s_ = unix_seconds(X509_get0_notAfter(read.get()));
}

bool OwnCertificate::renewal_is_due(int64_t now_s) const {
  return ends_s_ != 0 && terrace::renewal_is_due(begins_s_, ends_s_, now_s);
}

std::string OwnCertificate::end_warning(int64_t now_s) const {
  if (ends_s_ == 0 || !ends_soon(begins_s_, ends_s_, now_s)) return "";
  const int64_t days = days_left(ends_s_, now_s);
  return "the certificate " + files_.certificate_path + " of " + name_ + " ends within " +
         std::to_string(days + 1) + (days == 0 ? " day" : " days");
}

Status OwnCertificate::install(const std::string& pem) {
  const Certificate fresh = certificate_of(pem), old = certificate_of(files_.certificate),
                    ca = certificate_of(files_.ca);
  if (fresh == nullptr || old == nullptr || ca == nullptr || !may_replace(*fresh, *old, *ca)) {
    return Error{.code = ErrorCode::invalid_argument,
                 .where = renew_where,
                 .detail =
                     "what the manager sent as a renewed certificate is for another key, name or role, of "
                     "another CA, or ends sooner; " +
                     files_.certificate_path + " stays as it is"};
  }
  TERRACE_RETURN_IF_ERROR(write_atomically(files_.certificate_path, pem));
  files_.certificate = pem;
  *this = OwnCertificate(ClientFiles(files_));
  return {};
}

Status OwnCertificate::renew(Connection& connection) {
  if (::access(files_.certificate_path.c_str(), W_OK) != 0 ||
      ::access(folder_of(files_.certificate_path).c_str(), W_OK) != 0)
    return os_error(errno, renew_where,
                    "this user cannot write " + files_.certificate_path + " and its folder");
  // The key stays as it is: who has its lock renews.
  const UniqueFd key(::open(files_.key_path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!key.valid() || ::flock(key.get(), LOCK_EX | LOCK_NB) != 0) {
    if (key.valid() && errno == EWOULDBLOCK)
      return Error{.code = ErrorCode::busy,
                   .where = renew_where,
                   .detail = "another command renews " + files_.certificate_path + " just now"};
    return os_error(errno, renew_where, "cannot lock " + files_.key_path);
  }
  TERRACE_ASSIGN_OR_RETURN(const std::string pem,
                           connection.call(connection.gateway.renewCertificateRequest(), [](auto& reply) {
                             return client::text_from_wire(reply.getCertificate());
                           }));
  return install(pem);
}

Result<OwnCertificate> renew_own_certificate(const Context& context) {
  if (remote_address(context).empty()) {
    return Error{.code = ErrorCode::invalid_argument,
                 .where = renew_where,
                 .detail =
                     "a client's certificate is renewed by a manager over TLS: name it with --connect "
                     "tls://HOST:PORT or TERRACE_CONNECT"};
  }
  TERRACE_ASSIGN_OR_RETURN(const auto connection, Connection::open(context));
  TERRACE_RETURN_IF_ERROR(connection->certificate.renew(*connection));
  return connection->certificate;
}

}  // namespace terrace::cli
