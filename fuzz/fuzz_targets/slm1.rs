//! `slm_oracle::slm1` on any bytes.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| slm_oracle::slm1(data));
