// Calls of ATen operators through libtorch's dispatcher, with autograd as the thread's mode has it.
//
// A call is made once: its operator is looked up and its constant arguments become IValues. It is then run any number
// of times on frames, which hold the values of a graph in numbered slots.
//
// A function that returns `char*` returns null on success, else a message that the caller frees with
// `flambeau_free_text`. The others fail for want of memory alone, which ends the process.

#pragma once

#include <cstddef>
#include <cstdint>

namespace at {
class Tensor;
}

extern "C" {

struct flambeau_call;
struct flambeau_frame;

enum flambeau_kind : int32_t {
  FLAMBEAU_NONE = 0,
  FLAMBEAU_SLOT = 1,           // integer: the slot
  FLAMBEAU_BOOL = 2,           // integer: 0 or 1
  FLAMBEAU_INT = 3,            // integer
  FLAMBEAU_FLOAT = 4,          // real
  FLAMBEAU_COMPLEX = 5,        // real, imaginary
  FLAMBEAU_STRING = 6,         // text, length
  FLAMBEAU_SCALAR_TYPE = 7,    // integer: c10::ScalarType
  FLAMBEAU_LAYOUT = 8,         // integer: c10::Layout
  FLAMBEAU_MEMORY_FORMAT = 9,  // integer: c10::MemoryFormat
  FLAMBEAU_DEVICE = 10,        // text, length: such as "cpu" or "cuda:1"
  FLAMBEAU_LIST = 11,          // items, num_items
};

// An argument of a call.
struct flambeau_value {
  int32_t kind;
  int64_t integer;
  double real;
  double imaginary;
  const char* text;
  size_t length;
  const flambeau_value* items;
  size_t num_items;
};

// A number in a slot: `kind` is FLAMBEAU_BOOL, FLAMBEAU_INT or FLAMBEAU_FLOAT.
struct flambeau_number {
  int32_t kind;
  int64_t integer;
  double real;
};

// A call of the operator, such as "aten::add" with overload "Tensor", with all arguments at their defaults.
char* flambeau_call_new(const char* name, const char* overload, flambeau_call** call);
void flambeau_call_free(flambeau_call* call) noexcept;

// Arguments and returns in the order of the schema. The name lives as long as the process.
size_t flambeau_call_num_arguments(const flambeau_call* call) noexcept;
const char* flambeau_call_argument_name(const flambeau_call* call, size_t index) noexcept;
size_t flambeau_call_num_returns(const flambeau_call* call) noexcept;

// Whether returns may lie in the memory of the argument, or are it; `writes` says whether it gets new values.
bool flambeau_call_aliases(const flambeau_call* call, size_t index, bool* writes) noexcept;

// Sets an argument, converted to the type that the schema has for it.
char* flambeau_call_set(flambeau_call* call, size_t index, const flambeau_value* value);

// Says where a return goes: its value into `slots[0]`, or with `is_list` each element of it into its slot. A negative
// slot leaves the value out.
void flambeau_call_return(flambeau_call* call, size_t index, const int64_t* slots, size_t num_slots, bool is_list) noexcept;

// The slots to empty once the arguments have been read.
void flambeau_call_release(flambeau_call* call, const size_t* slots, size_t num_slots) noexcept;

// The last step of making a call: fails where an argument without a default was not set.
char* flambeau_call_check(const flambeau_call* call);

// Has the arguments that name a device, such as "cpu", name another, such as "cuda:1".
char* flambeau_call_move(flambeau_call* call, const char* from, const char* to);

char* flambeau_call_run(const flambeau_call* call, flambeau_frame* frame);

// A frame with so many empty slots. A slot given to a function of the frame is one of them.
flambeau_frame* flambeau_frame_new(size_t num_slots) noexcept;
void flambeau_frame_free(flambeau_frame* frame) noexcept;
void flambeau_frame_set_tensor(flambeau_frame* frame, size_t slot, const at::Tensor* tensor) noexcept;
void flambeau_frame_set_number(flambeau_frame* frame, size_t slot, const flambeau_number* number) noexcept;

// The tensor in a slot, as a new handle that the caller owns.
char* flambeau_frame_tensor(const flambeau_frame* frame, size_t slot, at::Tensor** tensor);
char* flambeau_frame_number(const flambeau_frame* frame, size_t slot, flambeau_number* number);

// Autocast on this thread for a type of device ("cpu", "cuda"): `enter` returns what `leave` sets back. A negative
// scalar type keeps the device's own.
struct flambeau_autocast {
  int32_t device_type;
  bool enabled;
  int32_t scalar_type;
  bool cache_enabled;
};
char* flambeau_autocast_enter(
    const char* device_type, bool enabled, int32_t scalar_type, bool cache_enabled, flambeau_autocast* previous);
void flambeau_autocast_leave(const flambeau_autocast* previous) noexcept;
}
