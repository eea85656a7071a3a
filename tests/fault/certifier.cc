// SPDX-License-Identifier: Apache-2.0
// Makes a certificate that lives for seconds, for tests. `talweg certs` counts in days.
//
// certifier AUTHORITY_DIRECTORY DIRECTORY ROLE SECONDS
#include <cstdint>
#include <iostream>
#include <optional>

#include "absl/strings/numbers.h"
#include "libs/rpc/identity.h"
#include "libs/rpc/make_certificates.h"

int main(int argc, char** argv) {
  int64_t life_s = 0;
  if (argc != 5 || !absl::SimpleAtoi(argv[4], &life_s)) return 2;
  const std::optional<talweg::rpc::Identity> identity = talweg::rpc::ParseIdentity(argv[3]);
  if (!identity) return 2;
  const absl::Status made =
      talweg::rpc::MakeCertificate(argv[1], argv[2], {.identity = *identity, .life_s = life_s});
  if (made.ok()) return 0;
  std::cerr << made << "\n";
  return 1;
}
