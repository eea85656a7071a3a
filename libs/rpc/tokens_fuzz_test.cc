// SPDX-License-Identifier: Apache-2.0
// Whoever connects sends names of certificates and bearer tokens. Tables and keys come from files.
#include "libs/rpc/tokens.h"

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "libs/rpc/identity.h"

namespace {

using talweg::rpc::Tokens;

constexpr char kKeys[] = R"({"keys":[{"kty":"EC","crv":"P-256","kid":"k1",)"
                         R"("x":"axfR8uEsQkf4vOblY6RA8ncDfYEt6zOg9KE5RdiYwpY",)"
                         R"("y":"T-NC4v4af5uO5-tKfA-eFivOM1drMV7Oy7ZAaDe_UfU"}]})";

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  if (const auto identity = talweg::rpc::IdentityOfUri(text)) {
    // A name that is read stays the same name.
    if (talweg::rpc::IdentityOfUri(UriOf(*identity, "x")) != identity) std::abort();
  }
  static const auto* const kTokens =
      new auto(Tokens::Parse("node:a service-account a:b", kKeys, "talweg"));
  if (!kTokens->ok()) std::abort();
  // Nobody has signed any token.
  if ((*kTokens)->Check(text, talweg::rpc::Identity{talweg::rpc::Role::kNode, "a"}, 1500).ok())
    std::abort();
  (void)Tokens::Parse(text, "", "");
  (void)Tokens::Parse("", text, "talweg");
  return 0;
}
