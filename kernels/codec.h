// The group codec as the bindings learn it: one integer (taco.codec.cuda.number).
#pragma once

#include <cmath>

#include "packets.h"

namespace taco {

// Fields of a codec's number, lowest bits first.
struct Codec {
  int payload, scale;
  bool adaptive, signs, stochastic;
  int group, rotation_size;

  explicit Codec(int64_t number) {
    auto take = [&](int bits) {
      int field = int(number & ((1 << bits) - 1));
      number >>= bits;
      return field;
    };
    payload = take(3);
    scale = take(2);
    adaptive = take(1);
    signs = take(1);
    stochastic = take(1);
    group = 1 << take(4);
    rotation_size = 1 << take(4);
    STD_TORCH_CHECK(number == 0 && payload <= int(Payload::kInt4) && scale <= int(Scale::kE8m0) && group >= 32 && group <= 2048 &&
                        (rotation_size == 1 || rotation_size >= 16) && rotation_size <= group,
                    "got another codec number; need one of taco.codec.cuda.number; because its fields choose the kernel");
  }
};

// The packet of `groups` groups, as wire.group_layout lays it out.
inline Form form_of(const Codec& codec, int64_t groups) {
  Form form{};
  form.payload = Payload(codec.payload);
  form.scale = Scale(codec.scale);
  form.adaptive = codec.adaptive;
  const int64_t codes = groups * codec.group;
  const bool narrow = form.payload == Payload::kInt4 || form.payload == Payload::kInt6;
  Sections sections;
  form.low = sections.add(narrow ? codes / 2 : codes);
  form.high = sections.add(form.payload == Payload::kInt6 ? codes / 4 : 0);
  form.scales = sections.add(groups * bytes_of(form.scale));
  form.alphas = sections.add(form.adaptive ? groups * 4 : 0);
  form.nbytes = sections.total();
  return form;
}

inline Spec spec_of(int64_t numel, const Codec& codec) {
  check_numel(numel);
  Spec spec{};
  spec.numel = numel;
  spec.group = codec.group;
  spec.groups = (numel + codec.group - 1) / codec.group;
  spec.rotation_size = codec.rotation_size;
  spec.inv_sqrt_size = float(1.0 / std::sqrt(double(codec.rotation_size)));
  spec.signs = codec.signs && codec.rotation_size > 1;
  spec.stochastic = codec.stochastic;
  spec.form = form_of(codec, spec.groups);
  return spec;
}

// Whether 16-byte accesses work in every row of a tensor of `numel` elements a row.
inline bool aligned(const void* data, int64_t rows, int64_t numel, Dtype dtype) {
  return reinterpret_cast<uintptr_t>(data) % 16 == 0 && (rows == 1 || numel * bytes_of(dtype) % 16 == 0);
}

}  // namespace taco
