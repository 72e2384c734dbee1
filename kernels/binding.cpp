// torch.ops.taco.*: checks, allocation and dispatch on torch's stable ABI, so that one library serves every
// torch >= 2.10 and every Python. Fake implementations are in taco/codec/cuda.py, the packet layout in taco/codec/wire.py.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <cmath>
#include <string>
#include <vector>

#include "stream.h"

namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;
using taco::dtype_of;
using taco::on_device;
using taco::Payload;
using taco::Scale;
using taco::Spec;
using taco::Target;

Payload payload_of(const std::string& name) {
  if (name == "e4m3") return Payload::kE4M3;
  if (name == "e5m2") return Payload::kE5M2;
  if (name == "int8") return Payload::kInt8;
  if (name == "int6") return Payload::kInt6;
  STD_TORCH_CHECK(name == "int4", "got payload ", name, "; need e4m3, e5m2, int8, int6 or int4; because these have kernels");
  return Payload::kInt4;
}

Scale scale_of(const std::string& name) {
  if (name == "fp32") return Scale::kFp32;
  if (name == "bf16") return Scale::kBf16;
  STD_TORCH_CHECK(name == "e8m0", "got scale ", name, "; need fp32, bf16 or e8m0; because these have kernels");
  return Scale::kE8m0;
}

// sections: byte offsets of low plane, high plane (-1: none), scales, alphas (-1: none), then the packet's size.
Spec spec_of(int64_t numel, int64_t group, int64_t rotation_size, bool signs, const std::string& payload,
             const std::string& scale, bool adaptive, const std::vector<int64_t>& sections) {
  STD_TORCH_CHECK(sections.size() == 5, "got ", sections.size(), " section offsets; need 5; because wire.py lays out 4 sections and a size");
  STD_TORCH_CHECK(group >= 16 && group <= 2048 && (group & (group - 1)) == 0, "got group ", group,
                  "; need a power of two from 16 to 2048; because the kernels are instantiated for those");
  STD_TORCH_CHECK(rotation_size >= 1 && rotation_size <= group && (rotation_size & (rotation_size - 1)) == 0,
                  "got rotation_size ", rotation_size, "; need a power of two up to the group; because a rotation may not cross it");
  STD_TORCH_CHECK(numel >= 0, "got numel ", numel, "; need at least 0; because it counts elements");
  Spec spec{};
  spec.numel = numel;
  spec.groups = (numel + group - 1) / group;
  spec.low = sections[0];
  spec.high = sections[1];
  spec.scales = sections[2];
  spec.alphas = sections[3];
  spec.nbytes = sections[4];
  spec.group = int(group);
  spec.rotation_size = int(rotation_size);
  spec.inv_sqrt_size = float(1.0 / std::sqrt(double(rotation_size)));
  spec.payload = payload_of(payload);
  spec.scale = scale_of(scale);
  spec.signs = signs && rotation_size > 1;
  spec.adaptive = adaptive;

  int64_t codes = spec.groups * group;
  int64_t low_bytes = payload == "int4" || payload == "int6" ? codes / 2 : codes;
  auto inside = [&](int64_t offset, int64_t bytes) { return offset >= 0 && offset % 16 == 0 && offset + bytes <= spec.nbytes; };
  bool fits = inside(spec.low, low_bytes) && inside(spec.scales, spec.groups * taco::bytes_of(spec.scale)) &&
              (payload != "int6" || inside(spec.high, codes / 4)) && (!adaptive || inside(spec.alphas, spec.groups * 4));
  STD_TORCH_CHECK(fits, "got sections outside the packet; need 16-byte aligned offsets that hold ", spec.groups,
                  " groups; because the kernels write there");
  return spec;
}

void check_packets(const Tensor& packets, const Spec& spec, int64_t rank) {
  STD_TORCH_CHECK(packets.scalar_type() == ScalarType::Byte && packets.is_contiguous() && packets.dim() == rank &&
                      packets.size(rank - 1) == spec.nbytes && (rank == 1 || packets.size(0) > 0),
                  "got packets of another dtype, layout or size; need contiguous uint8 of ", spec.nbytes,
                  " bytes each; because that is the packet of ", spec.numel, " elements");
  STD_TORCH_CHECK(reinterpret_cast<uintptr_t>(packets.const_data_ptr()) % 16 == 0,
                  "got packets that are not 16-byte aligned; need an aligned buffer; because the kernels load words");
}

Tensor encode(const Tensor& x, std::string payload, int64_t group, int64_t rotation_size, bool signs, std::string scale,
              bool adaptive, bool stochastic, int64_t seed, std::vector<int64_t> sections) {
  STD_TORCH_CHECK(x.is_contiguous(), "got a non-contiguous tensor; need a contiguous one; because the wire order is flat");
  Spec spec = spec_of(x.numel(), group, rotation_size, signs, payload, scale, adaptive, sections);
  spec.dtype = dtype_of(x.scalar_type());
  spec.stochastic = stochastic;
  spec.seed = uint32_t(seed);
  Tensor packet = torch::stable::new_empty(x, {spec.nbytes}, ScalarType::Byte);
  on_device(x, [&](Target target) {
    return taco::encode(spec, target, x.const_data_ptr(), static_cast<uint8_t*>(packet.mutable_data_ptr()));
  });
  return packet;
}

Tensor decode_sum(const Tensor& packets, int64_t numel, ScalarType dtype, std::string payload, int64_t group,
                  int64_t rotation_size, bool signs, std::string scale, bool adaptive, std::vector<int64_t> sections) {
  Spec spec = spec_of(numel, group, rotation_size, signs, payload, scale, adaptive, sections);
  spec.dtype = dtype_of(dtype);
  check_packets(packets, spec, 2);
  Tensor out = torch::stable::new_empty(packets, {numel}, dtype);
  on_device(packets, [&](Target target) {
    return taco::decode_sum(spec, target, static_cast<const uint8_t*>(packets.const_data_ptr()),
                            int(packets.size(0)), out.mutable_data_ptr());
  });
  return out;
}

Tensor decode(const Tensor& packet, int64_t numel, ScalarType dtype, std::string payload, int64_t group,
              int64_t rotation_size, bool signs, std::string scale, bool adaptive, std::vector<int64_t> sections) {
  Spec spec = spec_of(numel, group, rotation_size, signs, payload, scale, adaptive, sections);
  spec.dtype = dtype_of(dtype);
  check_packets(packet, spec, 1);
  Tensor out = torch::stable::new_empty(packet, {numel}, dtype);
  on_device(packet, [&](Target target) {
    return taco::decode_sum(spec, target, static_cast<const uint8_t*>(packet.const_data_ptr()), 1,
                            out.mutable_data_ptr());
  });
  return out;
}

Tensor decode_sum_encode(const Tensor& packets, int64_t numel, std::string payload, int64_t group, std::string scale,
                         bool adaptive, bool stochastic, int64_t seed, std::vector<int64_t> sections) {
  Spec spec = spec_of(numel, group, 1, false, payload, scale, adaptive, sections);
  spec.stochastic = stochastic;
  spec.seed = uint32_t(seed);
  check_packets(packets, spec, 2);
  Tensor packet = torch::stable::new_empty(packets, {spec.nbytes});
  on_device(packets, [&](Target target) {
    return taco::decode_sum_encode(spec, target, static_cast<const uint8_t*>(packets.const_data_ptr()),
                                   int(packets.size(0)), static_cast<uint8_t*>(packet.mutable_data_ptr()));
  });
  return packet;
}

}  // namespace

STABLE_TORCH_LIBRARY(taco, m) {
  m.def("encode(Tensor x, str payload, int group, int rotation_size, bool signs, str scale, bool adaptive, "
        "bool stochastic, int seed, int[] sections) -> Tensor");
  m.def("decode(Tensor packet, int numel, ScalarType dtype, str payload, int group, int rotation_size, bool signs, "
        "str scale, bool adaptive, int[] sections) -> Tensor");
  m.def("decode_sum(Tensor packets, int numel, ScalarType dtype, str payload, int group, int rotation_size, bool signs, "
        "str scale, bool adaptive, int[] sections) -> Tensor");
  m.def("decode_sum_encode(Tensor packets, int numel, str payload, int group, str scale, bool adaptive, "
        "bool stochastic, int seed, int[] sections) -> Tensor");
}

#define TACO_IMPL(m)                       \
  m.impl("encode", TORCH_BOX(&encode));    \
  m.impl("decode", TORCH_BOX(&decode));    \
  m.impl("decode_sum", TORCH_BOX(&decode_sum)); \
  m.impl("decode_sum_encode", TORCH_BOX(&decode_sum_encode));

STABLE_TORCH_LIBRARY_IMPL(taco, CPU, m) { TACO_IMPL(m) }
STABLE_TORCH_LIBRARY_IMPL(taco, CUDA, m) { TACO_IMPL(m) }
