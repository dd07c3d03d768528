// SPDX-License-Identifier: Apache-2.0
// libcrypto's objects, owned. For the .cc files of this folder.
#pragma once

#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509_vfy.h>

#include <memory>
#include <string>

namespace terrace::daemon {

struct FreeX509 {
  void operator()(X509* certificate) const { X509_free(certificate); }
  void operator()(X509_CRL* list) const { X509_CRL_free(list); }
  void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
  void operator()(BIO* bio) const { BIO_free(bio); }
  void operator()(BIGNUM* number) const { BN_free(number); }
  void operator()(ASN1_INTEGER* number) const { ASN1_INTEGER_free(number); }
  void operator()(X509_STORE* store) const { X509_STORE_free(store); }
  void operator()(X509_STORE_CTX* context) const { X509_STORE_CTX_free(context); }
};
template <typename T>
using Ssl = std::unique_ptr<T, FreeX509>;

inline Ssl<BIO> pem_reader(const std::string& pem) {
  return Ssl<BIO>(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
}

std::string serial_text(const ASN1_INTEGER& serial);
int64_t unix_time(const ASN1_TIME& time);  // 0: it is none

}  // namespace terrace::daemon
