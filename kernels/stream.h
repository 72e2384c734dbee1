// What every binding needs: the dtype and the device of a tensor as the launchers take them.
#pragma once

#include <torch/csrc/stable/tensor.h>

#include "ops.h"

// A CPU build of torch does not export it; weak, the library loads there all the same.
extern "C" __attribute__((weak)) AOTITorchError aoti_torch_get_current_cuda_stream(int32_t device, void** stream);

namespace taco {

inline Dtype dtype_of(torch::headeronly::ScalarType type) {
  using torch::headeronly::ScalarType;
  if (type == ScalarType::Float) return Dtype::kFp32;
  if (type == ScalarType::BFloat16) return Dtype::kBf16;
  STD_TORCH_CHECK(type == ScalarType::Half, "got dtype number ", int(type),
                  "; need float32, bfloat16 or float16; because the codec is defined for those");
  return Dtype::kFp16;
}

// Makes a device current for this library's own CUDA runtime, which is linked statically and so is not torch's.
class DeviceScope {
 public:
  explicit DeviceScope(int device) {
    cudaError_t status = cudaGetDevice(&previous_);
    changed_ = previous_ != device;
    if (status == cudaSuccess && changed_) status = cudaSetDevice(device);
    STD_TORCH_CHECK(status == cudaSuccess, "got CUDA device ", device, " that cannot be used (", cudaGetErrorString(status),
                    "); need a working one; because kernels run on it");
  }
  ~DeviceScope() {
    if (changed_) cudaSetDevice(previous_);
  }
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  int previous_ = 0;
  bool changed_ = false;
};

// Runs `launch` on the tensor's device and torch's current stream of it.
template <class Launch>
void on_device(const torch::stable::Tensor& tensor, Launch launch) {
  auto check = [](cudaError_t status) {
    STD_TORCH_CHECK(status == cudaSuccess, "kernel launch failed: ", cudaGetErrorString(status));
  };
  if (tensor.is_cpu()) return check(launch(Target{false, nullptr}));
  STD_TORCH_CHECK(tensor.is_cuda(), "got a tensor on another device; need cpu or cuda; because the codec has kernels there");
  STD_TORCH_CHECK(aoti_torch_get_current_cuda_stream != nullptr,
                  "got a CUDA tensor in a torch without CUDA; need a CUDA build of torch; because kernels run on its stream");
  DeviceScope scope(tensor.get_device_index());
  void* stream = nullptr;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(tensor.get_device_index(), &stream));
  check(launch(Target{true, stream}));
}

}  // namespace taco
