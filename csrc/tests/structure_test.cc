// Each folder of csrc includes only headers of the folders below it.
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "check.h"

namespace {

namespace fs = std::filesystem;

// From the top to the bottom; the public headers are at the bottom.
const std::vector<std::string> kFloors{"cuda", "abi", "dist", "engine", "nn", "ops", "kernels", "include"};

size_t floor_of(const std::string& path) {
  for (size_t i = 0; i < kFloors.size(); ++i) {
    if (path.rfind(kFloors[i] + "/", 0) == 0) return i;
  }
  return path == "rltrain.h" || path == "rltrain_cuda.h" ? kFloors.size() - 1 : kFloors.size();
}

TEST(folders_include_only_those_below_them) {
  const fs::path root = "csrc";  // ctest runs this in the repository root
  EXPECT(fs::is_directory(root / "include"));
  if (!fs::is_directory(root / "kernels")) return;  // a release bundle contains only the public headers
  EXPECT(fs::is_directory(root / "cuda/kernels"));
  int read = 0;
  for (const auto& entry : fs::recursive_directory_iterator(root)) {
    const std::string file = fs::relative(entry.path(), root).string();
    const size_t floor = floor_of(file);
    if (!entry.is_regular_file() || floor == kFloors.size()) continue;
    ++read;
    std::ifstream in(entry.path());
    for (std::string line; std::getline(in, line);) {
      if (line.rfind("#include ", 0) != 0) continue;
      const bool own = line[9] == '"';
      const std::string name = line.substr(10, line.find_last_of("\">") - 10);
      if (own && floor_of(name) < floor) {
        rlt::test::fail(file.c_str(), 0, file + " includes " + name + " from above");
      }
      if (own && floor_of(name) == kFloors.size()) {
        rlt::test::fail(file.c_str(), 0, file + " includes " + name + ", which is in no known folder");
      }
      // Other folders reach device-specific code through the dispatcher or the runner.
      for (const std::string device : {"ops/cpu/", "engine/cpu/"}) {
        if (own && name.rfind(device, 0) == 0 && file.rfind(device, 0) != 0) {
          rlt::test::fail(file.c_str(), 0, file + " includes " + name + " past the dispatcher or the runner");
        }
      }
      const bool torch =
          name.rfind("ATen/", 0) == 0 || name.rfind("c10/", 0) == 0 || name.rfind("torch/", 0) == 0;
      const bool of_gpu = file.rfind("cuda/kernels/", 0) == 0 && file != "cuda/kernels/stream.h";
      if (torch && (kFloors[floor] == "kernels" || of_gpu)) {
        rlt::test::fail(file.c_str(), 0, file + " includes " + name + ": kernels do without libtorch");
      }
    }
  }
  EXPECT(read > 30);
}

}  // namespace
