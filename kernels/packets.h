// What every binding checks: messages as rows, and packets.
#pragma once

#include <torch/csrc/stable/tensor.h>

#include "ops.h"

namespace taco {

// Offsets of sections one after another, each 16-byte aligned, as wire.layout gives them.
class Sections {
 public:
  int64_t add(int64_t bytes) {
    int64_t offset = total_;
    total_ += (bytes + 15) / 16 * 16;
    return offset;
  }
  int64_t total() const { return total_; }

 private:
  int64_t total_ = 0;
};

inline void check_numel(int64_t numel) {
  STD_TORCH_CHECK(numel >= 0, "got numel ", numel, "; need at least 0; because it counts elements");
}

inline void check_rows(const torch::stable::Tensor& rows) {
  STD_TORCH_CHECK(rows.dim() == 2 && rows.is_contiguous(), "got rows of ", rows.dim(),
                  " dimensions; need a contiguous [P, numel]; because each row is one message in flat order");
}

// packets: uint8 [P, N, nbytes], [N, nbytes] or [nbytes], where rows and packets may lie apart.
inline PacketRows packets_of(const torch::stable::Tensor& packets, int64_t nbytes) {
  const int64_t dims = packets.dim();
  bool shaped = packets.scalar_type() == torch::headeronly::ScalarType::Byte && dims >= 1 && dims <= 3 &&
                packets.size(dims - 1) == nbytes && (dims == 1 || packets.size(dims - 2) > 0);
  STD_TORCH_CHECK(shaped, "got packets of another dtype or size; need uint8 [P, N >= 1, ", nbytes,
                  "]; because that is the packet of a message of this size");
  PacketRows rows{static_cast<const uint8_t*>(packets.const_data_ptr()), 1, 0, 1, 0};
  if (dims == 3) rows.rows = packets.size(0), rows.row_stride = packets.stride(0);
  if (dims >= 2) rows.count = packets.size(dims - 2), rows.stride = packets.stride(dims - 2);
  STD_TORCH_CHECK(rows.count <= INT32_MAX, "got sums of ", rows.count, " packets; need fewer than 2^31; because they are counted so");
  bool aligned = reinterpret_cast<uintptr_t>(rows.data) % 16 == 0 && (rows.rows == 1 || rows.row_stride % 16 == 0) &&
                 (rows.count == 1 || rows.stride % 16 == 0);
  STD_TORCH_CHECK(nbytes == 0 || (aligned && packets.stride(dims - 1) == 1),
                  "got packets that are not 16-byte aligned; need contiguous ones at multiples of 16 bytes; because "
                  "the kernels load words");
  return rows;
}

// An uninitialised contiguous tensor beside `like`: one matrix row a message, or a vector. The C function, because torch's
// dispatcher takes a third of the time of a small call.
inline torch::stable::Tensor empty_beside(const torch::stable::Tensor& like, bool matrix, int64_t rows, int64_t size,
                                          torch::headeronly::ScalarType type) {
  const int64_t sizes[2] = {rows, size}, strides[2] = {size, 1};
  int32_t device_type = 0, device_index = 0;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(like.get(), &device_type));
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_index(like.get(), &device_index));
  AtenTensorHandle handle = nullptr;
  TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(matrix ? 2 : 1, matrix ? sizes : sizes + 1, matrix ? strides : strides + 1,
                                                  int32_t(type), device_type, device_index, &handle));
  return torch::stable::Tensor(handle);
}

}  // namespace taco
