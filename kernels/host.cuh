// The host's side of the jobs: a group between memory and the single lane of its team.
#pragma once

#include "planes.cuh"

namespace taco {

// Elements first .. first + 7 of x [numel], zero from numel on.
template <int BYTES>
Vector<BYTES> load_elements(const uint8_t* x, int64_t first, int64_t numel) {
  Vector<BYTES> raw{};
  int64_t count = numel - first;
  if (count > 0) std::memcpy(&raw, x + first * BYTES, (count < 8 ? count : 8) * BYTES);
  return raw;
}

template <int BYTES>
void store_elements(const Vector<BYTES>& raw, uint8_t* x, int64_t first, int64_t numel) {
  int64_t count = numel - first;
  if (count > 0) std::memcpy(x + first * BYTES, &raw, (count < 8 ? count : 8) * BYTES);
}

template <class P, class S>
void put_codes(const Form& form, const Coded<S::V>& coded, const Place<S>& at, uint8_t* packet) {
  for (int w = 0; w < S::V; ++w) {
    store_codes<P>(coded.codes[w], packet + form.low + at.vector(w) * P::kLow, packet + form.high + at.vector(w) * P::kHigh);
  }
  store_scales<S>(form, coded, at.group, packet);
}

template <class P, class S>
Coded<S::V> get_codes(const Form& form, const Place<S>& at, const uint8_t* packet) {
  Coded<S::V> coded;
  for (int w = 0; w < S::V; ++w) {
    coded.codes[w] = load_codes<P>(packet + form.low + at.vector(w) * P::kLow, packet + form.high + at.vector(w) * P::kHigh);
  }
  load_scales(form, coded, at.group, packet);
  return coded;
}

}  // namespace taco
