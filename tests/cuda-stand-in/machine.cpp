#include "machine.h"

#include <cstdlib>
#include <cstring>
#include <map>
#include <set>
#include <sstream>
#include <vector>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

namespace stand_in {

namespace {

std::string setting(const char* name, const char* otherwise) {
  const char* value = std::getenv((std::string("FLAMBEAU_TEST_CUDA_") + name).c_str());
  return value == nullptr || *value == '\0' ? otherwise : value;
}

const std::vector<int>& visible_devices() {
  static const std::vector<int> visible = [] {
    const int count = std::stoi(setting("DEVICES", "1"));
    std::vector<int> found;
    const char* names = std::getenv("CUDA_VISIBLE_DEVICES");
    if (names == nullptr) {
      for (int number = 0; number < count; ++number) {
        found.push_back(number);
      }
      return found;
    }
    std::stringstream list(names);
    // What follows a name that is none is hidden, as with CUDA.
    for (std::string name; std::getline(list, name, ',');) {
      char* end = nullptr;
      const long number = std::strtol(name.c_str(), &end, 10);
      if (name.empty() || *end != '\0' || number < 0 || number >= count) {
        break;
      }
      found.push_back(static_cast<int>(number));
    }
    return found;
  }();
  return visible;
}

struct Memory {
  std::mutex mutex;
  std::map<uintptr_t, Range> ranges;
  std::map<int, size_t> in_use;
};

// Never destroyed: streams' threads outlive the objects of the program's end.
Memory& memory() {
  static auto& memory = *new Memory;
  return memory;
}

struct Streams {
  std::mutex mutex;
  std::map<int, Stream*> defaults;
  std::set<Stream*> made;
};

Streams& streams() {
  static auto& streams = *new Streams;
  return streams;
}

void* map_pages(size_t num_bytes) {
  void* start =
      mmap(nullptr, num_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return start == MAP_FAILED ? nullptr : start;
}

void* add_range(int device, size_t num_bytes) {
  const size_t wanted = num_bytes == 0 ? 1 : num_bytes;
  void* start = map_pages(wanted);
  if (start != nullptr) {
    memory().ranges[reinterpret_cast<uintptr_t>(start)] = {device, start, wanted};
  }
  return start;
}

}  // namespace

std::chrono::microseconds Stream::lateness() {
  static const std::chrono::microseconds late(std::stoi(setting("LATE", "100")));
  return late;
}

int num_devices() {
  return static_cast<int>(visible_devices().size());
}

int number_in_machine(int device) {
  return visible_devices().at(device);
}

void write_uuid(int device, char (&bytes)[16]) {
  std::memcpy(bytes, "flambeaustandin", 15);
  bytes[15] = static_cast<char>(number_in_machine(device));
}

size_t memory_of_device() {
  static const size_t num_bytes = std::stoull(setting("MEMORY", "8589934592"));
  return num_bytes;
}

size_t memory_in_use(int device) {
  const std::lock_guard<std::mutex> lock(memory().mutex);
  return memory().in_use[device];
}

int& current_device() {
  thread_local int device = kNone;
  return device;
}

int present_device() {
  auto& device = current_device();
  if (device == kNone) {
    device = 0;
  }
  return device;
}

void* allocate(int device, size_t num_bytes) {
  const std::lock_guard<std::mutex> lock(memory().mutex);
  auto& in_use = memory().in_use[device];
  if (num_bytes > memory_of_device() - in_use) {
    return nullptr;
  }
  void* start = add_range(device, num_bytes);
  if (start != nullptr) {
    in_use += num_bytes;
    std::memset(start, 0xff, num_bytes);
  }
  return start;
}

void* allocate_pinned(size_t num_bytes) {
  const std::lock_guard<std::mutex> lock(memory().mutex);
  return add_range(kPinned, num_bytes);
}

void pin(void* start, size_t num_bytes) {
  const std::lock_guard<std::mutex> lock(memory().mutex);
  memory().ranges[reinterpret_cast<uintptr_t>(start)] = {kPinned, start, num_bytes};
}

void unpin(void* start) {
  const std::lock_guard<std::mutex> lock(memory().mutex);
  memory().ranges.erase(reinterpret_cast<uintptr_t>(start));
}

bool release(void* start) {
  const std::lock_guard<std::mutex> lock(memory().mutex);
  const auto found = memory().ranges.find(reinterpret_cast<uintptr_t>(start));
  if (found == memory().ranges.end()) {
    return false;
  }
  const Range range = found->second;
  memory().ranges.erase(found);
  if (range.device != kPinned) {
    memory().in_use[range.device] -= range.num_bytes;
  }
  munmap(range.start, range.num_bytes);
  return true;
}

std::optional<Range> range_of(const void* address) {
  const std::lock_guard<std::mutex> lock(memory().mutex);
  const auto wanted = reinterpret_cast<uintptr_t>(address);
  auto behind = memory().ranges.upper_bound(wanted);
  if (behind == memory().ranges.begin()) {
    return std::nullopt;
  }
  const auto& [start, range] = *--behind;
  return wanted < start + range.num_bytes ? std::optional<Range>(range) : std::nullopt;
}

Stream& stream_of(const void* handle, int device) {
  // 0, cudaStreamLegacy and cudaStreamPerThread.
  if (reinterpret_cast<uintptr_t>(handle) > 2) {
    return *static_cast<Stream*>(const_cast<void*>(handle));
  }
  const std::lock_guard<std::mutex> lock(streams().mutex);
  auto& found = streams().defaults[device];
  if (found == nullptr) {
    found = new Stream(device);
  }
  return *found;
}

Stream& stream_of(const void* handle) {
  return stream_of(handle, present_device());
}

Stream* create_stream(int device) {
  auto* stream = new Stream(device);
  const std::lock_guard<std::mutex> lock(streams().mutex);
  streams().made.insert(stream);
  return stream;
}

void destroy_stream(Stream* stream) {
  {
    const std::lock_guard<std::mutex> lock(streams().mutex);
    streams().made.erase(stream);
  }
  delete stream;
}

void drain_device(int device) {
  std::vector<Stream*> all;
  {
    const std::lock_guard<std::mutex> lock(streams().mutex);
    for (const auto& [of, stream] : streams().defaults) {
      all.push_back(stream);
    }
    all.insert(all.end(), streams().made.begin(), streams().made.end());
  }
  for (auto* stream : all) {
    if (stream->device() == device) {
      stream->drain();
    }
  }
}

void log_wait(const char* call) {
  static const std::string path = setting("LOG", "");
  if (path.empty()) {
    return;
  }
  const std::string line = std::string(call) + "\n";
  const int file = open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT, 0600);
  // One write, so that the lines of threads do not mix.
  if (file < 0 || write(file, line.data(), line.size()) != static_cast<ssize_t>(line.size())) {
    std::abort();
  }
  close(file);
}

}  // namespace stand_in
