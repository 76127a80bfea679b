// What every function that Rust calls shares: exceptions become texts, and tensors are pointers to at::Tensor that
// tch's Tensor owns. A function that gives no text back is noexcept: it fails for want of memory alone, and that ends the
// process, as it does in Rust.
#pragma once

#include <cstring>
#include <exception>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>

namespace flambeau {

using TensorPtr = at::Tensor*;
using ConstTensorPtr = const at::Tensor*;

// A copy that Rust frees with flambeau_free_text.
inline char* copy_text(const std::string& text) noexcept {
  char* copy = strdup(text.c_str());
  if (copy == nullptr) std::terminate();
  return copy;
}

// Runs `body` and returns null, or the text of the exception that it threw.
template <typename Body>
char* guarded(Body&& body) noexcept {
  try {
    body();
    return nullptr;
  } catch (const c10::Error& error) {
    return copy_text(error.what_without_backtrace());
  } catch (const std::exception& error) {
    return copy_text(error.what());
  } catch (...) {
    return copy_text("libtorch threw something that is no exception");
  }
}

inline std::vector<at::Tensor> tensors_of(const ConstTensorPtr* tensors, size_t count) {
  std::vector<at::Tensor> vector;
  vector.reserve(count);
  for (size_t i = 0; i < count; ++i) vector.push_back(*tensors[i]);
  return vector;
}

}  // namespace flambeau
