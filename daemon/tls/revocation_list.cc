// SPDX-License-Identifier: Apache-2.0
#include "daemon/tls/revocation_list.h"

#include <openssl/err.h>
#include <openssl/x509v3.h>

#include <algorithm>

#include "daemon/tls/certificate.h"
#include "daemon/tls/x509.h"

namespace terrace::daemon {

Result<RevocationList> read_revocation_list(const std::string& path, x509_st& ca) {
  const auto no_list = [&path](const std::string& why) {
    return Error{
        .code = ErrorCode::invalid_argument,
        .where = "tls",
        .detail = "the list of revoked certificates " + path + " " + why +
                  "; copy revoked.pem from the CA's directory (`terrace cert revoke --none` makes one there)"};
  };
  auto pem = read_credential(path, "list of revoked certificates", false);
  if (!pem.ok()) {
    Error error = pem.error();
    error.detail += "; it is revoked.pem in the CA's directory (`terrace cert revoke --none` makes one there)";
    return error;
  }
  const Ssl<BIO> bio = pem_reader(*pem);
  const Ssl<X509_CRL> crl(PEM_read_bio_X509_CRL(bio.get(), nullptr, nullptr, nullptr));
  ERR_clear_error();
  if (crl == nullptr) return no_list("is no PEM list");
  const bool ours = X509_NAME_cmp(X509_CRL_get_issuer(crl.get()), X509_get_subject_name(&ca)) == 0 &&
                    X509_CRL_verify(crl.get(), X509_get0_pubkey(&ca)) == 1;
  ERR_clear_error();
  if (!ours) return no_list("is of another CA than ours");
  RevocationList list;
  list.issuer = facts_of(ca).serial;
  STACK_OF(X509_REVOKED)* entries = X509_CRL_get_REVOKED(crl.get());
  for (int i = 0; i < sk_X509_REVOKED_num(entries); ++i)
    list.serials.insert(serial_text(*X509_REVOKED_get0_serialNumber(sk_X509_REVOKED_value(entries, i))));
  const Ssl<ASN1_INTEGER> number(
      static_cast<ASN1_INTEGER*>(X509_CRL_get_ext_d2i(crl.get(), NID_crl_number, nullptr, nullptr)));
  if (number != nullptr) list.number = std::max<int64_t>(ASN1_INTEGER_get(number.get()), 0);
  if (const ASN1_TIME* made = X509_CRL_get0_lastUpdate(crl.get())) list.made_s = unix_time(*made);
  if (const ASN1_TIME* until = X509_CRL_get0_nextUpdate(crl.get())) list.until_s = unix_time(*until);
  return list;
}

}  // namespace terrace::daemon
