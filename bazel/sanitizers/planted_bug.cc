// SPDX-License-Identifier: Apache-2.0
//
// One mistake for each sanitizer. sanitizers_test checks that it fails a test.
#include <climits>
#include <cstdio>
#include <cstring>
#include <thread>

namespace {

// Volatile, so that the compiler does not see the mistakes before the sanitizer does.
volatile int three = 3;

int ReadBehindTheEnd() {
  int* const numbers = new int[3]{1, 2, 3};
  const int read = numbers[three];
  delete[] numbers;
  return read;
}

int LoseMemory() {
  static volatile bool kept;
  char* volatile lost = new char[100];
  kept = lost != nullptr;
  lost = nullptr;
  return kept ? 0 : 1;
}

int AddBeyondTheLargest() { return INT_MAX - 2 + three; }

int WriteFromTwoThreads() {
  static int shared = 0;
  std::thread other([] { shared = three; });
  shared = three + 1;
  other.join();
  return shared;
}

}  // namespace

int main(int argc, char** argv) {
  const char* const bug = argc > 1 ? argv[1] : "";
  int result = 0;
  if (std::strcmp(bug, "overflow") == 0) {
    result = ReadBehindTheEnd();
  } else if (std::strcmp(bug, "leak") == 0) {
    result = LoseMemory();
  } else if (std::strcmp(bug, "arithmetic") == 0) {
    result = AddBeyondTheLargest();
  } else if (std::strcmp(bug, "race") == 0) {
    result = WriteFromTwoThreads();
  } else if (std::strcmp(bug, "none") != 0) {
    std::fprintf(stderr,
                 "planted_bug: '%s' is not a bug; use overflow, leak, arithmetic, race or none\n",
                 bug);
    return 2;
  }
  std::printf("unnoticed: %d\n", result == three);
  return 0;
}
