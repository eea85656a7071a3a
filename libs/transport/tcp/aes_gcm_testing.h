// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_TRANSPORT_TCP_AES_GCM_TESTING_H_
#define TALWEG_LIBS_TRANSPORT_TCP_AES_GCM_TESTING_H_

#include <cstddef>
#include <string_view>
#include <vector>

#include "libs/transport/tcp/aes_gcm.h"

// Shared by tests with published bytes.
namespace talweg::transport {

inline std::vector<std::byte> Hex(std::string_view text) {
  const auto digit = [](char c) { return c <= '9' ? c - '0' : c - 'a' + 10; };
  std::vector<std::byte> bytes;
  for (size_t i = 0; i + 1 < text.size(); i += 2) {
    bytes.push_back(static_cast<std::byte>(16 * digit(text[i]) + digit(text[i + 1])));
  }
  return bytes;
}

// Returns the implementations on this machine; aes_gcm_test reports a missing one.
inline std::vector<AesCode> AesCodes() {
  if (FastestAesCode() == AesCode::kOpenSsl) return {AesCode::kOpenSsl};
  return {AesCode::kOpenSsl, AesCode::kIpsecMb};
}

}  // namespace talweg::transport

#endif  // TALWEG_LIBS_TRANSPORT_TCP_AES_GCM_TESTING_H_
