// The machine that the stand-in makes believe: its GPUs, their memory, and what was asked of them.
//
// Environment variables, after `FLAMBEAU_TEST_CUDA_`, say what it is like, each process for itself:
//
// | variable | effect |
// |---|---|
// | `DEVICES` | how many GPUs the machine has; 1 by default. `CUDA_VISIBLE_DEVICES` hides some, by number |
// | `MEMORY` | the bytes of memory of each; 8 GiB by default |
// | `LATE` | the microseconds by which a stream begins late whenever it had no work; 100 by default |
// | `LOG` | a file that gets a line for each call that had the host wait for a GPU |

#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "stream.h"

namespace stand_in {

// The number of GPUs that the process sees.
int num_devices();

// The number of a visible GPU in the machine.
int number_in_machine(int device);

// Names a GPU of the machine, the same in every process.
void write_uuid(int device, char (&bytes)[16]);

size_t memory_of_device();
size_t memory_in_use(int device);

// The GPU whose context is current on this thread; kNone before there is one.
constexpr int kNone = -1;
int& current_device();

// The same as CUDA's runtime has it, which makes the first GPU current where none is.
int present_device();

// Memory of a GPU, filled with NaNs; null where there is too little of it.
void* allocate(int device, size_t num_bytes);

// Page-locked memory of the host.
void* allocate_pinned(size_t num_bytes);
void pin(void* start, size_t num_bytes);
void unpin(void* start);

// Gives memory of either kind back; false where `start` begins none.
bool release(void* start);

constexpr int kPinned = -2;

struct Range {
  int device;  // kPinned for page-locked memory
  void* start;
  size_t num_bytes;
};

// The memory that an address lies in; none for memory that CUDA knows nothing of.
std::optional<Range> range_of(const void* address);

// The stream of a handle of CUDA's, which for a default stream is a small number.
Stream& stream_of(const void* handle, int device);
Stream& stream_of(const void* handle);

Stream* create_stream(int device);
void destroy_stream(Stream* stream);

// Waits for all streams of a GPU.
void drain_device(int device);

// Notes that a call has the host wait.
void log_wait(const char* call);

}  // namespace stand_in
