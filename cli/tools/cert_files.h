// SPDX-License-Identifier: Apache-2.0
// What `terrace cert` keeps in the CA's directory, and how its files are read and written.
//
//   ca.pem ca.key   the CA
//   issued.pem      every certificate that it issued, one behind the other: what `cert list` and `cert revoke` know
//   revoked.pem     the list of those that are no good any more, signed by the CA: what terraced reads ([tls] revoked)
//
// Place     cli/tools/cert.cc makes certificates, cli/tools/cert_revoke.cc takes them back.
#pragma once

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include <memory>
#include <string>
#include <vector>

#include "core/base/result.h"

namespace terrace::cli {

struct FreeSsl {
  void operator()(X509* one) const { X509_free(one); }
  void operator()(X509_CRL* one) const { X509_CRL_free(one); }
  void operator()(X509_REVOKED* one) const { X509_REVOKED_free(one); }
  void operator()(X509_EXTENSION* one) const { X509_EXTENSION_free(one); }
  void operator()(EVP_PKEY* one) const { EVP_PKEY_free(one); }
  void operator()(BIO* one) const { BIO_free(one); }
  void operator()(BIGNUM* one) const { BN_free(one); }
  void operator()(ASN1_STRING* one) const { ASN1_STRING_free(one); }  // numbers and times
};
template <typename T>
using Ssl = std::unique_ptr<T, FreeSsl>;

inline constexpr const char* cert_where = "cert";
inline constexpr int64_t cert_day_s = 86'400;
inline constexpr int64_t cert_days_max = 36'500;

Error openssl_error(const std::string& what);
Error cert_error(std::string detail);

// --- files ---

bool path_exists(const std::string& path);
// Errors    already_exists   nothing is overwritten
Status write_new_file(const std::string& path, const std::string& content);
// All of it or none, and whoever reads meanwhile has one of both.
Status replace_file(const std::string& path, const std::string& content);
Status append_file(const std::string& path, const std::string& content);
Result<std::string> read_pem_file(const std::string& path);

template <typename Write>
Result<std::string> to_pem(Write write) {
  const Ssl<BIO> bio(BIO_new(BIO_s_mem()));
  if (bio == nullptr || write(bio.get()) != 1) return openssl_error("cannot write PEM");
  char* data = nullptr;
  const long bytes = BIO_get_mem_data(bio.get(), &data);
  return std::string(data, static_cast<size_t>(bytes));
}

Result<Ssl<X509>> read_certificate(const std::string& path);
Result<Ssl<EVP_PKEY>> read_key(const std::string& path);

// A CA's certificate and key, which fit; one process at a time has them.
struct Ca {
  std::string directory;
  Ssl<X509> certificate;
  Ssl<EVP_PKEY> key;
  int lock = -1;

  Ca() = default;
  Ca(Ca&& other) noexcept;
  Ca& operator=(Ca&&) = delete;
  ~Ca();
};
Result<Ca> open_ca(const std::string& directory);

// --- what a certificate says ---

std::string common_name(const X509& certificate);
std::string serial_text(
    const ASN1_INTEGER& serial);  // hexadecimal, lower case, as openssl and browsers show it
std::string cert_moment(const ASN1_TIME& time);
int64_t seconds_until(const ASN1_TIME& time);
std::string role_of(const X509& certificate);               // "manager", "agent", "client", "ca", "other"
std::vector<std::string> uris_of(const X509& certificate);  // alternative names that are URIs
std::string plain_name(const X509& certificate);            // "hostb" of "host:hostb"

}  // namespace terrace::cli
