// torch.ops.taco.{encode, decode_sum, decode_sum_encode}: checks, allocation and dispatch of the group codec on
// torch's stable ABI, so that one library serves every torch >= 2.10 and every Python. Fake implementations are in
// taco/codec/cuda.py.
//
// A codec comes as one integer, `codec` (taco.codec.cuda.number): a call of a few microseconds has no time for names.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <vector>

#include "codec.h"
#include "stream.h"

namespace {

using taco::aligned;
using taco::Codec;
using taco::Form;
using taco::form_of;
using taco::on_device;
using taco::PacketRows;
using taco::packets_of;
using taco::Payload;
using taco::Seeds;
using taco::Spec;
using taco::spec_of;
using taco::Target;
using torch::headeronly::ScalarType;
using torch::stable::Tensor;

// launch(first, count, seeds) for batches of rows: a grid has at most 65535 of them, and its seeds are its arguments.
template <class Launch>
cudaError_t in_batches(int64_t rows, bool stochastic, const std::vector<int64_t>& seeds, Launch launch) {
  STD_TORCH_CHECK(!stochastic || int64_t(seeds.size()) == rows, "got ", seeds.size(), " seeds for ", rows,
                  " rows; need one a row; because rounding is stochastic");
  const int64_t batch = stochastic ? taco::kMaxSeeds : 65535;
  for (int64_t first = 0; first < rows; first += batch) {
    const int64_t count = std::min(batch, rows - first);
    Seeds some{};
    for (int64_t i = 0; stochastic && i < count; ++i) some.of[i] = uint32_t(seeds[first + i]);
    cudaError_t status = launch(first, count, some);
    if (status != cudaSuccess) return status;
  }
  return cudaSuccess;
}

PacketRows rows_of(const PacketRows& packets, int64_t first, int64_t count) {
  PacketRows some = packets;
  some.data += first * packets.row_stride;
  some.rows = count;
  return some;
}

// rows: whether x is [P, numel], a message a row; else all of x is one.
Tensor encode(const Tensor& x, bool rows, int64_t codec, std::vector<int64_t> seeds) {
  STD_TORCH_CHECK(x.is_contiguous() && (!rows || x.dim() == 2), "got x of ", x.dim(),
                  " dimensions; need a contiguous tensor, [P, numel] for rows; because messages are in flat order");
  const int64_t count = rows ? x.size(0) : 1;
  Spec spec = spec_of(rows ? x.size(1) : x.numel(), Codec(codec));
  spec.dtype = taco::dtype_of(x.scalar_type());
  const auto* from = static_cast<const uint8_t*>(x.const_data_ptr());
  spec.aligned = aligned(from, count, spec.numel, spec.dtype);
  Tensor packets = taco::empty_beside(x, rows, count, spec.form.nbytes, ScalarType::Byte);
  auto* to = static_cast<uint8_t*>(packets.mutable_data_ptr());
  on_device(x, [&](Target target) {
    return in_batches(count, spec.stochastic, seeds, [&](int64_t first, int64_t some, const Seeds& each) {
      const uint8_t* row = from + first * spec.numel * bytes_of(spec.dtype);
      return taco::encode(spec, target, int(some), row, to + first * spec.form.nbytes, each);
    });
  });
  return packets;
}

Tensor decode_sum(const Tensor& packets, int64_t numel, ScalarType dtype, int64_t codec) {
  Spec spec = spec_of(numel, Codec(codec));
  spec.stochastic = false;  // of the encoder
  spec.dtype = taco::dtype_of(dtype);
  PacketRows from = packets_of(packets, spec.form.nbytes);
  Tensor out = taco::empty_beside(packets, packets.dim() == 3, from.rows, numel, dtype);
  auto* to = static_cast<uint8_t*>(out.mutable_data_ptr());
  spec.aligned = aligned(to, from.rows, numel, spec.dtype);
  on_device(packets, [&](Target target) {
    return in_batches(from.rows, false, {}, [&](int64_t first, int64_t some, const Seeds&) {
      return taco::decode_sum(spec, target, rows_of(from, first, some), to + first * numel * bytes_of(spec.dtype));
    });
  });
  return out;
}

Tensor decode_sum_encode(const Tensor& packets, int64_t numel, int64_t codec, int64_t target_codec, std::vector<int64_t> seeds) {
  const Codec source(codec), result(target_codec);
  STD_TORCH_CHECK(source.group == result.group && source.signs == result.signs && source.rotation_size == result.rotation_size,
                  "got codecs of two groups or rotations; need the same; because a sum of coefficients has a meaning in "
                  "their own rotation only");
  const Payload from_payload = Payload(source.payload), to_payload = Payload(result.payload);
  const bool narrower = from_payload == Payload::kInt8 && (to_payload == Payload::kInt6 || to_payload == Payload::kInt4);
  STD_TORCH_CHECK(from_payload == to_payload || narrower,
                  "got sums of packets into another payload; need int8 into int6 or int4, or the same; because other pairs have "
                  "no kernel");
  STD_TORCH_CHECK(packets.dim() >= 2, "got packets of one dimension; need [P, N, nbytes] or [N, nbytes]; because they are summed");
  Spec spec = spec_of(numel, source);
  spec.dtype = taco::Dtype::kBf16;  // no tensor: any; presets are compiled for it
  spec.aligned = true;
  spec.stochastic = result.stochastic;
  const Form form = form_of(result, spec.groups);
  PacketRows from = packets_of(packets, spec.form.nbytes);
  Tensor out = taco::empty_beside(packets, packets.dim() == 3, from.rows, form.nbytes, ScalarType::Byte);
  auto* to = static_cast<uint8_t*>(out.mutable_data_ptr());
  on_device(packets, [&](Target target) {
    return in_batches(from.rows, spec.stochastic, seeds, [&](int64_t first, int64_t some, const Seeds& each) {
      return taco::decode_sum_encode(spec, form, target, rows_of(from, first, some), to + first * form.nbytes, each);
    });
  });
  return out;
}

}  // namespace

STABLE_TORCH_LIBRARY(taco, m) {
  m.def("encode(Tensor x, bool rows, int codec, int[] seeds) -> Tensor");
  m.def("decode_sum(Tensor packets, int numel, ScalarType dtype, int codec) -> Tensor");
  m.def("decode_sum_encode(Tensor packets, int numel, int codec, int target, int[] seeds) -> Tensor");
}

#define TACO_IMPL(m)                            \
  m.impl("encode", TORCH_BOX(&encode));         \
  m.impl("decode_sum", TORCH_BOX(&decode_sum)); \
  m.impl("decode_sum_encode", TORCH_BOX(&decode_sum_encode));

STABLE_TORCH_LIBRARY_IMPL(taco, CPU, m) { TACO_IMPL(m) }
STABLE_TORCH_LIBRARY_IMPL(taco, CUDA, m) { TACO_IMPL(m) }
