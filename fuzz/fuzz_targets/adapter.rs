//! `slm_oracle::adapter` on any bytes.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| slm_oracle::adapter(data));
