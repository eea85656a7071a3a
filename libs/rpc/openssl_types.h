// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_RPC_OPENSSL_TYPES_H_
#define TALWEG_LIBS_RPC_OPENSSL_TYPES_H_

#include <openssl/bio.h>
#include <openssl/evp.h>
#include <openssl/x509.h>
#include <openssl/x509_vfy.h>

#include <cstdio>
#include <memory>

// OpenSSL's objects, freed by their owners. For this library's sources.
namespace talweg::rpc {

template <auto free_function>
struct FreeWith {
  template <typename T>
  void operator()(T* object) const {
    free_function(object);
  }
};

template <typename T, auto free_function>
using Owned = std::unique_ptr<T, FreeWith<free_function>>;

using OwnedCertificate = Owned<X509, X509_free>;
using OwnedRevocationList = Owned<X509_CRL, X509_CRL_free>;
using OwnedStore = Owned<X509_STORE, X509_STORE_free>;
using OwnedStoreContext = Owned<X509_STORE_CTX, X509_STORE_CTX_free>;
using OwnedBio = Owned<BIO, BIO_free>;
using OwnedKey = Owned<EVP_PKEY, EVP_PKEY_free>;
using OwnedFile = Owned<std::FILE, std::fclose>;

}  // namespace talweg::rpc

#endif  // TALWEG_LIBS_RPC_OPENSSL_TYPES_H_
