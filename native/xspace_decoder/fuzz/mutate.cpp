// Seeded mutations of the files named, for compilers without libFuzzer:
//   xspace_mutate ROUNDS SEED FILE...
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

void mutate(std::string& bytes, std::mt19937_64& random) {
  if (bytes.empty()) return;
  uint64_t edits = 1 + random() % 4;
  for (uint64_t i = 0; i < edits && !bytes.empty(); ++i) {
    size_t at = random() % bytes.size();
    switch (random() % 6) {
      case 0:
        bytes[at] = static_cast<char>(bytes[at] ^ 1 << random() % 8);
        break;
      case 1:
        bytes[at] = static_cast<char>(random());
        break;
      case 2:
        bytes.resize(at);
        break;
      case 3:
        bytes.erase(at, 1 + random() % 16);
        break;
      case 4:
        bytes.insert(at, 1 + random() % 16, static_cast<char>(random()));
        break;
      case 5: {
        size_t from = random() % bytes.size();
        bytes.insert(at, bytes.substr(from, 1 + random() % 64));
        break;
      }
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) {
    std::fprintf(stderr, "usage: %s ROUNDS SEED FILE...\n", argv[0]);
    return 2;
  }
  long rounds = std::atol(argv[1]);
  std::mt19937_64 random(static_cast<uint64_t>(std::atoll(argv[2])));
  std::vector<std::string> seeds;
  for (int i = 3; i < argc; ++i) {
    std::ifstream file(argv[i], std::ios::binary);
    seeds.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  for (const std::string& seed : seeds)
    LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(seed.data()), seed.size());
  for (long i = 0; i < rounds; ++i) {
    std::string bytes = seeds[random() % seeds.size()];
    mutate(bytes, random);
    LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
  }
  std::printf("%ld mutations of %zu files\n", rounds, seeds.size());
  return 0;
}
